"""Evaluates the log rules of a job's policy over the logs of all its containers. Pure.

A rule concerns a job and not a container: usually one rank prints the loss. So a line is missing only if no container
printed it, and a number is off if that of any container is. Unreadable logs are unknown and break no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.api.job_rules import JobRule, RuleAction
from kcover_ebpf.api.log_report import ContainerLog, JobRuleReading, PrintedProgress
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
    """Unix seconds by our clock since which it is broken, as exact as the reports' times."""
    text: str
    """The violation in a sentence that contains no text of a log."""
    pod_uid: str | None = None
    """Uid of the pod whose number is off; None for a missing line, for which no container is to blame."""


@dataclass(frozen=True, slots=True)
class LoggedProgress:
    """Progress of a job according to its logs."""

    step: int | None = None
    """The highest step that any running container printed last; None if there is none."""
    moved_s: float | None = None
    """Unix seconds by our clock at which a step or an expected line was last printed; None if never."""
    unsaved_steps: int | None = None
    """Steps since the last checkpoint that was reported complete; None if there is none."""
    redone_steps: int | None = None
    """Steps that were done before the last restart and are repeated; None if unknown."""
    phase_until_s: float | None = None
    """Unix seconds by our clock at which the last announced phase ends; None if none is announced."""
    first_step: int | None = None
    """First step in the present start of the container that is furthest ahead; None if unknown."""
    first_s: float | None = None
    """Unix seconds by our clock at which that step was printed; None if unknown."""
    step_s: float | None = None
    """Mean seconds per step of that container; None before its second step."""
    loss: float | None = None
    """Last loss that a container printed; the largest if several did."""
    tokens: int | None = None
    """Tokens that the training has processed, by its own count; None if it prints none."""


@dataclass(frozen=True, slots=True)
class SeenLog:
    """The log of the newest start of one container, on our clock."""

    log: ContainerLog
    made_s: float
    """Unix seconds by our clock that the ages in the log count back from."""


def broken(
    rules: Sequence[JobRule],
    reports: Iterable[ReceivedReport],
    nodes: Mapping[str, str],
    now_s: float,
) -> tuple[BrokenRule, ...]:
    """The rules that are broken. `nodes`: uid of each running pod of the gang to its node.

    A missing line counts only if every pod was reported: an unreported one may have printed it.
    """
    seen = _current(reports, nodes, now_s)
    is_complete = {seen_log.log.pod_uid for seen_log in seen} >= set(nodes)
    return broken_in(rules, seen, now_s, is_complete=is_complete)


def broken_in(
    rules: Sequence[JobRule], seen: Sequence[SeenLog], now_s: float, *, is_complete: bool = True
) -> tuple[BrokenRule, ...]:
    """The rules that these logs break. `is_complete`: they are all the logs that the job has."""
    return tuple(
        found_rule
        for rule in rules
        if (found_rule := _off(rule, seen) or (_late(rule, seen, now_s) if is_complete else None))
    )


def verdict_of(gang_input: GangInput, rules: Sequence[JobRule]) -> GangVerdict | None:
    """The verdict that broken rules lead to in a job in which nothing else is wrong; None if none is broken.

    The job's owner wrote a rule with the action Restart for this purpose: it counts as an announcement. Other rules are
    only observed: no job is ended for them.
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
    reports: Iterable[ReceivedReport],
    nodes: Mapping[str, str],
    now_s: float,
    rules: Sequence[JobRule] = (),
) -> LoggedProgress:
    """Progress according to the reported logs. `nodes` as in `broken`, `rules` as in `progress_in`."""
    return progress_in(_current(reports, nodes, now_s), rules)


def progress_in(seen: Sequence[SeenLog], rules: Sequence[JobRule] = ()) -> LoggedProgress:
    """Progress according to these logs.

    `rules`: the job's; a line that one of them expects in time is a sign of progress.
    """
    clocks = {rule.name for rule in rules if rule.is_clock}
    printed = [
        (seen_log, seen_log.log.progress) for seen_log in seen if seen_log.log.progress is not None
    ]
    moved = [
        seen_log.made_s - found.age_s for seen_log, found in printed if found.age_s is not None
    ]
    moved += [
        seen_log.made_s - reading.age_s
        for seen_log in seen
        for reading in seen_log.log.rules
        if reading.age_s is not None and reading.rule in clocks
    ]
    unsaved = [steps for _, found in printed if (steps := found.unsaved_steps) is not None]
    redone = [found.redone_steps for _, found in printed if found.redone_steps is not None]
    phases = [
        seen_log.made_s + seen_log.log.phase.left_s
        for seen_log in seen
        if seen_log.log.phase is not None and not seen_log.log.phase.refused
    ]
    return replace(
        _furthest(printed),
        moved_s=max(moved, default=None),
        # a checkpoint is complete as soon as any rank reports it
        unsaved_steps=min(unsaved, default=None),
        redone_steps=max(redone, default=None),
        phase_until_s=max(phases, default=None),
        loss=max((found.loss for _, found in printed if found.loss is not None), default=None),
        tokens=max(
            (found.tokens for _, found in printed if found.tokens is not None), default=None
        ),
    )


def _furthest(printed: Sequence[tuple[SeenLog, PrintedProgress]]) -> LoggedProgress:
    """Steps of the container that is furthest ahead."""
    with_step = [(seen_log, found) for seen_log, found in printed if found.step is not None]
    if not with_step:
        return LoggedProgress()
    seen_log, found = max(with_step, key=lambda pair: pair[1].step or 0)
    first_s = None if found.first_age_s is None else seen_log.made_s - found.first_age_s
    return LoggedProgress(
        step=found.step, first_step=found.first_step, first_s=first_s, step_s=found.step_s
    )


def has_begun(
    rules: Sequence[JobRule],
    reports: Iterable[ReceivedReport],
    nodes: Mapping[str, str],
    now_s: float,
) -> bool:
    """True if all these rules have observed the present start of every pod from its beginning.

    `nodes` as in `broken`.
    """
    seen = _current(reports, nodes, now_s)
    is_complete = {seen_log.log.pod_uid for seen_log in seen} >= set(nodes)
    names = {rule.name for rule in rules}
    return is_complete and all(
        names
        <= {reading.rule for reading in seen_log.log.rules if reading.started_age_s is not None}
        for seen_log in seen
    )


def _current(
    reports: Iterable[ReceivedReport], nodes: Mapping[str, str], now_s: float
) -> list[SeenLog]:
    """The log of the newest start of each container."""
    newest: dict[tuple[str, str], SeenLog] = {}
    for report in reports:
        made_s = now_s - report.since_made_s(now_s)
        for log in report.report.logs:
            if nodes.get(log.pod_uid) != report.report.node:
                continue
            known_seen = newest.get((log.pod_uid, log.container))
            if known_seen is None or known_seen.log.start < log.start:
                newest[log.pod_uid, log.container] = SeenLog(log, made_s)
    return list(newest.values())


def _readings(rule: JobRule, seen: Iterable[SeenLog]) -> list[tuple[SeenLog, JobRuleReading]]:
    return [
        (seen_log, reading)
        for seen_log in seen
        for reading in seen_log.log.rules
        if reading.rule == rule.name
    ]


def _off(rule: JobRule, seen: Sequence[SeenLog]) -> BrokenRule | None:
    for seen_log, reading in _readings(rule, seen):
        if rule.is_off(reading.wrong_count):
            value = "not a finite number" if reading.value is None else f"{reading.value:g}"
            limits = " and ".join(
                f"{word} {limit:g}"
                for word, limit in (("above", rule.above), ("below", rule.below))
                if limit is not None
            )
            text = (
                f"rule {rule.name}: its value was not {limits} for {reading.wrong_count} readings in a row; "
                f"the last value is {value}"
            )
            since_s = seen_log.made_s - (reading.age_s or 0.0)
            return BrokenRule(rule.name, rule.action, since_s, text, seen_log.log.pod_uid)
    return None


def _late(rule: JobRule, seen: Sequence[SeenLog], now_s: float) -> BrokenRule | None:
    found = _readings(rule, seen)
    if len(found) < len(seen) or not found:
        return None
    printed = [
        seen_log.made_s - reading.age_s for seen_log, reading in found if reading.age_s is not None
    ]
    if printed:
        last_s = max(printed)
        if not rule.is_late(now_s - last_s, None):
            return None
        text = f"rule {rule.name}: the last such line came {now_s - last_s:.0f} s ago"
        return BrokenRule(rule.name, rule.action, last_s + (rule.every_seconds or 0.0), text)
    begun = [
        seen_log.made_s - reading.started_age_s
        for seen_log, reading in found
        if reading.started_age_s is not None
    ]
    if len(begun) < len(found):
        return None
    # they train once the last container has started
    start_s = max(begun)
    if not rule.is_late(None, now_s - start_s):
        return None
    text = f"rule {rule.name}: no such line within {now_s - start_s:.0f} s of the start"
    return BrokenRule(rule.name, rule.action, start_s + (rule.within_seconds or 0.0), text)
