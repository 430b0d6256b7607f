"""A job that is started anew and fails again before it trains: each failure counts by itself, and none is kept."""

from __future__ import annotations

import signal

import pytest

from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from tests.unit.support.scripted_job import Proc, Stage, trained

_ROUNDS = 23


def crash(stage: Stage, pids: dict[int, Proc], first: int) -> None:
    """One rank leaves with code 1, and the others are killed for it."""
    stage.exit(pids[first], code=1)
    for rank, proc in pids.items():
        if rank != first:
            stage.exit(proc, signal=signal.SIGKILL)


def latest(stage: Stage) -> Verdict:
    verdict = stage.tracker.current
    assert verdict is not None
    assert verdict.kind is VerdictKind.CRASHED
    return verdict


@pytest.mark.parametrize("world", [1, 2, 4])
def test_crash_loop__each_crash_before_any_progress_is_reported_with_its_own_time(
    world: int,
) -> None:
    stage = trained(world)
    procs = {proc.rank: proc for proc in stage.procs.values() if proc.rank is not None}
    for number in range(_ROUNDS):
        crashed_ns, first = stage.now_ns, number % world
        crash(stage, procs, first)
        stage.run(1)
        verdict = latest(stage)
        assert verdict.cause is Cause.EXITED
        assert verdict.culprit is not None
        assert (verdict.culprit.rank, verdict.culprit.pid) == (first, procs[first].pid)
        assert verdict.since_s == crashed_ns / NS
        procs = {
            rank: stage.add(Proc(1000 + 10 * number + rank, rank=rank, mode="sleep"))
            for rank in range(world)
        }
        stage.run(2)
        assert latest(stage).since_s == crashed_ns / NS, "until it trains it is the same"
    assert len(stage.job.members.views) <= 2 * world, "what failed before is forgotten"
    assert len(stage.job.announced.failures) <= world


def test_crash_loop__a_rank_that_was_not_started_anew_is_still_the_first_to_have_failed() -> None:
    stage = trained(2)
    crashed_ns = stage.now_ns
    stage.exit(stage.rank(0), signal=signal.SIGSEGV)
    stage.run(1)
    stage.exit(stage.rank(1), code=1)
    again = stage.add(Proc(901, rank=1, mode="sleep"))
    stage.run(2)
    stage.exit(again, code=1)
    stage.run(1)
    verdict = latest(stage)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.since_s) == (0, crashed_ns / NS)


def test_crash_loop__a_loader_that_dies_later_hides_no_failure_of_a_rank() -> None:
    stage = trained(2)
    crashed_ns = stage.now_ns
    stage.exit(stage.rank(0), signal=signal.SIGSEGV)
    stage.run(1)
    loader = stage.add(Proc(501, ppid=101))
    stage.run(2)
    stage.exit(loader, signal=signal.SIGKILL)
    stage.run(1)
    assert latest(stage).since_s == crashed_ns / NS
