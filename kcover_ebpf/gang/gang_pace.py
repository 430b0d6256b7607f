"""Finds the slow rank of a job that spans nodes: all others wait for it, step after step.

A node compares its own ranks. This module compares those of all nodes, by the positions that their agents' Leases
report. All nodes make their passes at the same moments, as far as their clocks agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kcover_ebpf.api.job_kinds import must_train
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.pass_slots import moment_s
from kcover_ebpf.diagnosis.clock.rank_pace import decoded
from kcover_ebpf.diagnosis.clock.stragglers import Pass, Place, Straggler, seen, straggler
from kcover_ebpf.gang.gang_input import GangInput, silent_s
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.stragglers import (
    LATE_SHARE,
    LONGEST_GAP_S,
    PACE_APART,
    RANKS_COMPARED,
    SLOTS,
)


@dataclass(frozen=True, slots=True)
class _Placed:
    node: str
    pace: RankPace
    found: Mapping[int, float | Place]
    """Slot of a pass to the seconds that the rank had waited there, or to the place at which it worked."""

    @property
    def usual(self) -> Place:
        """The place at which it most often is while it does not wait."""
        places = Counter(where for where in self.found.values() if isinstance(where, Place))
        return places.most_common(1)[0][0] if places else Place.OTHER


def may_lag(received_reports: Sequence[ReceivedReport]) -> bool:
    """True if, by its reported share of waiting, one rank waits clearly less than all others. A cheap first check."""
    lowest = second = 2.0
    for received in received_reports:
        for pace in received.paces:
            if pace.waits < lowest:
                lowest, second = pace.waits, lowest
            elif pace.waits < second:
                second = pace.waits
    return second <= 1.0 and second - lowest >= PACE_APART


def slow_rank(gang_input: GangInput) -> Verdict | None:
    """SLOW with the one rank that all others wait for; None unless the positions of every rank are known."""
    fresh = [
        received
        for received in gang_input.fresh
        if received.age_s(gang_input.now_s) <= silent_s(received)
    ]
    if not may_lag(fresh) or sum(len(received.paces) for received in fresh) > RANKS_COMPARED:
        return None
    nodes = {pod.uid: pod.node for pod in gang_input.pods}
    placed = [
        _Placed(received.report.node, pace, decoded(pace.places, pace.slot))
        for received in fresh
        if not received.report.suspicious
        for pace in received.paces
        if nodes.get(pace.pod_uid) == received.report.node
    ]
    trains = {pod.uid for pod in gang_input.pods if pod.node and not pod.ended and must_train(pod)}
    if not trains <= {rank.pace.pod_uid for rank in placed} or not all(
        rank.found for rank in placed
    ):
        return None
    passes = list(_passes(placed))
    slow = straggler(passes, passes[-1].at_s) if passes else None
    return None if slow is None else _verdict(gang_input, placed[slow.rank], slow, len(fresh))


def _passes(placed: Sequence[_Placed]) -> Iterator[Pass[int]]:
    """Passes in which the position of every rank is known. Ranks are identified by their index in `placed`.

    Only nodes whose ranks wait report every few seconds. If the ranks of the node with the oldest report hardly ever
    wait, they are assumed to continue as usual after that report: the others wait, but not for each other.
    """
    newest: dict[str, int] = {}
    for rank in placed:
        newest[rank.node] = max(newest.get(rank.node, 0), rank.pace.slot)
    silent = min(newest, key=lambda node: newest[node])
    until = newest[silent]
    if all(rank.pace.waits <= LATE_SHARE for rank in placed if rank.node == silent):
        until = min((slot for node, slot in newest.items() if node != silent), default=until)
    at_s = None
    for slot in range(until - SLOTS + 1, until + 1):
        found = {
            number: rank.usual
            if slot > newest[silent] and rank.node == silent
            else rank.found.get(slot)
            for number, rank in enumerate(placed)
        }
        known = {number: where for number, where in found.items() if where is not None}
        if len(known) == len(placed):
            since_s = LONGEST_GAP_S if at_s is None else moment_s(slot) - at_s
            at_s = moment_s(slot)
            yield seen(at_s, min(since_s, LONGEST_GAP_S), known)


def _verdict(
    gang_input: GangInput, slow_placed: _Placed, found_straggler: Straggler[int], node_count: int
) -> Verdict:
    pace = slow_placed.pace
    name = "the rank" if pace.rank is None else f"rank {pace.rank}"
    text = f"{name}, of ranks on {node_count} nodes: {found_straggler.text}"
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
        factor=found_straggler.factor,
    )
