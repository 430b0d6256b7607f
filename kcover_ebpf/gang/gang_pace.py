"""The slow rank of a job that spans nodes: it hardly waits, and all others wait for it.

A node compares its own ranks; this compares those of all nodes, by the shares of waiting that their Leases carry.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.api.job_kinds import must_train
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.stragglers import chance
from kcover_ebpf.gang.gang_input import GangInput, silent_s
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.diagnosis import STRAGGLER_APART, STRAGGLER_NEXT, STRAGGLER_WAIT_SHARE


@dataclass(frozen=True, slots=True)
class _Placed:
    node: str
    pace: RankPace


def may_lag(seen: Sequence[ReceivedReport]) -> bool:
    """True if one rank hardly waits and all others wait more, by what is known of them; cheap."""
    lowest = second = 2.0
    for received in seen:
        for pace in received.paces:
            if pace.waits < lowest:
                lowest, second = pace.waits, lowest
            elif pace.waits < second:
                second = pace.waits
    apart = second - lowest
    return second <= 1.0 and lowest <= STRAGGLER_WAIT_SHARE and apart >= STRAGGLER_NEXT


def slow_rank(gang_input: GangInput) -> Verdict | None:
    """SLOW with the one rank that all others wait for; None unless that is known of every rank."""
    fresh = [
        received
        for received in gang_input.fresh
        if received.age_s(gang_input.now_s) <= silent_s(received)
    ]
    if not may_lag(fresh):
        return None
    nodes = {pod.uid: pod.node for pod in gang_input.pods}
    placed = [
        _Placed(received.report.node, pace)
        for received in fresh
        if not received.report.suspicious
        for pace in received.paces
        if nodes.get(pace.pod_uid) == received.report.node
    ]
    trains = {pod.uid for pod in gang_input.pods if pod.node and not pod.ended and must_train(pod)}
    if not trains <= {other_placed.pace.pod_uid for other_placed in placed}:
        return None
    slow = min(placed, key=lambda other_placed: other_placed.pace.waits)
    others = [other_placed.pace for other_placed in placed if other_placed is not slow]
    share = sum(pace.repeated for pace in others) / len(others)
    if share - slow.pace.waits < max(STRAGGLER_APART, _chance(slow.pace, others)):
        return None
    if min(pace.repeated for pace in others) - slow.pace.waits < STRAGGLER_NEXT:
        return None
    return _verdict(gang_input, slow, min(0.98, share), len(fresh))


def _chance(slow_pace: RankPace, others: Sequence[RankPace]) -> float:
    # who sends a Lease may write any number into it
    one, many = max(1, slow_pace.passes), max(1, sum(pace.passes for pace in others))
    return chance(2 / (1 / one + 1 / many))


def _verdict(gang_input: GangInput, slow_placed: _Placed, share: float, nodes: int) -> Verdict:
    pace = slow_placed.pace
    factor = (1 - pace.waits) / (1 - share)
    name = "the rank" if pace.rank is None else f"rank {pace.rank}"
    text = (
        f"{name} waits {pace.waits:.0%} of the time, the others on {nodes} nodes {share:.0%}: "
        f"about {factor:.1f} times slower"
    )
    pods = {pod.uid: pod.name for pod in gang_input.pods}
    culprit = Culprit(
        rank=pace.rank,
        pid=pace.pid,
        pod=pods.get(pace.pod_uid),
        pod_uid=pace.pod_uid,
        node=slow_placed.node,
    )
    return Verdict(
        job=gang_input.name,
        incident="",
        kind=VerdictKind.SLOW,
        cause=pace.cause or Cause.SLOW_RANK,
        time_s=gang_input.now_s,
        since_s=gang_input.now_s,
        culprit=culprit,
        evidence=(Evidence(EvidenceKind.PEERS, text, slow_placed.node),),
        factor=factor,
    )
