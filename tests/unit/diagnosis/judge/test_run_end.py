"""The end of a run: most ranks have left with code 0, and one is still there."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.scripted_job import LOCK, Stage, trained
from tests.unit.support.seen_verdicts import not_working


def ended_but_for(stage: Stage, mode: str) -> float:
    """Rank 1 does something else while all other ranks end; the moment."""
    stage.become(stage.rank(1), mode, stack=LOCK)
    for rank in (0, 2, 3):
        stage.exit(stage.rank(rank))
    return stage.now_ns / NS


@pytest.mark.parametrize("mode", ["futex", "read", "spin"])
def test_run_end__who_hangs_at_its_exit_is_named_and_the_job_is_never_restarted(mode: str) -> None:
    stage = trained(policy=Policy(hard_limit_s=60.0))
    began_s = ended_but_for(stage, mode)
    stage.run(25)
    assert not_working(stage) == []
    stage.run(300)
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.ENDING)
    assert verdict.certainty is Certainty.SUSPECTED
    assert (verdict.culprit and verdict.culprit.rank) == 1
    assert verdict.time_s - began_s < 40
    assert verdict.acts_at_s is None
    assert decide(verdict, Act.SHUTDOWN).act is Act.OBSERVE


def test_run_end__who_still_uploads_is_no_suspect() -> None:
    stage = trained()
    ended_but_for(stage, "write")
    stage.rank(1).io_bytes_s = 1 << 22
    stage.run(120)
    assert not_working(stage) == []


@pytest.mark.parametrize("gap_s", [0, 1])
def test_run_end__where_some_have_just_ended_well_the_last_ones_are_not_ended(gap_s: float) -> None:
    """One saves, and another waits for it."""
    stage = trained(seconds=60)
    for rank in (2, 3):
        stage.exit(stage.rank(rank))
    stage.run(gap_s)
    stage.become(stage.rank(0), "futex", stack=LOCK)
    stage.become(stage.rank(1), "futex", last_send_ns=stage.now_ns)
    stage.run(200)
    assert {verdict.certainty for verdict in not_working(stage)} <= {Certainty.SUSPECTED}
    verdict = not_working(stage)[-1]
    assert (verdict.cause, verdict.culprit and verdict.culprit.rank) == (Cause.ENDING, 0)
    assert verdict.acts_at_s is None


def test_run_end__who_hangs_long_after_some_left_is_ended() -> None:
    stage = trained(seconds=60)
    stage.exit(stage.rank(3))
    stage.run(60)
    stage.become(stage.rank(0), "futex", stack=LOCK)
    for rank in (1, 2):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns)
    stage.run(30)
    verdict = not_working(stage)[-1]
    assert (verdict.kind, verdict.culprit and verdict.culprit.rank) == (VerdictKind.HUNG, 0)
    assert verdict.certainty is Certainty.INFERRED
