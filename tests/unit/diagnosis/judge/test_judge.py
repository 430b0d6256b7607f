"""Ranks that are stopped one after the other; a wait of unknown kind; ranks that do not read what is sent to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import BARRIER, LOCK, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


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


def close_windows(stage: Stage, reader: int, **changes: int) -> None:
    """Every rank waits to send to `reader`; nothing else goes over the wire from now on."""
    stage.connected = False
    views = stage.job.members.ranks
    for pid, view in views.items():
        for fd, sample in view.sockets.items():
            if pid != reader and fd == 10 + stage.procs[reader].rank:  # type: ignore[operator]
                view.sockets[fd] = replace(sample, backoff=5, **changes)  # type: ignore[arg-type]


def test_judge__peers_that_ask_in_vain_for_room_point_at_who_does_not_read() -> None:
    stage = trained()
    all_wait(stage, -1)
    close_windows(stage, 102, unsent_bytes=5000, send_window_bytes=0)
    stage.run(10)
    (verdict,) = not_working(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.BLOCKED_READ, 2)
    scene = stage.job.snapshot()
    patient = {pid: replace(rank, threshold_s=60.0) for pid, rank in scene.ranks.items()}
    assert judge(replace(scene, processes=patient)).kind is VerdictKind.WORKING


def test_judge__who_sends_into_a_closed_window_is_not_named_while_its_reader_may_still_read() -> (
    None
):
    """The sender waits for longer than its peers, and elsewhere: for a reader that is not quiet for long enough."""
    stage = trained()
    all_wait(stage, -1)
    close_windows(stage, 102, unsent_bytes=5000, send_window_bytes=0)
    stage.run(10)
    scene = stage.job.snapshot()
    waiting = {pid: replace(rank, threshold_s=15.0) for pid, rank in scene.ranks.items()}
    sender = replace(waiting[Pid(100)], age_s=20.0, stack=BARRIER)
    found = judge(replace(scene, processes=waiting | {Pid(100): sender}))
    assert found.kind is VerdictKind.WORKING
    later = {pid: replace(rank, age_s=20.0) for pid, rank in waiting.items()}
    found = judge(replace(scene, processes=later | {Pid(100): sender}))
    assert (found.cause, found.pid) == (Cause.BLOCKED_READ, 102)


def test_judge__a_reader_in_a_wait_of_unknown_kind_is_not_named_for_its_closed_window() -> None:
    stage = trained()
    all_wait(stage, -1)
    close_windows(stage, 102, unsent_bytes=5000, send_window_bytes=0)
    stage.run(10)
    scene = stage.job.snapshot()
    assert judge(scene).cause is Cause.BLOCKED_READ
    reader = replace(scene.ranks[Pid(102)], state=State.OTHER)
    found = judge(replace(scene, processes={**scene.processes, Pid(102): reader}))
    assert (found.cause, found.pid, found.doubtful) == (Cause.BLOCKED_UNKNOWN, 102, True)


def test_judge__peers_that_get_no_answer_have_lost_their_link() -> None:
    stage = trained()
    all_wait(stage, -1)
    close_windows(stage, 102, unsent_bytes=5000, unacked_bytes=96, send_window_bytes=0)
    stage.run(10)
    (verdict,) = not_working(stage)
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.culprit.rank) == (VerdictKind.LOST_LINK, 2)
