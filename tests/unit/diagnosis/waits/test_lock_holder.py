"""A lock whose holder is known: the wait leads to it, and to nothing else."""

from __future__ import annotations

import pytest

from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import NS, Inode
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.diagnosis import LONE_FLOOR_S
from tests.unit.support.blocked_ranks import state
from tests.unit.support.scripted_job import (
    BARRIER,
    LOCK,
    Proc,
    Side,
    Stage,
    all_wait,
    pipe,
    trained,
)
from tests.unit.support.seen_verdicts import not_working

HOLDER, OTHER = 2_102, 2_103


def at_a_lock(holder: Side, other: Side, holds: int | None = HOLDER) -> Stage:
    """Rank 2 waits for a lock that `holder` has; another thread of it is beside it."""
    stage = trained()
    rank = stage.rank(2)
    rank.sides = {HOLDER: holder, OTHER: other}
    stage.run(2)
    stage.become(rank, "futex", stack=LOCK, lock_thread=holds)
    all_wait(stage, 2)
    stage.run(12)
    return stage


def last(stage: Stage) -> Verdict:
    assert not_working(stage)
    return not_working(stage)[-1]


def test_lock_holder__the_thread_that_holds_a_lock_is_named() -> None:
    verdict = last(at_a_lock(Side("futex"), Side("futex")))
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.BLOCKED_LOCK)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.tid) == (2, HOLDER)
    assert verdict.graph[0].endswith(f"rank 2 -> thread {HOLDER} -> none known")
    assert any(f"thread {HOLDER} holds it" in evidence.text for evidence in verdict.evidence)


def test_lock_holder__a_timer_of_another_thread_releases_no_lock() -> None:
    verdict = last(at_a_lock(Side("futex"), Side("timed", period_ns=50 * NS)))
    assert (verdict.kind, verdict.certainty) == (VerdictKind.HUNG, Certainty.INFERRED)


def test_lock_holder__one_that_sleeps_is_waited_for_however_long_it_has_slept() -> None:
    """It began to long before the lock was wanted, and sleeps for a known time."""
    stage = at_a_lock(Side("futex"), Side("timed", period_ns=50 * NS), OTHER)
    assert not_working(stage) == []


@pytest.mark.parametrize(("side", "is_explained"), [("timed", True), ("futex", False)])
def test_lock_holder__in_its_own_pipe_the_time_out_of_the_writing_thread_is_read(
    side: str, *, is_explained: bool
) -> None:
    """A queue of requests of the process's own: the thread that fills it sleeps until the next one."""
    stage = trained()
    rank = stage.rank(2)
    stage.run(30)
    ends = [pipe(stage, rank, fd, 77) for fd in (8, 9)]
    rank.sides = {OTHER: Side(side, period_ns=50 * NS)}
    stage.become(rank, "read", stack=LOCK, files=(ends[0],))
    all_wait(stage, 2)
    stage.run(12)
    assert (not_working(stage) == []) is is_explained


@pytest.mark.parametrize(("side", "is_explained"), [("timed", True), ("futex", False)])
def test_lock_holder__at_its_own_eventfd_the_time_out_of_another_thread_is_read(
    side: str, *, is_explained: bool
) -> None:
    """Who writes to it cannot be seen, but a thread that sleeps until a known moment may be who will."""
    stage = trained()
    rank = stage.rank(2)
    stage.run(30)
    rank.sides = {OTHER: Side(side, period_ns=50 * NS)}
    answer = WaitedFile(8, "eventfd", "anon_inode:[eventfd]", Inode(0), "", "")
    stage.become(rank, "read", stack=LOCK, files=(answer,))
    all_wait(stage, 2)
    stage.run(LONE_FLOOR_S - 20)
    assert (not_working(stage) == []) is is_explained
    assert state(stage, rank.pid) is (State.HELPED if is_explained else State.OTHER)


@pytest.mark.parametrize(
    ("holder", "named", "at_the_end"),
    [
        (100, 0, "process 100: futex"),  # a rank that waits for this one in the collective
        (4711, 1, None),  # a process that is none of the job's
    ],
)
@pytest.mark.parametrize("mode", ["flock", "futex"])
def test_lock_holder__of_a_lock_that_another_process_holds_the_holder_is_named(
    mode: str, holder: int, named: int, at_the_end: str | None
) -> None:
    stage = trained()
    stage.become(stage.rank(1), mode, lock_holders=(holder,))
    all_wait(stage, 1)
    stage.run(12)
    (verdict,) = not_working(stage)
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.cause, verdict.culprit.rank) == (
        VerdictKind.HUNG,
        Cause.BLOCKED_LOCK,
        named,
    )
    texts = [evidence.text for evidence in verdict.evidence if evidence.kind is EvidenceKind.SINK]
    assert (len(texts) > 1) == (at_the_end is not None)
    assert at_the_end is None or at_the_end in texts[1]
    circle = any(evidence.kind is EvidenceKind.STATE for evidence in verdict.evidence)
    assert circle == (at_the_end is not None)


def test_lock_holder__of_a_rank_that_sleeps_with_a_lock_and_one_that_wants_it_the_sleeper_is_named() -> (
    None
):
    stage = trained()
    sleeper = stage.rank(3)
    stage.become(sleeper, "sleep_long", timed=True, deadline_ns=stage.now_ns + 10**18)
    stage.run(0.3)
    stage.become(stage.rank(1), "flock", lock_holders=(sleeper.pid,))
    for rank in (0, 2):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns)
    stage.run(12)
    (verdict,) = not_working(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.BLOCKED_SLEEP, 3)


@pytest.mark.parametrize(("is_endless", "named"), [(True, [1]), (False, [])])
def test_lock_holder__one_that_cannot_end_is_named_though_another_rank_may_wait_for_a_helper(
    is_endless: bool, named: list[int]
) -> None:
    """Of two ranks here the one that waits in the collective has a timer beside it, and is not known as a victim."""
    stage = trained(4, here=2)
    sleeper = stage.add(Proc(700, ppid=101))
    stage.run(3)
    ends_ns = stage.now_ns + (10**14 if is_endless else 60 * NS)
    stage.become(sleeper, "sleep_long", timed=True, deadline_ns=ends_ns)
    stage.become(stage.rank(1), "flock", lock_holders=(sleeper.pid,))
    victim = stage.rank(0)
    stage.become(victim, "futex", stack=BARRIER, last_send_ns=stage.now_ns)
    victim.sides = {victim.pid + 50_000: Side("timed", period_ns=7 * NS)}
    stage.run(12)
    assert state(stage, victim.pid) is State.HELPED
    culprits = [verdict.culprit and verdict.culprit.rank for verdict in not_working(stage)]
    assert culprits == named
