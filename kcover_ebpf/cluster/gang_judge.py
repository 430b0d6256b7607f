"""One verdict for a job that spans nodes, from what each node reported.

What a kernel announced on any node wins. Else the snapshots of all nodes are judged together by the judge
of a single host. A node whose snapshot is missing is named, and a verdict that depends on it is marked.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kcover_ebpf.cluster import gang_pace, log_evidence, missing, unwatched
from kcover_ebpf.cluster.gang_input import GangInput, GangVerdict
from kcover_ebpf.cluster.gang_snapshot import GangSnapshot, ReceivedReport, gather
from kcover_ebpf.diagnosis import certainty, control_group, nccl, silences, wait_chain
from kcover_ebpf.diagnosis.judge import judge
from kcover_ebpf.diagnosis.process_state import State
from kcover_ebpf.diagnosis.roles import Role
from kcover_ebpf.diagnosis.snapshot import Finding
from kcover_ebpf.diagnosis.verdict import (
    Cause,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.ids import NS
from kcover_ebpf.tunables.diagnosis import COUNTS_MOVE_S, LAUNCHED_AHEAD_S
from kcover_ebpf.tunables.recovery import REPORTS_APART_S, WORK_BELIEVED_S

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


def merge(case: GangInput) -> GangVerdict:
    """The verdict; WORKING where no node has anything to say against it."""
    return _explained(case, _with_history(case, _certain(case, *_merged(case))))


def _certain(case: GangInput, merged: GangVerdict, silent_since_s: float | None) -> GangVerdict:
    """The verdict with when a job may be ended for it, by what all nodes know of its past."""
    seen = (each.report.silences for each in case.fresh)
    past = silences.joined(each for each in seen if each is not None)
    patience = past.patience(case.policy)
    return replace(
        merged, verdict=certainty.completed(merged.verdict, case.policy, patience, silent_since_s)
    )


def _with_history(case: GangInput, merged: GangVerdict) -> GangVerdict:
    """The verdict with what a run over a job that was not watched cannot know."""
    if not case.unwatched:
        return merged
    unobserved = (*merged.verdict.unobserved, unwatched.HISTORY)
    return replace(merged, verdict=replace(merged.verdict, unobserved=unobserved))


def _explained(case: GangInput, merged: GangVerdict) -> GangVerdict:
    """The verdict with what the logs of the pods say about it."""
    verdict = merged.verdict
    if not verdict.opens_incident:
        return merged
    fault = log_evidence.Fault(verdict.kind, verdict.cause, verdict.since_s, verdict.culprit)
    nodes = {pod.uid: pod.node for pod in case.pods}
    lines = log_evidence.read(case.fresh, nodes, fault, case.now_s).evidence
    return replace(merged, verdict=replace(verdict, evidence=(*verdict.evidence, *lines)))


def _merged(case: GangInput) -> tuple[GangVerdict, float | None]:
    """The verdict, and since when no rank has moved (unix seconds; None where that is not known)."""
    found = _announced(case) or missing.lost_node(case) or _alone(case)
    if found is not None:
        return found, _silent_since_s(case)
    with_snapshots = case.with_snapshots
    if not any(each.report.is_urgent for each in with_snapshots):
        return _slow(case) or _working(case), None
    gathered = gather(with_snapshots, case.now_s, case.policy)
    finding = missing.missing_rank(case, gathered) or judge(gathered.job)
    if case.unwatched:
        finding = unwatched.refined(case, gathered.job, finding)
    if _others_go_on(case, gathered, finding) or _is_refuted(case, gathered, finding):
        return _working(case), None
    if _is_unordered(gathered, finding):
        text = "ranks on several nodes stopped at about the same time; which was first cannot be determined"
        evidence = (*finding.evidence, Evidence(EvidenceKind.SINK, text))
        finding = replace(finding, culprit=None, evidence=evidence)
    silent_ns = finding.silent_since_ns
    silent_s = None if silent_ns is None else case.now_s - (gathered.job.now_ns - silent_ns) / NS
    return _report(case, gathered, finding), silent_s


def _silent_since_s(case: GangInput) -> float | None:
    ranks = [
        case.now_s - each.since_made_s(case.now_s) - rank.age_s
        for each in case.with_snapshots
        for rank in each.report.ranks
        if rank.role is Role.RANK and rank.exit is None and not rank.rests
    ]
    return max(ranks, default=None)


def _announced(case: GangInput) -> GangVerdict | None:
    reporting = [
        (_age(each, case.now_s), each, each.report.verdict)
        for each in case.fresh
        if each.report.verdict is not None and _is_announced(each.report.verdict)
    ]
    if not reporting:
        return None
    oldest_s = max(age_s for age_s, _, _ in reporting)
    first = [each for each in reporting if oldest_s - each[0] < REPORTS_APART_S]
    best = min(_STRENGTH.get(verdict.cause, 2) for _, _, verdict in first)
    chosen = [each for each in first if _STRENGTH.get(each[2].cause, 2) == best]
    _, seen, local = chosen[0]
    merged = _from_local(case, seen, local)
    others = [
        Evidence(each.kind, each.text, other.report.node)
        for _, other, said in reporting
        if other is not seen
        for place, each in enumerate(said.evidence)
        if place == 0 or each.kind is EvidenceKind.STATE
    ]
    verdict = replace(merged.verdict, evidence=(*merged.evidence, *others[:8]))
    if len({each.report.node for _, each, _ in chosen}) > 1:
        # two nodes say it of their own rank, and nothing shows which came first
        verdict = replace(verdict, culprit=None)
    return GangVerdict(verdict)


def _is_announced(verdict: Verdict) -> bool:
    return any(each.kind is EvidenceKind.EVENT for each in verdict.evidence) and (
        verdict.kind in (VerdictKind.CRASHED, VerdictKind.DEVICE_FAULT)
        or verdict.cause is Cause.LEFT_EARLY
    )


def _age(each: ReceivedReport, now_s: float) -> float:
    verdict = each.report.verdict
    return each.since_made_s(now_s) - (0.0 if verdict is None else verdict.since_s)


def _alone(case: GangInput) -> GangVerdict | None:
    """The node's own verdict, where the whole gang is on one node: it knows more than it reports."""
    nodes = {pod.node for pod in case.pods if not pod.ended}
    fresh = case.fresh
    if len(nodes) != 1 or len(fresh) != 1 or fresh[0].report.verdict is None:
        return None
    return _from_local(case, fresh[0], fresh[0].report.verdict)


def _slow(case: GangInput) -> GangVerdict | None:
    slow = [
        (each.report.verdict.factor or 0.0, index, each, each.report.verdict)
        for index, each in enumerate(case.fresh)
        if each.report.verdict is not None and each.report.verdict.kind is VerdictKind.SLOW
    ]
    if not slow:
        found = gang_pace.slow_rank(case)
        return None if found is None else GangVerdict(found)
    _, _, seen, verdict = max(slow, key=lambda each: each[:2])
    return _from_local(case, seen, verdict)


def _working(case: GangInput) -> GangVerdict:
    trained = [each.report.trained for each in case.fresh]
    cause = Cause.TRAINING if trained and all(trained) else Cause.STARTING
    return GangVerdict(Verdict(VerdictKind.WORKING, cause, case.now_s, case.now_s, job=case.name))


def _from_local(case: GangInput, seen: ReceivedReport, local: Verdict) -> GangVerdict:
    report = seen.report
    culprit = local.culprit and replace(local.culprit, node=local.culprit.node or report.node)
    if culprit is not None and culprit.pod is None and culprit.pod_uid is not None:
        named = {pod.uid: pod.name for pod in case.pods}
        culprit = replace(culprit, pod=named.get(culprit.pod_uid))
    evidence = tuple(replace(each, node=each.node or report.node) for each in local.evidence)
    verdict = replace(
        local.shifted(_made_s(case, seen)),
        time_s=case.now_s,
        job=case.name,
        culprit=culprit,
        evidence=evidence,
    )
    return GangVerdict(verdict)


def _made_s(case: GangInput, seen: ReceivedReport) -> float:
    """When the report was made, by our clock."""
    return case.now_s - seen.since_made_s(case.now_s)


def _is_unordered(gathered: GangSnapshot, finding: Finding) -> bool:
    """True if another rank on another node stopped making progress so soon after that neither is first."""
    snapshot, culprit = control_group.compared(gathered.job), finding.pid
    if culprit is None or culprit not in snapshot.processes or finding.kind is not VerdictKind.HUNG:
        return False
    if any(each.kind is EvidenceKind.COLLECTIVE for each in finding.evidence):
        # counts say who is behind, whoever stopped first
        return False
    first = snapshot.processes[culprit]
    if first.state in (State.STOPPED, State.FROZEN, State.LEFT) or first.proven:
        return False
    _, sinks = wait_chain.split(snapshot, list(snapshot.ranks.values()))
    node = gathered.who[culprit][0].node
    return any(
        each.pid != culprit
        and gathered.who[each.pid][0].node != node
        and abs(each.age_s - first.age_s) < REPORTS_APART_S
        and not wait_chain.is_effort(snapshot, each)
        for each in sinks
    )


def _others_go_on(case: GangInput, gathered: GangSnapshot, finding: Finding) -> bool:
    """True while ranks on nodes that report no stall explain why the others wait."""
    if not finding.kind.is_fault or _is_stopped(finding) or not any(case.calm.values()):
        return False
    return min((each.age_s for each in gathered.job.ranks.values()), default=0.0) < WORK_BELIEVED_S


def _is_refuted(case: GangInput, gathered: GangSnapshot, finding: Finding) -> bool:
    """True if operations were launched long after the hang is said to have begun: only the node that asked knows."""
    if not finding.kind.is_fault or _is_stopped(finding):
        return False
    moved_s = [
        said.age_s + each.since_made_s(case.now_s)
        for each in case.fresh
        if (said := each.report.collectives) is not None and said.moving
    ]
    hung_s = (gathered.job.now_ns - finding.since_ns) / NS
    return min(moved_s, default=math.inf) < min(COUNTS_MOVE_S, hung_s - LAUNCHED_AHEAD_S)


def _is_stopped(finding: Finding) -> bool:
    return finding.cause in (Cause.STOPPED, Cause.FROZEN)


def _report(case: GangInput, gathered: GangSnapshot, finding: Finding) -> GangVerdict:
    since_s = case.now_s - (gathered.job.now_ns - finding.since_ns) / NS
    culprit = _culprit(case, gathered, finding)
    ranks = {pid: each.rank for pid, (_, each) in gathered.who.items()}
    victims = {rank for pid in finding.victims if (rank := ranks.get(pid)) is not None}
    silent = _missing(case)
    unseen = missing.towards_unseen(case, gathered) if finding.kind.is_fault else None
    if unseen is not None:
        finding = replace(finding, evidence=(*finding.evidence, unseen))
    deadlines = [
        _made_s(case, each) + each.report.verdict.deadline_s
        for each in case.fresh
        if each.report.verdict is not None and each.report.verdict.deadline_s is not None
    ]
    local = {
        text
        for each in case.fresh
        if each.report.verdict
        for text in each.report.verdict.unobserved
    }
    node = culprit.node if culprit else None
    verdict = Verdict(
        job=case.name,
        incident="",
        kind=finding.kind,
        cause=finding.cause,
        time_s=case.now_s,
        since_s=since_s,
        culprit=culprit,
        evidence=tuple(replace(each, node=node) for each in finding.evidence),
        victims=tuple(sorted(victims)),
        deadline_s=min(deadlines, default=None),
        unobserved=(*silent, *sorted(_own(local)), *_uncounted(gathered)),
        certainty=finding.certainty,
        graph=finding.graph,
    )
    depends = bool(silent) and unseen is None and not _is_stopped(finding)
    return GangVerdict(verdict, depends)


def _missing(case: GangInput) -> tuple[str, ...]:
    """Why nothing is known of the ranks on each silent node."""
    calm = case.calm
    said = {
        None: "did not report",
        True: "reports that its ranks have not stalled",
        False: "reports that its ranks have not begun to train",
    }
    return tuple(f"node {name} {said[calm.get(name)]}" for name in case.silent)


def _uncounted(gathered: GangSnapshot) -> list[str]:
    # what NCCL answered to any node counts for all
    stacks = (rank.stack for _, rank in gathered.who.values())
    modules = {word.split("+")[0] for stack in stacks for word in stack}
    return nccl.unobserved(gathered.job.collectives, modules)


def _own(texts: set[str]) -> set[str]:
    # what a node cannot see of other hosts is just what was put together here
    known = "not on this host", nccl.COUNTS
    return {text for text in texts if not any(each in text for each in known)}


def _culprit(case: GangInput, gathered: GangSnapshot, finding: Finding) -> Culprit | None:
    culprit = finding.culprit
    if culprit is None or finding.pid is None:
        return None if finding.rank is None else culprit
    report, rank = gathered.who[finding.pid]
    names = {pod.uid: pod.name for pod in report.pods} | {pod.uid: pod.name for pod in case.pods}
    return replace(
        culprit,
        pid=rank.pid,
        host=report.node,
        pod=names.get(rank.pod_uid),
        pod_uid=rank.pod_uid,
        node=report.node,
    )
