"""What is missing: a rank that never came although its pod runs, a node that disappeared, the word of a node."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.pods import Pod
from kcover_ebpf.diagnosis.evidence import wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot
from kcover_ebpf.diagnosis.membership.rank_numbers import absent
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict, is_heard
from kcover_ebpf.gang.gang_snapshot import GangSnapshot
from kcover_ebpf.gang.unstarted import is_unstarted
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import EFFORT, STOPPED
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from kcover_ebpf.tunables.recovery import AGENT_GONE_S, STALLED_BESIDE_GONE_S


def lost_node(gang_input: GangInput) -> GangVerdict | None:
    """The verdict on a node that is not ready, while no rank on the other nodes makes progress; None if there is none.

    A node that only lost its connection to the API server looks the same from here, and its ranks may well continue to
    train. So all other nodes must have reported, and their ranks must have made no progress for a while.
    """
    down, with_snapshots = _down(gang_input), gang_input.with_snapshots
    if not down or set(gang_input.silent) - set(down) or not _has_stalled(gang_input):
        return None
    name = down[0]
    snapshot = gang_input.gathered().job
    waited_s = silent_for_s(snapshot)
    if waited_s < max([STALLED_BESIDE_GONE_S, *map(snapshot.threshold_s, snapshot.ranks)]):
        return None
    pod = next(pod for pod in gang_input.pods if pod.node == name and not pod.ended)
    unheard_s = gang_input.unheard_s(name)
    since = "there is no report from its agent"
    if unheard_s is not None:
        since = f"its agent has not reported for {unheard_s:.0f} s"
    others = (
        f"all {len(snapshot.ranks)} ranks on {len(with_snapshots)} other nodes "
        f"have waited for at least {waited_s:.0f} s"
    )
    texts = (
        (EvidenceKind.EVENT, f"node {name} is not ready, and {since}"),
        (EvidenceKind.PEERS, others),
    )
    verdict = Verdict(
        job=gang_input.name,
        incident="",
        kind=VerdictKind.HUNG,
        cause=Cause.PEER_GONE,
        time_s=gang_input.now_s,
        since_s=gang_input.now_s - max(rank.age_s for rank in snapshot.ranks.values()),
        culprit=Culprit(pod=pod.name, pod_uid=pod.uid, node=name, host=name),
        evidence=tuple(Evidence(kind, text, name) for kind, text in texts),
    )
    return GangVerdict(verdict)


def unheard(gang_input: GangInput) -> list[str]:
    """Names of nodes with pods of the job whose agents do not report; sorted."""
    ours = {pod.node for pod in gang_input.pods if pod.node and not pod.ended}
    now_s = gang_input.now_s
    heard = {received.report.node for received in gang_input.seen if is_heard(received, now_s)}
    return sorted(ours - heard)


def _down(gang_input: GangInput) -> list[str]:
    """Nodes among these that are not ready."""
    nodes = gang_input.nodes
    return [name for name in unheard(gang_input) if name in nodes and not nodes[name].ready]


def _has_stalled(gang_input: GangInput) -> bool:
    """True if every node with a snapshot is certain that its ranks have stalled."""
    with_snapshots = gang_input.with_snapshots
    return bool(with_snapshots) and all(received.report.suspicious for received in with_snapshots)


def silent_for_s(snapshot: JobSnapshot) -> float:
    """Seconds for which no rank in the snapshot has made progress; 0 while one makes an effort or is stopped."""
    ranks = list(snapshot.ranks.values())
    if any(
        rank.state in EFFORT | STOPPED or wait_chain.is_effort(snapshot, rank) for rank in ranks
    ):
        return 0.0
    return min((rank.age_s for rank in ranks), default=0.0)


def towards_unseen(gang_input: GangInput, gathered_snapshot: GangSnapshot) -> Evidence | None:
    """Evidence that allows an action although some nodes are not observed; None while the evidence is insufficient.

    The other ranks must have waited for very long, and be connected to ranks on those nodes. The work of an unobserved
    rank is unknown, so it is given as long as any effort is.
    """
    silent, snapshot = gang_input.silent, gathered_snapshot.job
    heard_s = [at_s for name in silent if (at_s := gang_input.unheard_s(name)) is not None]
    if not silent or min(heard_s, default=AGENT_GONE_S) < AGENT_GONE_S:
        return None
    if not _has_stalled(gang_input) or silent_for_s(snapshot) < gang_input.policy.quiet_cap_s:
        return None
    there = {pod.address for pod in gang_input.pods if pod.node in silent and pod.address}
    peers = [
        rank.rank
        for _, rank in gathered_snapshot.who.values()
        if any(
            socket.state == "ESTABLISHED" and socket.remote.address in there
            for socket in rank.sockets
        )
    ]
    if not peers:
        return None
    text = (
        f"{len(peers)} of the waiting ranks are connected to ranks on {', '.join(silent[:8])}, "
        "which cannot be observed: no agent reports from there"
    )
    return Evidence(EvidenceKind.EDGE, text)


def missing_rank(gang_input: GangInput, gathered_snapshot: GangSnapshot) -> Finding | None:
    """The lowest rank that never came while all others wait; None unless every pod runs and every node reported.

    This follows from elapsed time alone, so it is reported and ends no job: a pod may need this time to fetch data
    before it starts its rank.
    """
    snapshot = gathered_snapshot.job
    ranks = list(snapshot.ranks.values())
    sizes = {rank.world_size for rank in ranks if rank.world_size is not None}
    present = {rank.rank for rank in ranks if rank.rank is not None}
    if (
        len(sizes) != 1
        or gang_input.silent
        or any(received.report.trained for received in gang_input.fresh)
    ):
        return None
    size = next(iter(sizes))
    missing = absent(present, size)
    pods = [pod for pod in gang_input.pods if not pod.ended]
    if not missing or snapshot.left or not all(map(_runs, pods)):
        return None
    if not ranks or any(rank.state in EFFORT for rank in ranks):
        return None
    waited_s = min(rank.age_s for rank in ranks)
    started = [
        container.started_s for pod in pods for container in pod.containers if container.started_s
    ]
    up_s = gang_input.now_s - max(started, default=gang_input.now_s)
    if min(waited_s, up_s) < gang_input.policy.start_grace_s:
        return None
    time = f"{len(present)} of {size} ranks are present; rank {missing[0]} is missing after {waited_s:.0f} s"
    peers = f"all {len(ranks)} other ranks wait, and all {len(pods)} pods of the job are running"
    return Finding(
        kind=VerdictKind.HUNG,
        cause=Cause.MISSING_RANK,
        since_ns=snapshot.now_ns - round(waited_s * NS),
        culprit=Culprit(missing[0]),
        evidence=(Evidence(EvidenceKind.TIME, time), Evidence(EvidenceKind.PEERS, peers)),
        victims=tuple(snapshot.ranks),
        doubtful=True,
    )


def _runs(pod: Pod) -> bool:
    return pod.phase == "Running" and not is_unstarted(pod)


def only_expected(gang_verdict: GangVerdict) -> GangVerdict:
    """The verdict; a stop is a fault only once its node has said that it lasts for as long as the policy allows.

    The node may have seen its end meanwhile. Of all other waits, none is a fault from a certain second on.
    """
    verdict = gang_verdict.verdict
    is_stop = verdict.cause in (Cause.STOPPED, Cause.FROZEN)
    if not is_stop or not verdict.kind.is_fault or gang_verdict.awaits is None:
        return gang_verdict
    suspected = replace(verdict, kind=VerdictKind.UNKNOWN, certainty=Certainty.SUSPECTED)
    return replace(gang_verdict, verdict=suspected)
