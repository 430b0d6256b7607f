"""The slow rank of a job that spans nodes, from the shares of waiting that each node reports."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from kcover_ebpf.api.agent_lease import MOST_PACES, AgentLease, lease_of
from kcover_ebpf.api.agent_lease import object_of as lease_object
from kcover_ebpf.api.fault_report import FaultReport, PodRef, ReportedJob
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.diagnosis.clock import rank_pace
from kcover_ebpf.diagnosis.clock.pass_slots import next_pause_s, slot_of
from kcover_ebpf.diagnosis.clock.rank_pace import Paces
from kcover_ebpf.diagnosis.clock.step_watch import StepWatch
from kcover_ebpf.diagnosis.clock.stragglers import Place
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_pace import may_lag, slow_rank
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.closing import is_suspected, why_calm
from kcover_ebpf.tunables.agent import COMPARED_HEARTBEAT_S, HEARTBEAT_S
from kcover_ebpf.tunables.stragglers import FASTER
from tests.unit.support.kept_incidents import KEY, LABELS, World
from tests.unit.support.report_builders import NOW_S, SELECTOR, case, local, pod, report

SLOT = slot_of(NOW_S)


def pace(number: int, places: str, **more: Any) -> RankPace:
    share = sum(letter.islower() for letter in places) / max(1, len(places))
    values: dict[str, Any] = {"places": places, "slot": SLOT, "pod_uid": f"uid-{number}"} | more
    return RankPace(100 + number, share, 96, number, **values)


def calm(node: str, *paces: RankPace, **more: Any) -> ReceivedReport:
    """A node whose ranks train."""
    pods = tuple(PodRef(f"j-{number}", f"uid-{number}") for number in range("ab".index(node), 4, 2))
    values: dict[str, Any] = {"suspicious": False, "pods": pods} | more
    made = report(node, **values)
    return replace(made, paces=paces)


def two(slow_pace: RankPace, *others: str, **more: Any) -> list[ReceivedReport]:
    """Ranks 0 and 2 on one node, 1 and 3 on the other."""
    first, second, third = (pace(number + 1, places) for number, places in enumerate(others))
    return [calm("a", slow_pace, second, **more), calm("b", first, third)]


WORKS = "C" * 216
WAITS = (WORKS[:96] + "CCCCCCehijk" * 11)[-216:]
"""It waits for nothing, and then at the end of each of eleven steps."""
SLOW = pace(0, WORKS, cause=Cause.MEMORY_PRESSURE)


def test_slow_rank__the_one_that_never_waits_while_all_others_do() -> None:
    verdict = merge(case(*two(SLOW, WAITS, WAITS, WAITS))).verdict
    assert (verdict.kind, verdict.cause) == (VerdictKind.SLOW, Cause.MEMORY_PRESSURE)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pod, verdict.culprit.node) == (0, "j-0", "a")
    (evidence,) = verdict.evidence
    assert evidence.kind is EvidenceKind.PEERS
    assert evidence.text.startswith("rank 0, of ranks on 2 nodes: all others wait for it in ")
    assert "as the last of 9 steps: about 2.0 times slower. It computes then, which takes" in (
        evidence.text
    )
    assert verdict.factor == pytest.approx(2.0, abs=0.1)
    assert is_suspected(two(SLOW, WAITS, WAITS, WAITS))


SHIFTED = WAITS[4:] + WAITS[-11:-7]
NOT_SLOW: dict[str, list[ReceivedReport]] = {
    "another never waits either": two(SLOW, WAITS, WAITS, WORKS),
    "all wait at once": two(pace(0, WAITS), WAITS, WAITS, WAITS),
    "they do not wait at once": two(SLOW, WAITS, SHIFTED, WAITS[7:] + WAITS[-11:-4]),
    "two steps are too few": two(SLOW, *["C" * 140 + "CCCCCCCCCCCCCChijk" * 2] * 3),
    "older agents, which do not say where they were": two(pace(0, ""), "", "", ""),
    "an agent that sends no sense": two(pace(0, "?" * 216), WAITS, WAITS, WAITS),
    "a node says nothing of its ranks": [calm("a", SLOW, pace(2, WAITS)), calm("b")],
    "a node is silent": [calm("a", SLOW, pace(2, WAITS))],
    "a node is silent for minutes": [
        calm("a", SLOW, pace(2, WAITS)),
        calm("b", pace(1, WAITS), pace(3, WAITS), arrived_s=NOW_S - 80),
    ],
    "a node reports of a pod that is on another": [
        calm("a", SLOW, *(pace(number, WAITS) for number in (1, 2, 3))),
        calm("b"),
    ],
}


@pytest.mark.parametrize("slot", [SLOT, SLOT - 40])
def test_slow_rank__one_whose_node_reported_half_a_minute_ago_works_while_all_others_wait(
    slot: int,
) -> None:
    alone = (calm("a", pace(0, WORKS, slot=slot)), calm("b", pace(1, WAITS), pace(3, WAITS)))
    pods = tuple(one_pod for one_pod in case().pods if one_pod.uid != "uid-2")
    verdict = slow_rank(replace(case(*alone), pods=pods))
    assert verdict is not None
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 0


@pytest.mark.parametrize("name", NOT_SLOW)
def test_slow_rank__else_none_is_named(name: str) -> None:
    assert slow_rank(case(*NOT_SLOW[name])) is None


def test_slow_rank__one_that_often_waits_is_not_taken_to_work_while_its_node_is_silent() -> None:
    often = "CCCCCC0000" * 21
    seen_reports = (
        calm("a", pace(0, often, slot=SLOT - 120)),
        calm("b", pace(1, WAITS), pace(3, WAITS)),
    )
    pods = tuple(one_pod for one_pod in case().pods if one_pod.uid != "uid-2")
    waits = replace(seen_reports[0].paces[0], waits=0.2)
    gang = (replace(seen_reports[0], paces=(waits,)), seen_reports[1])
    assert may_lag(gang)
    assert slow_rank(replace(case(*gang), pods=pods)) is None
    hardly = (replace(seen_reports[0], paces=(replace(waits, waits=0.1),)), seen_reports[1])
    assert slow_rank(replace(case(*hardly), pods=pods)) is not None


def test_slow_rank__ranks_of_a_gang_that_is_too_large_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = case(*two(SLOW, WAITS, WAITS, WAITS))
    assert slow_rank(slow) is not None
    monkeypatch.setattr("kcover_ebpf.gang.gang_pace.RANKS_COMPARED", 3)
    assert slow_rank(slow) is None


def test_may_lag__is_no_more_than_a_hint() -> None:
    waits = pace(1, WAITS)
    assert not may_lag([calm("a", pace(0, WAITS)), calm("b", waits)])
    assert not may_lag(two(SLOW, WORKS, WAITS, WAITS))
    assert not may_lag([calm("a", SLOW)])
    assert not may_lag([])
    assert may_lag([calm("a", SLOW), calm("b", waits)])


def test_merge__what_one_node_found_by_itself_comes_first() -> None:
    said = local(VerdictKind.SLOW, Cause.CPU_THROTTLED, 0, 5.0, EvidenceKind.TIME)
    verdict = merge(case(*two(SLOW, WAITS, WAITS, WAITS, verdict=said))).verdict
    assert verdict.cause is Cause.CPU_THROTTLED


def test_confirmed__the_lease_brings_the_paces_of_the_report_that_it_confirms() -> None:
    seen = calm("a", sequence=7)
    lease = AgentLease("a", NOW_S, 45, frozenset({7}), paces={7: (SLOW,), 8: (pace(1, WAITS),)})
    read = lease_of(lease_object(lease))
    assert read is not None
    assert confirmed(seen, read, NOW_S).paces == (SLOW,)
    assert confirmed(calm("a", SLOW, sequence=9), read, NOW_S).paces == ()


def test_lease_object__of_a_gang_all_ranks_or_none() -> None:
    many = tuple(pace(number, "C") for number in range(MOST_PACES - 1))
    lease = AgentLease("a", NOW_S, 45, paces={1: many, 2: (pace(1, "C"),) * 2, 3: (SLOW,)})
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
    for waits, places in ((0.05, WORKS), (0.3, WAITS)):
        world.renew(0, 0.02, WORKS)
        world.renew(1, waits, places)
        world.jobs.reconcile(KEY)
    for _ in range(10):
        world.now_s += 30.0
        world.renew(0, 0.02, WORKS)
        world.renew(1, 0.31, WAITS)
        world.jobs.reconcile(KEY)
    (status,) = world.statuses
    assert (status.phase, status.kind) == (Phase.OBSERVED, VerdictKind.SLOW)
    assert (status.action, status.order, status.restarts) == (None, None, ())
    assert why_calm(status, world.store.seen(KEY)) is None
    world.renew(1, 0.05)
    assert why_calm(status, world.store.seen(KEY)) == "the ranks are making progress again"


# ---- simulated


@pytest.fixture
def slots_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report finds the slots of all passes anew, of 4 nodes or 8 at a time: nearly all the time goes there."""
    monkeypatch.setattr(rank_pace, "slot_of", cache(slot_of))
    monkeypatch.setattr(rank_pace, "_letter", cache(rank_pace._letter))


@dataclass
class Node:
    """The agent of a node as far as it watches its ranks, and renews its Lease."""

    name: str
    ranks: Sequence[int]
    next_s: float
    renews_s: float
    watch: StepWatch = field(default_factory=StepWatch)
    paces: Paces = field(default_factory=Paces)
    seen: ReceivedReport | None = None

    def observe(self, now_s: float, found: Sequence[float | Place]) -> bool:
        """True if it has renewed its Lease."""
        now_ns = round(now_s * NS)
        here = {Pid(100 + rank): found[rank] for rank in self.ranks}
        self.watch.observe(here, now_ns, elsewhere=True)
        compares = self.watch.compares(now_ns)
        self.next_s = now_s + next_pause_s(now_s, 1 / FASTER if compares else 1.0)
        known = self.paces.of(self.watch, now_ns, 0.0)
        is_due = now_s >= self.renews_s
        is_due |= compares and self.renews_s - now_s > COMPARED_HEARTBEAT_S
        if len(known) < len(self.ranks) or not is_due:
            return False
        self.renews_s = now_s + (COMPARED_HEARTBEAT_S if compares else HEARTBEAT_S)
        paces = tuple(
            RankPace(
                pid, waits.waits, waits.passes, pid - 100, f"uid-{pid - 100}",
                places=waits.places, slot=waits.slot,
            )
            for pid, waits in known.items()
        )  # fmt: skip
        pods = tuple(PodRef(f"j-{rank}", f"uid-{rank}") for rank in self.ranks)
        job = ReportedJob("j", SELECTOR, "Job")
        made = FaultReport(self.name, now_s, 1, job=job, pods=pods, trained=True)
        self.seen = ReceivedReport(made, now_s, paces=paces)
        return True


class Gang:
    """Ranks on some nodes. All exchange their gradients for a share of a step; lengths differ by 4%."""

    def __init__(
        self, nodes: int, ranks: int, step_s: float, exchange: float, dice: random.Random
    ) -> None:
        self.step_s, self.exchange, self.dice = step_s, exchange, dice
        self.nodes = [
            Node(
                f"n{number}",
                range(number * ranks, number * ranks + ranks),
                dice.random(),
                dice.random() * HEARTBEAT_S,
            )
            for number in range(nodes)
        ]
        pods = (
            replace(pod(rank), node=node.name, uid=f"uid-{rank}")
            for node in self.nodes
            for rank in node.ranks
        )
        self.case = replace(case(), pods=tuple(pods))
        self.end_s, self.ready_s = 0.0, [0.0] * nodes * ranks

    def run(self, until_s: float, factor: float) -> tuple[float, int | None] | None:
        """When a slow rank was named, and which; rank 0 takes `factor` times as long."""
        while (node := min(self.nodes, key=lambda other_node: other_node.next_s)).next_s < until_s:
            now_s = node.next_s
            while now_s >= self.end_s:
                lengths_s = [self.step_s * self.dice.gauss(1.0, 0.04) for _ in self.ready_s]
                lengths_s[0] *= factor
                self.ready_s = [self.end_s + length_s for length_s in lengths_s]
                self.end_s = max(self.ready_s) + self.step_s * self.exchange
            found = [now_s - at_s if now_s >= at_s else Place.COMPUTES for at_s in self.ready_s]
            if not node.observe(now_s, found):
                continue
            known = [other_node.seen for other_node in self.nodes if other_node.seen]
            verdict = slow_rank(replace(self.case, seen=known, now_s=now_s))
            if verdict is not None:
                assert verdict.culprit is not None
                return now_s, verdict.culprit.rank
        return None


@pytest.mark.usefixtures("slots_are_found_once")
@pytest.mark.parametrize(("nodes", "ranks"), [(2, 1), (2, 4), (4, 2), (8, 1)])
def test_slow_rank__one_that_is_1_3_times_slower_is_named_within_half_a_minute(
    nodes: int, ranks: int
) -> None:
    dice, found, early = random.Random(11), list[tuple[float, int | None]](), 0
    for step_s in (0.2, 1.0, 5.0):
        for _ in range(8):
            gang = Gang(nodes, ranks, step_s, 0.03, dice)
            early += gang.run(250.0, 1.0) is not None
            found.append(gang.run(400.0, 1.3) or (400.0, 0))
    in_time = sum(at_s - 250.0 < 30.0 for at_s, _ in found)
    print(f"{nodes} nodes, {ranks} ranks each: {in_time} of {len(found)} within 30 s")
    assert in_time >= 0.7 * len(found)
    assert {rank for _, rank in found} == {0}
    assert early <= 1


@pytest.mark.usefixtures("slots_are_found_once")
@pytest.mark.parametrize("exchange", [0.02, 0.3, 0.6])
def test_slow_rank__in_a_healthy_job_none_is_named(exchange: float) -> None:
    dice = random.Random(5)
    for nodes in (2, 8):
        assert Gang(nodes, 8 // nodes, 1.0, exchange, dice).run(1800.0, 1.0) is None
