"""The slow rank of a job that spans nodes, from the shares of waiting that each node reports."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kcover_ebpf.api.agent_lease import MOST_PACES, AgentLease, lease_of
from kcover_ebpf.api.agent_lease import object_of as lease_object
from kcover_ebpf.api.fault_report import FaultReport, PodRef, ReportedJob
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.diagnosis.clock.rank_pace import CountedWaits, Paces
from kcover_ebpf.diagnosis.clock.stragglers import WaitShares
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_pace import may_lag, slow_rank
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.closing import is_suspected, why_calm
from kcover_ebpf.tunables.agent import COMPARED_HEARTBEAT_S, HEARTBEAT_S
from kcover_ebpf.tunables.diagnosis import STRAGGLER_COMPARED_EASE
from tests.unit.kept_incidents import KEY, LABELS, World
from tests.unit.report_builders import NOW_S, SELECTOR, case, local, pod, report


def pace(number: int, waits: float, passes: int = 96, **more: Any) -> RankPace:
    values: dict[str, Any] = {"repeated": waits, "rank": number, "pod_uid": f"uid-{number}"} | more
    return RankPace(100 + number, waits, passes=passes, **values)


def calm(node: str, *paces: RankPace, **more: Any) -> ReceivedReport:
    """A node whose ranks train."""
    pods = tuple(PodRef(f"j-{number}", f"uid-{number}") for number in range("ab".index(node), 4, 2))
    values: dict[str, Any] = {"suspicious": False, "pods": pods} | more
    made = report(node, **values)
    return replace(made, paces=paces)


def two(slow_pace: RankPace, *others: float, **more: Any) -> list[ReceivedReport]:
    """Ranks 0 and 2 on one node, 1 and 3 on the other."""
    first, second, third = (pace(number + 1, waits) for number, waits in enumerate(others))
    return [calm("a", slow_pace, second, **more), calm("b", first, third)]


SLOW = pace(0, 0.02, cause=Cause.MEMORY_PRESSURE)


def test_slow_rank__the_one_that_hardly_waits_while_all_others_do() -> None:
    verdict = merge(case(*two(SLOW, 0.3, 0.25, 0.35))).verdict
    assert (verdict.kind, verdict.cause) == (VerdictKind.SLOW, Cause.MEMORY_PRESSURE)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pod, verdict.culprit.node) == (0, "j-0", "a")
    (evidence,) = verdict.evidence
    assert (evidence.kind, evidence.text) == (
        EvidenceKind.PEERS,
        "rank 0 waits 2% of the time, the others on 2 nodes 30%: about 1.4 times slower",
    )
    assert verdict.factor == pytest.approx(1.4)
    assert is_suspected(two(SLOW, 0.3, 0.25, 0.35))


NOT_SLOW: dict[str, list[ReceivedReport]] = {
    "another waits as little": two(SLOW, 0.3, 0.35, 0.05),
    "all wait": two(pace(0, 0.2), 0.3, 0.25, 0.35),
    "one of them waits hardly more than it": two(pace(0, 0.1), 0.3, 0.14, 0.35),
    "they wait little more than it": two(pace(0, 0.1), 0.2, 0.2, 0.3),
    "all but one long wait of each is little": [
        calm("a", SLOW, pace(2, 0.3, repeated=0.1)),
        calm("b", pace(1, 0.3, repeated=0.1), pace(3, 0.3, repeated=0.1)),
    ],
    "an agent that sends no sense": two(pace(0, 0.02, 0), 0.3, 0.2, 0.35),
    "too few passes": two(pace(0, 0.02, 24), 0.2, 0.2, 0.25),
    "a node says nothing of its ranks": [calm("a", SLOW, pace(2, 0.3)), calm("b")],
    "a node is silent": [calm("a", SLOW, pace(2, 0.3))],
    "a node is silent for minutes": [
        calm("a", SLOW, pace(2, 0.3)),
        calm("b", pace(1, 0.3), pace(3, 0.3), arrived_s=NOW_S - 80),
    ],
    "a node reports of a pod that is on another": [
        calm("a", SLOW, pace(1, 0.3), pace(2, 0.3), pace(3, 0.3)),
        calm("b"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_SLOW)
def test_slow_rank__else_none_is_named(name: str) -> None:
    assert slow_rank(case(*NOT_SLOW[name])) is None


def test_may_lag__is_no_more_than_a_hint() -> None:
    assert not may_lag(two(pace(0, 0.2), 0.3, 0.25, 0.35))
    assert not may_lag(two(SLOW, 0.05, 0.25, 0.35))
    assert not may_lag([calm("a", SLOW)])
    assert not may_lag([])
    assert may_lag([calm("a", SLOW), calm("b", pace(1, 0.3))])


def test_merge__what_one_node_found_by_itself_comes_first() -> None:
    said = local(VerdictKind.SLOW, Cause.CPU_THROTTLED, 0, 5.0, EvidenceKind.TIME)
    verdict = merge(case(*two(SLOW, 0.3, 0.25, 0.35, verdict=said))).verdict
    assert verdict.cause is Cause.CPU_THROTTLED


def test_confirmed__the_lease_brings_the_paces_of_the_report_that_it_confirms() -> None:
    seen = calm("a", sequence=7)
    lease = AgentLease("a", NOW_S, 45, frozenset({7}), paces={7: (SLOW,), 8: (pace(1, 0.3),)})
    read = lease_of(lease_object(lease))
    assert read is not None
    assert confirmed(seen, read, NOW_S).paces == (SLOW,)
    assert confirmed(calm("a", SLOW, sequence=9), read, NOW_S).paces == ()


def test_lease_object__of_a_gang_all_ranks_or_none() -> None:
    many = tuple(pace(number, 0.3) for number in range(MOST_PACES - 1))
    lease = AgentLease("a", NOW_S, 45, paces={1: many, 2: (pace(1, 0.3),) * 2, 3: (SLOW,)})
    read = lease_of(lease_object(lease))
    assert read is not None
    assert set(read.paces) == {1, 3}


# ---- the controller


def test_slow_rank__it_is_one_incident_for_as_long_as_it_is_slow() -> None:
    pods = [
        Pod(
            "ns",
            f"j-{number}",
            f"u{number}",
            f"n{number}",
            "Running",
            1.0,
            None,
            LABELS,
            {},
            (),
            (),
        )
        for number in range(2)
    ]
    world = World(*pods)
    for index in range(2):
        world.report(index=index)
    for waits in (0.05, 0.3):
        world.renew(0, 0.02)
        world.renew(1, waits)
        world.jobs.reconcile(KEY)
    for _ in range(10):
        world.now_s += 30.0
        world.renew(0, 0.02)
        world.renew(1, 0.31)
        world.jobs.reconcile(KEY)
    (status,) = world.statuses
    assert (status.phase, status.kind) == (Phase.OBSERVED, VerdictKind.SLOW)
    assert (status.action, status.order, status.restarts) == (None, None, ())
    assert why_calm(status, world.store.seen(KEY)) is None
    world.renew(1, 0.05)
    assert why_calm(status, world.store.seen(KEY)) == "the ranks are making progress again"


# ---- simulated


@dataclass
class Node:
    """The agent of a node as far as it watches how its ranks wait, and renews its Lease."""

    name: str
    ranks: Sequence[int]
    next_s: float
    renews_s: float
    watch: WaitShares = field(default_factory=WaitShares)
    paces: Paces = field(default_factory=Paces)
    seen: ReceivedReport | None = None

    def observe(self, now_s: float, waits: Sequence[int | None]) -> None:
        now_ns = round(now_s * NS)
        here = {Pid(100 + rank): waits[rank] for rank in self.ranks}
        self.watch.observe(here, now_ns, elsewhere=True)
        compares = self.watch.compares(now_ns)
        known = self.paces.of(self.watch, now_ns)
        if len(known) == len(self.ranks) and (
            now_s >= self.renews_s or (compares and self.renews_s - now_s > COMPARED_HEARTBEAT_S)
        ):
            self.renews_s = now_s + (COMPARED_HEARTBEAT_S if compares else HEARTBEAT_S)
            self._renew(now_s, known)
        self.next_s = now_s + (STRAGGLER_COMPARED_EASE if compares else 1.0)

    def _renew(self, now_s: float, known: Mapping[Pid, CountedWaits]) -> None:
        paces = tuple(
            RankPace(pid, found.waits, found.repeated, found.passes, pid - 100, f"uid-{pid - 100}")
            for pid, found in known.items()
        )
        pods = tuple(PodRef(f"j-{rank}", f"uid-{rank}") for rank in self.ranks)
        job = ReportedJob("j", SELECTOR, "Job")
        made = FaultReport(self.name, now_s, 1, job=job, pods=pods, trained=True)
        self.seen = ReceivedReport(made, now_s, paces=paces)


class Gang:
    """Eight ranks on some nodes. All exchange their gradients for a share of a step; lengths differ by 5%."""

    def __init__(self, count: int, step_s: float, exchange: float, dice: random.Random) -> None:
        self.step_s, self.exchange, self.dice = step_s, exchange, dice
        other_number = 8 // count
        self.nodes = [
            Node(
                f"n{number}",
                range(number * other_number, number * other_number + other_number),
                dice.random(),
                dice.random() * HEARTBEAT_S,
            )
            for number in range(count)
        ]
        pods = (
            replace(pod(rank), node=node.name, uid=f"uid-{rank}")
            for node in self.nodes
            for rank in node.ranks
        )
        self.case = replace(case(), pods=tuple(pods))
        self.end_s, self.step, self.ready = 0.0, 0, [0.0] * 8

    def run(self, until_s: float, factor: float) -> tuple[float, int | None] | None:
        """When a slow rank was named, and which; rank 0 takes `factor` times as long."""
        while (node := min(self.nodes, key=lambda other_node: other_node.next_s)).next_s < until_s:
            now_s = node.next_s
            while now_s >= self.end_s:
                begin_s, self.step = self.end_s, self.step + 1
                lengths = [self.step_s * self.dice.gauss(1.0, 0.05) for _ in self.ready]
                lengths[0] *= factor
                self.ready = [begin_s + length for length in lengths]
                self.end_s = max(self.ready) + self.step_s * self.exchange
            node.observe(now_s, [self.step if now_s >= value else None for value in self.ready])
            seen = [other_node.seen for other_node in self.nodes if other_node.seen]
            found = slow_rank(replace(self.case, seen=seen, now_s=now_s))
            if found is not None:
                assert found.culprit is not None
                return now_s, found.culprit.rank
        return None


@pytest.mark.parametrize(
    ("count", "step_s", "exchange"), [(2, 0.2, 0.1), (2, 2.0, 0.1), (4, 0.5, 0.02), (4, 2.0, 0.02)]
)
def test_slow_rank__one_that_is_1_3_times_slower_is_named_within_a_minute(
    count: int, step_s: float, exchange: float
) -> None:
    dice, times = random.Random(11), list[float]()
    for _ in range(40):
        gang = Gang(count, step_s, exchange, dice)
        assert gang.run(250.0, 1.0) is None, "healthy so far"
        found = gang.run(400.0, 1.3)
        if found is not None:
            assert found[1] == 0
            times.append(found[0] - 250.0)
    assert sum(time < 58.0 for time in times) >= 32


@pytest.mark.parametrize("exchange", [0.02, 0.2, 0.3, 0.6])
def test_paces__a_healthy_job_names_none(exchange: float) -> None:
    dice = random.Random(5)
    for count in (2, 8):
        assert Gang(count, 1.0, exchange, dice).run(1800.0, 1.0) is None
