"""A slow or stalled job while the error counters of an RDMA port grow: the port is named, and ends nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.judge.rdma_port import at_port
from kcover_ebpf.facts.devices import FabricErrors, FabricMoved
from kcover_ebpf.gang.rank_report import paces_of
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from tests.unit.support.scripted_job import Stage, all_wait
from tests.unit.support.seen_verdicts import ended, not_working

FAST_BYTES = 400_000_000


@dataclass
class FabricStage(Stage):
    """A job whose ports are read every five seconds, and whose ranks move bytes over them."""

    errors: int = 0
    """In each reading of the port."""
    holders: tuple[int, ...] = (0, 1, 2, 3)
    """Ranks that have it open."""
    moves_bytes: int = 0
    read_ns: int = 0

    def one_pass(self, period_ns: int, lost: int = 0, late: bool = False) -> None:
        if self.moves_bytes:
            for proc in self.procs.values():
                count = self.moves_bytes * period_ns // NS
                self.feed(FabricMoved(self.now_ns, Pid(proc.pid), count))
        if self.errors and self.now_ns - self.read_ns >= 5 * NS:
            self.read_ns = self.now_ns
            for rank in self.holders:
                pid, counters = Pid(100 + rank), (("packet_seq_err", self.errors),)
                self.feed(FabricErrors(self.now_ns, pid, "mlx5_0/1", "0000:5d:00.0", counters))
        super().one_pass(period_ns, lost, late)


def names_port(verdict: Verdict | Finding) -> bool:
    texts = [one.text for one in verdict.evidence if one.kind is EvidenceKind.EDGE]
    return any("RDMA port mlx5_0/1 (0000:5d:00.0) grow: packet_seq_err" in text for text in texts)


def fabric_job(**options: object) -> FabricStage:
    """One that has trained over RDMA for some minutes."""
    stage = FabricStage(connected=False, moves_bytes=FAST_BYTES, **options)  # type: ignore[arg-type]
    for proc in stage.procs.values():
        stage.become(proc, "run")
    stage.run(240)
    assert not_working(stage) == []
    return stage


@pytest.mark.parametrize(("holders", "rank"), [((2,), 2), ((0, 1, 2, 3), None)])
def test_rdma_port__a_job_that_moves_much_less_over_rdma_has_a_slow_link(
    holders: tuple[int, ...], rank: int | None
) -> None:
    stage = fabric_job(holders=holders)
    stage.moves_bytes, stage.errors = FAST_BYTES // 4, 20
    stage.run(60)
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.SLOW, Cause.LINK)
    assert (verdict.culprit and verdict.culprit.rank) == rank
    assert names_port(verdict)
    assert not ended(verdict)
    stage.moves_bytes, stage.errors = FAST_BYTES, 0
    stage.run(120)
    assert stage.verdicts[-1].kind is VerdictKind.WORKING


@pytest.mark.parametrize(
    ("moves_bytes", "errors"),
    [
        pytest.param(FAST_BYTES, 2_000, id="as fast as before"),
        pytest.param(FAST_BYTES // 4, 0, id="no errors"),
        pytest.param(FAST_BYTES // 4, 4, id="few errors"),
    ],
)
def test_rdma_port__errors_that_cost_nothing_and_slow_jobs_without_errors_are_no_slow_link(
    moves_bytes: int, errors: int
) -> None:
    stage = fabric_job()
    stage.moves_bytes, stage.errors = moves_bytes, errors
    stage.run(60)
    assert not_working(stage) == []


def test_rdma_port__a_job_near_a_standstill_is_explained_by_its_port() -> None:
    stage = FabricStage()
    stage.run(1200)
    gap_s = 1.0
    while gap_s < 500:
        stage.errors = 20 if gap_s > 30 else 0
        for mode, seconds in (("train", 1.0), ("futex", gap_s)):
            for proc in stage.procs.values():
                stage.become(proc, mode)
            stage.run(seconds)
        gap_s *= 1.4
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.SLOW, Cause.LINK)
    assert names_port(verdict)


@pytest.mark.parametrize(
    ("cause", "rank", "holders", "found_cause", "found_rank"),
    [
        (Cause.SLOW_JOB, None, (3,), Cause.LINK, 3),
        (Cause.SLOW_JOB, None, (1, 3), Cause.LINK, None),
        (Cause.SLOW_RANK, 3, (3,), Cause.LINK, 3),
        (Cause.SLOW_RANK, 3, (1, 3), Cause.SLOW_RANK, 3),
        (Cause.CPU_THROTTLED, 3, (3,), Cause.CPU_THROTTLED, 3),
        (Cause.LINK, None, (3,), Cause.LINK, None),
    ],
)
def test_at_port__what_is_known_otherwise_remains(
    cause: Cause,
    rank: int | None,
    holders: tuple[int, ...],
    found_cause: Cause,
    found_rank: int | None,
) -> None:
    stage = FabricStage(holders=holders, errors=20)
    stage.run(30)
    culprit = None if rank is None else Culprit(rank, 100 + rank)
    known = Evidence(EvidenceKind.TIME, "it is slow")
    finding = Finding(VerdictKind.SLOW, cause, stage.now_ns, culprit, (known,), factor=1.4)
    found = at_port(finding, stage.job.faults.ports, stage.job.members.ranks, stage.now_ns)
    assert (found.cause, found.rank, found.factor) == (found_cause, found_rank, 1.4)
    assert found.evidence[0] is known
    assert names_port(found)


@pytest.mark.parametrize(
    ("holders", "cause", "is_named"),
    [
        ((2,), Cause.LINK, True),
        ((0, 1, 2, 3), Cause.SLOW_RANK, True),
        ((1,), Cause.SLOW_RANK, False),
    ],
)
def test_rdma_port__a_straggler_whose_own_port_counts_errors_has_a_slow_link(
    holders: tuple[int, ...], cause: Cause, is_named: bool
) -> None:
    stage = FabricStage(holders=holders, errors=20)
    stage.run(20)
    stage.become(stage.rank(2), "run")
    while not not_working(stage):
        stage.rank(2).sent += 100_000
        stage.one_pass(NS)
    (verdict,) = not_working(stage)
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.cause, verdict.culprit.rank) == (VerdictKind.SLOW, cause, 2)
    assert names_port(verdict) == is_named


@pytest.mark.parametrize(("errors", "is_named"), [(1, True), (0, False)])
def test_rdma_port__a_stalled_job_is_reported_with_the_port_whose_errors_grow(
    errors: int, is_named: bool
) -> None:
    stage = FabricStage()
    stage.run(30)
    stage.errors = errors
    all_wait(stage, -1)
    stage.run(60)
    verdict = stage.verdicts[-1]
    assert verdict.cause is Cause.WAIT_CYCLE
    assert names_port(verdict) == is_named
    assert not ended(verdict)


def test_rdma_port__a_rank_that_was_stopped_is_explained_by_no_port() -> None:
    stage = FabricStage(errors=20)
    stage.run(30)
    stage.become(stage.rank(1), "stopped")
    all_wait(stage, 1)
    stage.run(20)
    assert stage.verdicts[-1].cause is Cause.STOPPED
    assert not names_port(stage.verdicts[-1])


@pytest.mark.parametrize(("holders", "causes"), [((1,), {101: Cause.LINK}), ((0, 1), {})])
def test_paces_of__a_rank_whose_own_port_counts_errors_says_so_to_other_nodes(
    holders: tuple[int, ...], causes: dict[int, Cause]
) -> None:
    stage = FabricStage(world=4, here=2, holders=holders, errors=20)
    stage.run(120)
    found = paces_of(stage.job, {}, 0.0)
    assert len(found) == 2
    assert {pace.pid: pace.cause for pace in found if pace.cause} == causes
