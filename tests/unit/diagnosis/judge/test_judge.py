"""Ranks that are stopped one after the other, by a tool that suspends a job; a rank in a wait of unknown kind."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import Inode
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import LOCK, Stage, all_wait, trained


def ended_s(stage: Stage, seconds: float) -> float | None:
    """After how many seconds an armed job would be ended; None: not within `seconds`."""
    for count in range(1, round(4 * seconds) + 1):
        stage.run(0.25)
        latest = stage.tracker.latest
        if latest is not None and decide(latest, Act.SHUTDOWN).act is Act.SHUTDOWN:
            return count / 4
    return None


@pytest.mark.parametrize(("world", "gap_s"), [(4, 1), (6, 1), (8, 1), (8, 0.75), (8, 4)])
def test_judge__a_job_that_is_suspended_rank_by_rank_is_not_ended(world: int, gap_s: float) -> None:
    stage = trained(world, seconds=60)
    for rank in range(world):
        stage.become(stage.rank(rank), "stopped")
        assert ended_s(stage, gap_s) is None
    assert ended_s(stage, 60) is None
    current = stage.tracker.current
    assert current is not None
    assert (current.kind, current.cause) == (VerdictKind.WORKING, Cause.SUSPENDED)


def test_judge__who_has_been_stopped_alone_for_long_is_named_although_another_is_stopped_later() -> (
    None
):
    stage = trained(seconds=60)
    stage.become(stage.rank(1), "stopped")
    assert ended_s(stage, 4) is None
    assert ended_s(stage, 4) is not None
    stage.become(stage.rank(2), "stopped")
    stage.run(1)
    current = stage.tracker.current
    assert current is not None
    assert (current.kind, current.cause) == (VerdictKind.HUNG, Cause.STOPPED)
    assert current.culprit is not None
    assert current.culprit.rank == 1


def test_judge__a_wait_of_unknown_kind_names_its_rank_and_ends_no_job() -> None:
    stage = trained(seconds=60)
    timer = WaitedFile(60, "timerfd", "anon_inode:[timerfd]", Inode(0), "", "")
    stage.become(stage.rank(1), "read", files=(timer,), stack=LOCK)
    all_wait(stage, 1)
    assert ended_s(stage, 300) is None
    current = stage.tracker.current
    assert current is not None
    assert (current.cause, current.certainty) == (Cause.BLOCKED_UNKNOWN, Certainty.SUSPECTED)
    assert current.culprit is not None
    assert current.culprit.rank == 1
    assert any("in a wait of unknown kind" in line for line in current.graph)
