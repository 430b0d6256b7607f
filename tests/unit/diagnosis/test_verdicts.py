"""Verdicts on scripted jobs: every fault and quiet phase that needs no real kernel to be distinguished."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.host import StorageState, WaitedFile
from kcover_ebpf.ids import NS, Inode
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.scripted_job import (
    BARRIER,
    COLLECTIVE,
    LOCK,
    Proc,
    Stage,
    all_wait,
    trained,
)

FAULTS: dict[str, tuple[Callable[[Stage, Proc], None], Cause]] = {
    "lock": (lambda s, p: s.become(p, "futex", stack=LOCK), Cause.BLOCKED_LOCK),
    "sleep": (
        lambda s, p: s.become(p, "sleep_long", timed=True, deadline_ns=s.now_ns + 10**9 * NS),
        Cause.BLOCKED_SLEEP,
    ),
    "fifo": (lambda s, p: s.become(p, "fifo", wait_channel="wait_for_partner"), Cause.BLOCKED_READ),
    "loop": (lambda s, p: s.become(p, "spin"), Cause.SPINNING),
    "fault": (
        lambda s, p: s.become(p, "fault", wait_channel="handle_userfault"),
        Cause.BLOCKED_UNKNOWN,
    ),
    "frozen filesystem": (
        lambda s, p: s.become(
            p,
            "write",
            wait_channel="percpu_rwsem_wait",
            files=(WaitedFile(3, "file", "/mnt/x", Inode(0), "7:0", "ext4"),),
        ),
        Cause.STORAGE,
    ),
    "driver": (lambda s, p: s.become(p, "ioctl"), Cause.DRIVER_STUCK),
}

# reported, but a slow device or server looks the same, and any process may open the other end of a FIFO
UNPROVEN = {"fault", "driver", "fifo"}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("rank", [0, 3])
def test_verdicts__a_rank_that_cannot_continue_is_named(name: str, rank: int) -> None:
    stage = trained()
    inject, cause = FAULTS[name]
    inject(stage, stage.rank(rank))
    all_wait(stage, rank)
    began_ns = stage.now_ns
    verdict = stage.run(12)
    assert verdict is not None
    assert verdict.kind is VerdictKind.HUNG
    assert verdict.culprit is not None
    assert verdict.culprit.rank == rank
    assert verdict.cause is cause
    assert verdict.time_s - began_ns / NS < 10
    assert (verdict.acts_at_s is None) == (name in UNPROVEN)


def test_verdicts__a_stopped_rank_is_named_after_two_seconds_and_a_fault_by_the_policy() -> None:
    stage = trained()
    proc = stage.rank(2)
    stage.stop_signal(proc)
    stage.become(proc, "stopped")
    all_wait(stage, 2)
    verdict = stage.run(3)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.STOPPED)
    verdict = stage.run(3)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.STOPPED)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2
    assert verdict.victims == (0, 1, 3)


@pytest.mark.parametrize("mode", ["stopped", "frozen", "traced"])
def test_verdicts__a_job_stopped_as_a_whole_is_no_fault(mode: str) -> None:
    stage = trained()
    for proc in stage.procs.values():
        stage.become(proc, mode)
    stage.run(60)
    for proc in stage.procs.values():
        stage.become(proc, "train")
    stage.run(20)
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}


QUIET: dict[str, Callable[[Stage, Proc], None]] = {
    "checkpoint": lambda s, p: s.become(p, "write", io_bytes_s=10_000_000),
    "one long write": lambda s, p: s.become(p, "write"),
    "evaluation without calls": lambda s, p: s.become(p, "run"),
    "asynchronous work in other threads": lambda s, p: s.become(
        p, "futex", stack=LOCK, side_cpu=0.8
    ),
    "timed sleep": lambda s, p: s.become(p, "sleep", timed=True, deadline_ns=s.now_ns + 45 * NS),
    "debugger": lambda s, p: s.become(p, "traced"),
    "user": lambda s, p: s.become(
        p, "read", files=(WaitedFile(0, "tty", "/dev/pts/0", Inode(0), "", ""),)
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_verdicts__a_quiet_phase_is_no_fault(name: str) -> None:
    stage = trained()
    QUIET[name](stage, stage.rank(0))
    all_wait(stage, 0)
    stage.run(40)
    for proc in stage.procs.values():
        stage.become(proc, "train", io_bytes_s=0, side_cpu=0.0)
    stage.run(10)
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}, stage.verdicts


def test_verdicts__a_stuck_loader_blames_its_rank() -> None:
    stage = trained()
    loader = stage.add(Proc(501, ppid=101, rank=None))
    stage.run(5)
    stage.become(loader, "sleep_long", timed=True, deadline_ns=stage.now_ns + 10**9 * NS)
    waited = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
    stage.become(stage.rank(1), "poll", files=(waited,))
    all_wait(stage, 1)
    verdict = stage.run(12)
    assert verdict is not None
    assert verdict.cause is Cause.LOADER_STUCK
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.tid) == (1, 501)


def test_verdicts__a_rank_that_polls_for_a_stuck_loader_again_and_again_is_silent_all_the_time() -> (
    None
):
    stage = trained(policy=Policy(stall_floor_s=12))
    loader = stage.add(Proc(501, ppid=101, rank=None))
    stage.run(5)
    stage.become(loader, "fifo", wait_channel="wait_for_partner")
    waited = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
    stage.become(stage.rank(1), "tick", files=(waited,))
    all_wait(stage, 1)
    verdict = stage.run(20)
    assert verdict is not None
    assert verdict.cause is Cause.LOADER_STUCK


def test_verdicts__a_working_loader_is_no_fault() -> None:
    stage = trained()
    loader = stage.add(Proc(501, ppid=101, rank=None))
    stage.become(loader, "run")
    waited = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
    stage.become(stage.rank(1), "poll", files=(waited,))
    all_wait(stage, 1)
    verdict = stage.run(30)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.WORKING, Cause.LOADING)


def test_verdicts__a_cut_off_rank_is_a_lost_link() -> None:
    stage = trained(policy=Policy(link_patience_s=8))
    stage.rank(2).backoff = 4
    all_wait(stage, -1)
    verdict = stage.run(4)
    assert verdict is not None
    assert verdict.kind is VerdictKind.LOST_LINK
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2


@pytest.mark.parametrize(
    ("code", "signal", "cause"),
    [(1, 0, Cause.EXITED), (0, 9, Cause.KILLED), (0, 11, Cause.SEGFAULT), (0, 6, Cause.ABORTED)],
)
def test_verdicts__a_failed_exit_is_reported_within_a_second(
    code: int, signal: int, cause: Cause
) -> None:
    stage = trained()
    stage.exit(stage.rank(3), code, signal)
    verdict = stage.run(1)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, cause)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 3


def test_verdicts__a_rank_that_left_with_code_0_is_blamed_when_the_others_wait() -> None:
    stage = trained()
    stage.exit(stage.rank(1), 0)
    all_wait(stage, 1)
    verdict = stage.run(12)
    assert verdict is not None
    assert verdict.cause is Cause.LEFT_EARLY
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 1


@pytest.mark.parametrize(
    ("waited_s", "certainty"), [(0, Certainty.ANNOUNCED), (9, Certainty.INFERRED)]
)
def test_verdicts__a_rank_that_left_announces_no_stall_that_began_before(
    waited_s: int, certainty: Certainty
) -> None:
    stage = trained()
    all_wait(stage, 1)
    stage.run(waited_s)
    stage.exit(stage.rank(1), 0)
    verdict = stage.run(12)
    assert verdict is not None
    assert (verdict.cause, verdict.certainty) == (Cause.LEFT_EARLY, certainty)


def test_verdicts__of_two_ranks_that_left_the_first_is_blamed() -> None:
    stage = trained()
    for rank in (2, 1):
        stage.exit(stage.rank(rank), 0)
        stage.run(1)
    all_wait(stage, -1)
    verdict = stage.run(12)
    assert verdict is not None
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.LEFT_EARLY, 2)


def test_verdicts__ranks_that_end_one_after_the_other_are_no_fault() -> None:
    stage = trained()
    for rank in range(4):
        stage.exit(stage.rank(rank), 0)
        stage.run(20)
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}


def test_verdicts__two_places_at_once_are_a_mismatch() -> None:
    stage = trained()
    stage.become(stage.rank(2), "futex", stack=BARRIER)
    stage.job.attention.known.learn(BARRIER)
    all_wait(stage, 2)
    verdict = stage.run(12)
    assert verdict is not None
    # each of them is a place where ranks wait in healthy times: the rank is late, and hung only if it stays away
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.COLLECTIVE_MISMATCH)
    verdict = stage.run(12)
    assert verdict is not None
    assert verdict.kind is VerdictKind.DEADLOCK
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2


def test_verdicts__a_chain_without_a_rank_at_its_end_is_reported_without_a_culprit() -> None:
    stage = trained()
    all_wait(stage, -1)
    for seconds, kind in ((15, VerdictKind.UNKNOWN), (10, VerdictKind.HUNG)):
        verdict = stage.run(seconds)
        assert verdict is not None
        assert (verdict.kind, verdict.cause) == (kind, Cause.WAIT_CYCLE)
        assert verdict.culprit is None


def test_verdicts__busy_waiters_are_victims() -> None:
    stage = trained(connected=False)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    for rank in (0, 2, 3):
        stage.become(stage.rank(rank), "yield")
    verdict = stage.run(12)
    assert verdict is not None
    assert verdict.cause is Cause.BLOCKED_LOCK
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 1


def test_verdicts__passes_that_come_too_late_freeze_the_verdict() -> None:
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    for _ in range(40):
        stage.one_pass(NS // 4, late=True)
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}


def test_verdicts__a_suspended_node_triggers_nothing() -> None:
    stage = trained()
    stage.now_ns += 3600 * NS
    stage.one_pass(NS, late=True)
    stage.run(20)
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}


def test_verdicts__storage_with_requests_in_flight_and_none_completed_is_stuck() -> None:
    stage = trained()
    state = StorageState("8:0", inflight_count=3, completed_count=100, suspended=False)
    file = WaitedFile(3, "file", "/data/x", Inode(0), "8:0", "ext4")
    stage.become(stage.rank(0), "write", files=(file,), storage=state)
    all_wait(stage, 0)
    verdict = stage.run(60)
    assert verdict is not None
    assert verdict.cause is Cause.STORAGE
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 0


def test_verdicts__a_fault_that_ends_is_followed_by_working() -> None:
    stage = trained()
    stage.become(stage.rank(0), "stopped")
    all_wait(stage, 0)
    stage.run(6)
    for proc in stage.procs.values():
        stage.become(proc, "train")
    verdict = stage.run(10)
    assert [other_verdict.kind for other_verdict in stage.verdicts[-2:]] == [
        VerdictKind.HUNG,
        VerdictKind.WORKING,
    ]
    assert verdict is not None
    assert verdict.cause is Cause.TRAINING


def without_rank_2(**changes: object) -> Stage:
    """The first two of three ranks wait for the last, which does not come."""
    stage = Stage(world=3, policy=Policy(start_grace_s=30), connected=False)
    del stage.procs[102]
    stage.job.members.views.clear()
    for proc in list(stage.procs.values()):
        stage.add(proc)
        stage.become(proc, "poll", **changes)
    return stage


def test_verdicts__a_missing_rank_is_named_but_never_ends_a_job() -> None:
    stage = without_rank_2()
    stage.run(29)
    assert stage.verdicts[-1].kind is VerdictKind.WORKING
    verdict = stage.run(16)
    assert verdict is not None
    assert verdict.cause is Cause.MISSING_RANK
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2
    assert decide(verdict, Act.RESTART).act is Act.SNAPSHOT
    stage.run(200)
    assert stage.tracker.latest is not None
    assert decide(stage.tracker.latest, Act.RESTART).act is Act.SNAPSHOT
    reported = [
        other_verdict.cause
        for other_verdict in stage.verdicts
        if other_verdict.kind is not VerdictKind.WORKING
    ]
    assert reported == [Cause.MISSING_RANK]


def test_verdicts__no_rank_is_missing_while_those_that_came_are_at_work() -> None:
    stage = without_rank_2(side_cpu=0.5)
    stage.run(45)
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}


def test_verdicts__waits_known_from_the_start_excuse_no_rank_before_the_first_step() -> None:
    stage = Stage(world=3)
    stage.job.attention.known.learn(LOCK)
    stage.become(stage.rank(0), "futex", stack=LOCK)
    for rank in (1, 2):
        stage.become(stage.rank(rank), "futex", stack=COLLECTIVE)
    verdict = stage.run(30)
    assert verdict is not None
    assert verdict.kind is not VerdictKind.WORKING
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 0


def test_verdicts__time_alone_ends_a_job_only_by_the_hard_limit() -> None:
    stage = trained(policy=Policy(hard_limit_s=30))
    stage.become(stage.rank(0), "run")
    all_wait(stage, 0)
    verdict = stage.run(50)
    assert verdict is not None
    assert verdict.kind is VerdictKind.HUNG
    assert decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_verdicts__a_lost_link_is_reported_at_once_and_ends_the_job_only_when_it_stays_lost() -> (
    None
):
    stage = trained(policy=Policy(link_patience_s=8))
    stage.rank(2).backoff = 4
    all_wait(stage, -1)
    verdict = stage.run(4)
    assert verdict is not None
    assert verdict.kind is VerdictKind.LOST_LINK
    assert decide(verdict, Act.SHUTDOWN).act is Act.SNAPSHOT
    stage.run(8)
    latest = stage.tracker.latest
    assert latest is not None
    assert decide(latest, Act.SHUTDOWN).act is Act.SHUTDOWN
