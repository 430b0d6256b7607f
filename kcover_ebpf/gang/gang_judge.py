"""One verdict for a job that spans nodes, from what each node reported.

What a kernel announced on any node wins. Else the snapshots of all nodes are judged together by the judge
of a single host. A node whose snapshot is missing is named, and a verdict that depends on it is marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from kcover_ebpf.diagnosis.clock import certainty, silences
from kcover_ebpf.diagnosis.clock.log_clock import LogClock
from kcover_ebpf.diagnosis.evidence import control_group, wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.judge import nccl
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.diagnosis.judge.policy_rules import at_hard_limit
from kcover_ebpf.gang import gang_pace, job_rules, log_evidence, missing, unstarted, unwatched
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict
from kcover_ebpf.gang.gang_snapshot import GangSnapshot, ReceivedReport
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.diagnosis import COUNTS_MOVE_S, LAUNCHED_AHEAD_S, LONE_FLOOR_S
from kcover_ebpf.tunables.recovery import REPORTS_APART_S

_STRENGTH = {
    Cause.OOM_KILLED: 0,
    Cause.SEGFAULT: 0,
    Cause.DEVICE: 0,
    Cause.LEFT_EARLY: 0,
    Cause.KILLED: 1,
    Cause.ABORTED: 2,
    Cause.LOADER_DIED: 2,
    Cause.EXITED: 3,
}
"""Who died by itself, before who may have died of a peer's death (a reset connection ends in an exit)."""


def merge(gang_input: GangInput) -> GangVerdict:
    """The verdict; WORKING where no node has anything to say against it."""
    gang_verdict = _certain(gang_input, *unstarted.or_unstarted(gang_input, *_merged(gang_input)))
    gang_verdict = replace(gang_verdict, awaits=gang_input.awaited(gang_verdict.verdict))
    gang_verdict = missing.only_expected(gang_verdict)
    return _explained(gang_input, _with_history(gang_input, gang_verdict))


def _certain(
    gang_input: GangInput, gang_verdict: GangVerdict, silent_since_s: float | None
) -> GangVerdict:
    """The verdict with when a job may be ended for it, by what all nodes know of its past."""
    seen = (received.report.silences for received in gang_input.fresh)
    past = silences.joined(summary for summary in seen if summary is not None)
    patience = past.patience(gang_input.policy)
    return replace(
        gang_verdict,
        silences=past,
        verdict=certainty.completed(
            gang_verdict.verdict,
            gang_input.policy,
            patience,
            silent_since_s,
            _log_clock(gang_input, gang_verdict.verdict),
        ),
    )


def _log_clock(gang_input: GangInput, verdict: Verdict) -> LogClock:
    """What the logs of all its pods say of its progress; nothing where nothing is wrong."""
    if not verdict.opens_incident:
        return LogClock()
    nodes = {pod.uid: pod.node for pod in gang_input.pods if not pod.ended}
    logged = job_rules.progress(gang_input.fresh, nodes, gang_input.now_s, gang_input.job_rules)
    return LogClock(logged.moved_s, logged.phase_until_s)


def _with_history(gang_input: GangInput, gang_verdict: GangVerdict) -> GangVerdict:
    """The verdict with what a run over a job that was not watched cannot know."""
    if not gang_input.unwatched:
        return gang_verdict
    unobserved = (*gang_verdict.verdict.unobserved, unwatched.HISTORY)
    return replace(gang_verdict, verdict=replace(gang_verdict.verdict, unobserved=unobserved))


def _explained(gang_input: GangInput, gang_verdict: GangVerdict) -> GangVerdict:
    """The verdict with what the logs of the pods say about it."""
    verdict = gang_verdict.verdict
    if not verdict.opens_incident:
        return gang_verdict
    nodes = {pod.uid: pod.node for pod in gang_input.pods}
    lines = log_evidence.read(gang_input.fresh, nodes, verdict, gang_input.now_s).evidence
    evidence = (*verdict.evidence, *_claims(gang_input, verdict), *lines)
    return replace(gang_verdict, verdict=replace(verdict, evidence=evidence))


def _claims(gang_input: GangInput, verdict: Verdict) -> list[Evidence]:
    """By which claims the pod that waits for storage has its volumes."""
    culprit = verdict.culprit
    if verdict.cause is not Cause.STORAGE or culprit is None:
        return []
    claims = [name for pod in gang_input.pods if pod.uid == culprit.pod_uid for name in pod.claims]
    text = f"pod {culprit.pod} has its volumes by {', '.join(claims)}"
    return [Evidence(EvidenceKind.SINK, text, culprit.node)] if claims else []


def _merged(gang_input: GangInput) -> tuple[GangVerdict, float | None]:
    """The verdict, and since when no rank has moved (unix seconds; None where that is not known)."""
    gang_verdict = _announced(gang_input) or missing.lost_node(gang_input) or _alone(gang_input)
    if gang_verdict is not None:
        return gang_verdict, _silent_since_s(gang_input)
    if not any(received.report.is_urgent for received in gang_input.with_snapshots):
        return _slow(gang_input) or _working(gang_input), None
    snapshot = gang_input.gathered()
    finding = missing.missing_rank(gang_input, snapshot) or judge(snapshot.job)
    if gang_input.unwatched:
        finding = unwatched.refined(gang_input, snapshot.job, finding)
    if _others_go_on(gang_input, snapshot, finding) or _is_refuted(gang_input, snapshot, finding):
        return _working(gang_input), None
    if _is_unordered(snapshot, finding):
        text = "ranks on several nodes stopped at about the same time; which was first cannot be determined"
        evidence = (*finding.evidence, Evidence(EvidenceKind.SINK, text))
        finding = replace(finding, culprit=None, evidence=evidence)
    is_working = finding.kind is VerdictKind.WORKING
    unseen = None if is_working else missing.towards_unseen(gang_input, snapshot)
    if unseen is not None:
        finding = replace(finding, evidence=(*finding.evidence, unseen))
    if _is_open(finding) and missing.silent_for_s(snapshot.job) >= gang_input.policy.quiet_cap_s:
        # no rank is believed to work for longer, seen or not
        finding = replace(finding, kind=VerdictKind.HUNG)
    finding = _at_hard_limit(gang_input, snapshot, finding)
    silent_ns = finding.silent_since_ns
    silent_s = (
        None if silent_ns is None else gang_input.now_s - (snapshot.job.now_ns - silent_ns) / NS
    )
    depends = bool(gang_input.silent) and unseen is None and not _is_stopped(finding)
    return replace(_report(gang_input, snapshot, finding), depends=depends), silent_s


def _is_open(finding: Finding) -> bool:
    # a circle of waits in which not all ranks are seen
    return finding.kind is VerdictKind.UNKNOWN and finding.cause is Cause.WAIT_CYCLE


def _at_hard_limit(gang_input: GangInput, snapshot: GangSnapshot, finding: Finding) -> Finding:
    if any(gang_input.calm.values()):
        # a node says that its ranks continue
        return finding
    job = snapshot.job
    silent_s = (job.now_ns - job.silent_since_ns) / NS
    return at_hard_limit(finding, silent_s, job.policy, job.now_ns)


def _silent_since_s(gang_input: GangInput) -> float | None:
    ranks = [
        gang_input.now_s - received.since_made_s(gang_input.now_s) - rank.age_s
        for received in gang_input.with_snapshots
        for rank in received.report.ranks
        if rank.role is Role.RANK and rank.exit is None and not rank.rests
    ]
    return max(ranks, default=None)


def _announced(gang_input: GangInput) -> GangVerdict | None:
    reporting = _verdicts(gang_input, _is_announced)
    if not reporting:
        return None
    oldest_s = min(verdict.since_s for _, verdict in reporting)
    first = [pair for pair in reporting if pair[1].since_s - oldest_s < REPORTS_APART_S]
    best = min(_STRENGTH.get(verdict.cause, 2) for _, verdict in first)
    chosen = [pair for pair in first if _STRENGTH.get(pair[1].cause, 2) == best]
    received, local = chosen[0]
    gang_verdict = _from_local(gang_input, received, local)
    others = [
        Evidence(evidence.kind, evidence.text, other.report.node)
        for other, said in reporting
        if other is not received
        for place, evidence in enumerate(said.evidence)
        if place == 0 or evidence.kind is EvidenceKind.STATE
    ]
    verdict = replace(gang_verdict.verdict, evidence=(*gang_verdict.evidence, *others[:8]))
    if len({received_report.report.node for received_report, _ in chosen}) > 1:
        # two nodes say it of their own rank, and nothing shows which came first
        verdict = replace(verdict, culprit=None)
    return GangVerdict(verdict)


def _verdicts(
    gang_input: GangInput, is_wanted: Callable[[Verdict], bool] = lambda _: True
) -> list[tuple[ReceivedReport, Verdict]]:
    """What each node says by itself, by our clock; in a large gang it matters that few verdicts are wanted."""
    return [
        (received, verdict)
        for received in gang_input.fresh
        if received.report.verdict is not None and is_wanted(received.report.verdict)
        if (verdict := received.verdict(gang_input.now_s)) is not None
    ]


def _is_announced(verdict: Verdict) -> bool:
    return any(evidence.kind is EvidenceKind.EVENT for evidence in verdict.evidence) and (
        verdict.kind in (VerdictKind.CRASHED, VerdictKind.DEVICE_FAULT)
        or verdict.cause is Cause.LEFT_EARLY
    )


def _alone(gang_input: GangInput) -> GangVerdict | None:
    """The node's own verdict, where the whole gang is on one node: it knows more than it reports."""
    nodes = {pod.node for pod in gang_input.pods if not pod.ended}
    if len(nodes) != 1 or len(gang_input.fresh) != 1:
        return None
    verdicts = _verdicts(gang_input)
    return _from_local(gang_input, *verdicts[0]) if verdicts else None


def _slow(gang_input: GangInput) -> GangVerdict | None:
    slow = [
        (verdict.factor or 0.0, index, received, verdict)
        for index, (received, verdict) in enumerate(_verdicts(gang_input, _is_slow))
    ]
    if not slow:
        found_verdict = gang_pace.slow_rank(gang_input)
        return None if found_verdict is None else GangVerdict(found_verdict)
    _, _, received, verdict = max(slow, key=lambda pair: pair[:2])
    return _from_local(gang_input, received, verdict)


def _is_slow(verdict: Verdict) -> bool:
    return verdict.kind is VerdictKind.SLOW and not _compares_its_own(verdict)


def _compares_its_own(verdict: Verdict) -> bool:
    """True if a node compared the waits of its own ranks, of which one may wait by its nature, as a server does.

    Which rank all others wait for is known where the waits of all nodes are compared.
    """
    return any(evidence.kind is EvidenceKind.PEERS for evidence in verdict.evidence)


def _working(gang_input: GangInput) -> GangVerdict:
    trained = [received.report.trained for received in gang_input.fresh]
    cause = Cause.TRAINING if trained and all(trained) else Cause.STARTING
    return GangVerdict(
        Verdict(VerdictKind.WORKING, cause, gang_input.now_s, gang_input.now_s, job=gang_input.name)
    )


def _from_local(
    gang_input: GangInput, received: ReceivedReport, local_verdict: Verdict
) -> GangVerdict:
    report = received.report
    culprit = local_verdict.culprit and replace(
        local_verdict.culprit, node=local_verdict.culprit.node or report.node
    )
    if culprit is not None and culprit.pod is None and culprit.pod_uid is not None:
        named = {pod.uid: pod.name for pod in gang_input.pods}
        culprit = replace(culprit, pod=named.get(culprit.pod_uid))
    evidence = tuple(
        replace(other_evidence, node=other_evidence.node or report.node)
        for other_evidence in local_verdict.evidence
    )
    verdict = replace(
        local_verdict,
        time_s=gang_input.now_s,
        job=gang_input.name,
        culprit=culprit,
        evidence=evidence,
    )
    return GangVerdict(verdict)


def _is_unordered(gathered_snapshot: GangSnapshot, finding: Finding) -> bool:
    """True if another rank on another node stopped making progress so soon after that neither is first."""
    snapshot, culprit = control_group.compared(gathered_snapshot.job), finding.pid
    if culprit is None or culprit not in snapshot.processes or finding.kind is not VerdictKind.HUNG:
        return False
    if any(evidence.kind is EvidenceKind.COLLECTIVE for evidence in finding.evidence):
        # counts say who is behind, whoever stopped first
        return False
    first = snapshot.processes[culprit]
    if first.state in (State.STOPPED, State.FROZEN, State.LEFT) or first.proven:
        return False
    _, sinks = wait_chain.split(snapshot, list(snapshot.ranks.values()))
    node = gathered_snapshot.who[culprit][0].node
    return any(
        sink.pid != culprit
        and gathered_snapshot.who[sink.pid][0].node != node
        and abs(sink.age_s - first.age_s) < REPORTS_APART_S
        and not wait_chain.is_effort(snapshot, sink)
        for sink in sinks
    )


def _others_go_on(gang_input: GangInput, snapshot: GangSnapshot, finding: Finding) -> bool:
    """True while ranks on nodes that report no stall explain why the others wait."""
    if finding.kind is VerdictKind.WORKING or _is_stopped(finding):
        return False
    if not any(gang_input.calm.values()):
        return False
    return min((rank.age_s for rank in snapshot.job.ranks.values()), default=0.0) < LONE_FLOOR_S


def _is_refuted(gang_input: GangInput, snapshot: GangSnapshot, finding: Finding) -> bool:
    """True if operations were launched long after the hang is said to have begun: only the node that asked knows."""
    if not finding.kind.is_fault or _is_stopped(finding):
        return False
    moved_s = [
        counts.age_s + received.since_made_s(gang_input.now_s)
        for received in gang_input.fresh
        if (counts := received.report.collectives) is not None and counts.moving
    ]
    hung_s = (snapshot.job.now_ns - finding.since_ns) / NS
    return min(moved_s, default=math.inf) < min(COUNTS_MOVE_S, hung_s - LAUNCHED_AHEAD_S)


def _is_stopped(finding: Finding) -> bool:
    return finding.cause in (Cause.STOPPED, Cause.FROZEN)


def _report(gang_input: GangInput, snapshot: GangSnapshot, finding: Finding) -> GangVerdict:
    since_s = gang_input.now_s - (snapshot.job.now_ns - finding.since_ns) / NS
    culprit = _culprit(gang_input, snapshot, finding)
    ranks = {pid: rank_snapshot.rank for pid, (_, rank_snapshot) in snapshot.who.items()}
    victims = {rank for pid in finding.victims if (rank := ranks.get(pid)) is not None}
    silent = _missing(gang_input)
    said_verdicts = [verdict for _, verdict in _verdicts(gang_input)]
    deadlines = [said.deadline_s for said in said_verdicts if said.deadline_s is not None]
    local = {text for said in said_verdicts for text in said.unobserved}
    node = culprit.node if culprit else None
    verdict = Verdict(
        job=gang_input.name,
        incident="",
        kind=finding.kind,
        cause=finding.cause,
        time_s=gang_input.now_s,
        since_s=since_s,
        culprit=culprit,
        evidence=tuple(replace(evidence, node=node) for evidence in finding.evidence),
        victims=tuple(sorted(victims)),
        deadline_s=min(deadlines, default=None),
        unobserved=(*silent, *sorted(_own(local)), *_uncounted(snapshot)),
        certainty=finding.certainty,
        graph=finding.graph,
    )
    return GangVerdict(verdict)


def _missing(gang_input: GangInput) -> tuple[str, ...]:
    """Why nothing is known of the ranks on each silent node."""
    calm = gang_input.calm
    said = {
        None: "did not report",
        True: "reports that its ranks have not stalled",
        False: "reports that its ranks have not begun to train",
    }
    return tuple(f"node {name} {said[calm.get(name)]}" for name in gang_input.silent)


def _uncounted(snapshot: GangSnapshot) -> list[str]:
    # what NCCL answered to any node counts for all
    stacks = (rank.stack for _, rank in snapshot.who.values())
    modules = {word.split("+")[0] for stack in stacks for word in stack}
    return nccl.unobserved(snapshot.job.collectives, modules)


def _own(texts: set[str]) -> set[str]:
    # what a node cannot see of other hosts is just what was put together here
    known = "not on this host", nccl.COUNTS
    return {text for text in texts if not any(other_text in text for other_text in known)}


def _culprit(gang_input: GangInput, snapshot: GangSnapshot, finding: Finding) -> Culprit | None:
    culprit = finding.culprit
    if culprit is None or finding.pid is None:
        return None if finding.rank is None else culprit
    report, rank = snapshot.who[finding.pid]
    names = {pod.uid: pod.name for pod in report.pods} | {
        pod.uid: pod.name for pod in gang_input.pods
    }
    return replace(
        culprit,
        pid=rank.pid,
        host=report.node,
        pod=names.get(rank.pod_uid),
        pod_uid=rank.pod_uid,
        node=report.node,
    )
