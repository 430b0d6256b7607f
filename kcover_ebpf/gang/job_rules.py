"""What the logs of all containers of a job show of the rules of its policy. Pure.

A rule is about a job, not about a container: usually one rank prints the loss. So a line is missing where no container
printed it, and a number is off where any container's is. What could not be read is unknown, and breaks no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kcover_ebpf.api.job_rules import JobRule, RuleAction
from kcover_ebpf.api.log_report import ContainerLog, JobRuleReading
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule of a job's policy that its logs break."""

    rule: str
    action: RuleAction
    since_s: float
    """Unix seconds by our clock from which on it is broken, as exact as the reports' times."""
    text: str
    """What is wrong, in a sentence without any text of a log."""
    pod_uid: str | None = None
    """Of the container whose number is off; None where a line is missing: no container is to blame."""


@dataclass(frozen=True, slots=True)
class LoggedProgress:
    """The clock of progress that a job's log is."""

    step: int | None
    """The highest that any of its running containers printed last."""
    moved_s: float | None
    """Unix seconds by our clock at which a step or an expected line was printed last; None where none was."""
    unsaved_steps: int | None
    """Steps since the last checkpoint that was said to be complete; None where none is known."""
    redone_steps: int | None
    """Steps that were done before the last restart and are done again; None where that is not known."""
    phase_until_s: float | None
    """Unix seconds by our clock at which the last announced phase is over; None where none is announced."""


@dataclass(frozen=True, slots=True)
class _Seen:
    log: ContainerLog
    made_s: float
    """Unix seconds by our clock of the report: its ages count back from then."""


def broken(
    rules: Sequence[JobRule],
    reports: Iterable[ReceivedReport],
    nodes: Mapping[str, str],
    now_s: float,
) -> tuple[BrokenRule, ...]:
    """The rules that are broken; `nodes`: uid of each running pod of the gang to its node.

    A line is missing only where every pod was reported: the one that printed it may be another.
    """
    seen = _current(reports, nodes, now_s)
    is_complete = {other_seen.log.pod_uid for other_seen in seen} >= set(nodes)
    return tuple(
        found_rule
        for rule in rules
        if (found_rule := _off(rule, seen) or (_late(rule, seen, now_s) if is_complete else None))
    )


def verdict_of(gang_input: GangInput, rules: Sequence[JobRule]) -> GangVerdict | None:
    """What broken rules mean for a job in which nothing else is wrong; None where none is broken.

    A rule with the action Restart was written by whoever owns the job: it counts as an announcement. Others are
    observed: no job is ended for them.
    """
    nodes = {
        pod.uid: pod.node for pod in gang_input.pods if not pod.ended and pod.deleted_s is None
    }
    found = broken(rules, gang_input.fresh, nodes, gang_input.now_s)
    if not found:
        return None
    ends = [rule for rule in found if rule.action is RuleAction.RESTART]
    first = min(ends or found, key=lambda rule: rule.since_s)
    named = {pod.uid: pod for pod in gang_input.pods}
    pod = named.get(first.pod_uid) if first.pod_uid is not None else None
    kind = EvidenceKind.EVENT if ends else EvidenceKind.LOG
    verdict = Verdict(
        job=gang_input.name,
        incident="",
        kind=VerdictKind.HUNG,
        cause=Cause.UNKNOWN,
        time_s=gang_input.now_s,
        since_s=first.since_s,
        culprit=None if pod is None else Culprit(pod=pod.name, pod_uid=pod.uid, node=pod.node),
        evidence=tuple(Evidence(kind, rule.text) for rule in ends or found),
        certainty=Certainty.ANNOUNCED if ends else Certainty.SUSPECTED,
        acts_at_s=first.since_s if ends else None,
        acts_why="the policy restarts the job for it" if ends else "the policy observes the rule",
    )
    return GangVerdict(verdict)


def progress(
    reports: Iterable[ReceivedReport], nodes: Mapping[str, str], now_s: float
) -> LoggedProgress:
    """What the logs show of the job's progress; `nodes` as in `broken`."""
    seen = _current(reports, nodes, now_s)
    printed = [
        (other_seen, other_seen.log.progress)
        for other_seen in seen
        if other_seen.log.progress is not None
    ]
    moved = [
        other_seen.made_s - found.age_s for other_seen, found in printed if found.age_s is not None
    ]
    moved += [
        other_seen.made_s - reading.age_s
        for other_seen in seen
        for reading in other_seen.log.rules
        if reading.age_s is not None
    ]
    unsaved = [steps for _, found in printed if (steps := found.unsaved_steps) is not None]
    redone = [found.redone_steps for _, found in printed if found.redone_steps is not None]
    phases = [
        other_seen.made_s + other_seen.log.phase.left_s
        for other_seen in seen
        if other_seen.log.phase is not None and not other_seen.log.phase.refused
    ]
    return LoggedProgress(
        step=max((found.step for _, found in printed if found.step is not None), default=None),
        moved_s=max(moved, default=None),
        # whichever rank says that a checkpoint is complete, it is
        unsaved_steps=min(unsaved, default=None),
        redone_steps=max(redone, default=None),
        phase_until_s=max(phases, default=None),
    )


def _current(
    reports: Iterable[ReceivedReport], nodes: Mapping[str, str], now_s: float
) -> list[_Seen]:
    """The newest start of each container."""
    newest: dict[tuple[str, str], _Seen] = {}
    for report in reports:
        made_s = now_s - report.since_made_s(now_s)
        for log in report.report.logs:
            if nodes.get(log.pod_uid) != report.report.node:
                continue
            known_seen = newest.get((log.pod_uid, log.container))
            if known_seen is None or known_seen.log.start < log.start:
                newest[log.pod_uid, log.container] = _Seen(log, made_s)
    return list(newest.values())


def _readings(rule: JobRule, seen: Iterable[_Seen]) -> list[tuple[_Seen, JobRuleReading]]:
    return [
        (other_seen, reading)
        for other_seen in seen
        for reading in other_seen.log.rules
        if reading.rule == rule.name
    ]


def _off(rule: JobRule, seen: Sequence[_Seen]) -> BrokenRule | None:
    for other_seen, reading in _readings(rule, seen):
        if rule.is_off(reading.wrong_count):
            value = "not a finite number" if reading.value is None else f"{reading.value:g}"
            limits = " and ".join(
                f"{word} {limit:g}"
                for word, limit in (("above", rule.above), ("below", rule.below))
                if limit is not None
            )
            text = (
                f"rule {rule.name}: its number was {reading.wrong_count} times in a row not {limits}; "
                f"the last is {value}"
            )
            since_s = other_seen.made_s - (reading.age_s or 0.0)
            return BrokenRule(rule.name, rule.action, since_s, text, other_seen.log.pod_uid)
    return None


def _late(rule: JobRule, seen: Sequence[_Seen], now_s: float) -> BrokenRule | None:
    found = _readings(rule, seen)
    if len(found) < len(seen) or not found:
        return None
    printed = [
        other_seen.made_s - reading.age_s
        for other_seen, reading in found
        if reading.age_s is not None
    ]
    if printed:
        last_s = max(printed)
        if not rule.is_late(now_s - last_s, None):
            return None
        text = f"rule {rule.name}: the last such line came {now_s - last_s:.0f} s ago"
        return BrokenRule(rule.name, rule.action, last_s + (rule.every_seconds or 0.0), text)
    begun = [
        other_seen.made_s - reading.started_age_s
        for other_seen, reading in found
        if reading.started_age_s is not None
    ]
    if len(begun) < len(found):
        return None
    # they train once the last of them has started
    start_s = max(begun)
    if not rule.is_late(None, now_s - start_s):
        return None
    text = f"rule {rule.name}: no such line within {now_s - start_s:.0f} s of the start"
    return BrokenRule(rule.name, rule.action, start_s + (rule.within_seconds or 0.0), text)
