"""A hang in the first step: how far apart the others came to it says how soon it is one."""

from __future__ import annotations

import pytest

from kcover_ebpf.model.verdict import Cause
from tests.unit.support.scripted_job import COLLECTIVE, LOCK, Stage
from tests.unit.support.seen_verdicts import not_working


def come(stage: Stage, ranks: range, but: int) -> None:
    for rank in ranks:
        if rank != but:
            stage.become(stage.rank(rank), "futex", stack=COLLECTIVE)


def begun(spread_s: float, world: int = 5) -> Stage:
    """All ranks but rank 1 have come to the first collective, two so much later; rank 1 is at a lock."""
    stage = Stage(world=world, connected=False)
    stage.run(3)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    stage.run(1)
    come(stage, range(world - 2 if spread_s else world), but=1)
    stage.run(spread_s)
    come(stage, range(world - 2, world), but=1)
    return stage


@pytest.mark.parametrize(("spread_s", "earliest_s", "latest_s"), [(0, 1, 6), (2, 3, 7)])
def test_first_step__who_is_elsewhere_is_named_by_the_spread_of_the_others(
    spread_s: float, earliest_s: float, latest_s: float
) -> None:
    stage = begun(spread_s)
    stage.run(earliest_s)
    assert not_working(stage) == []
    stage.run(latest_s - earliest_s)
    (verdict,) = not_working(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.BLOCKED_LOCK, 1)


def test_first_step__where_two_have_not_come_the_ordinary_time_is_given() -> None:
    stage = begun(0)
    stage.become(stage.rank(2), "run")
    stage.run(7)
    assert not_working(stage) == []


def test_first_step__of_two_ranks_nothing_shows_how_far_apart_they_come() -> None:
    stage = begun(0, world=2)
    stage.run(6)
    assert not_working(stage) == []


def test_first_step__where_all_wait_alike_no_rank_is_elsewhere() -> None:
    stage = begun(0)
    come(stage, range(5), but=-1)
    stage.run(7)
    assert not_working(stage) == []
