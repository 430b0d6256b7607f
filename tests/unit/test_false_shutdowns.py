"""Healthy jobs that were ended once, or nearly: each phase here must not end a job."""

from __future__ import annotations

import pytest

from kcover_ebpf.decisions import decide
from kcover_ebpf.host_facts import WaitedFile
from kcover_ebpf.ids import Inode
from kcover_ebpf.incidents.job import Job
from kcover_ebpf.incidents.verdict import Cause, Kind, Verdict
from kcover_ebpf.settings import Act
from kcover_ebpf.syscalls import SyscallTable

from .scene import LOCK, NS, Proc, Stage

SOCKET = WaitedFile(10, "socket", "socket:[1]", Inode(1), "", "")
SHARD = WaitedFile(9, "file", "/data/shard", Inode(5), "259:0", "xfs")


def ends(verdict: Verdict) -> bool:
    return decide(verdict, Act.SHUTDOWN, None, 8.0).act is Act.SHUTDOWN


def faults(stage: Stage, since: int = 0) -> list[Verdict]:
    return [each for each in stage.verdicts[since:] if each.kind.is_fault]


def shutdowns(stage: Stage, since: int = 0) -> list[Verdict]:
    return [each for each in stage.verdicts[since:] if ends(each)]


def burnt(world: int = 8, seconds: float = 300, mode: str = "run") -> Stage:
    """A job whose ranks talked at their start and burn a CPU each ever since."""
    stage = Stage(world=world)
    stage.run(5)
    for rank in range(world):
        stage.become(stage.rank(rank), mode)
    stage.run(seconds)
    return stage


def into_a_wait(stage: Stage, proc: Proc, mode: str, part: float, **changes: object) -> None:
    """The process sleeps from `part` of the next pass of one second on; until then it burns.

    The kernel says of such a thread when it got its CPU, which is when the burn began.
    """
    burn_began_ns = proc.mode_since_ns
    stage.become(proc, mode, **changes)
    proc.cpu_ns += int(part * NS)
    proc.mode_since_ns = burn_began_ns


# what all ranks do for six seconds at the end of a long burn
WAITS = {
    "a barrier": ("futex", {}),
    "an fsync": ("write", {"files": (SHARD,), "wait_channel": "folio_wait_bit_common"}),
    "a driver call": ("ioctl", {}),
}


@pytest.mark.parametrize("part", [0.3, 0.6, 0.7, 0.95])
@pytest.mark.parametrize("name", WAITS)
def test_a_wait_after_a_long_burn_begins_when_the_burn_ends(name: str, part: float) -> None:
    stage = burnt()
    told, mode, changes = len(stage.verdicts), *WAITS[name]
    for rank in range(8):
        into_a_wait(stage, stage.rank(rank), mode, part, **changes)
    stage.run(6)
    assert faults(stage, told) == []


@pytest.mark.parametrize("part", [0.3, 0.7])
@pytest.mark.parametrize("mode", ["frozen", "stopped"])
def test_a_short_stop_after_a_long_burn_is_not_dated_back_into_it(mode: str, part: float) -> None:
    stage = burnt()
    told = len(stage.verdicts)
    into_a_wait(stage, stage.rank(5), mode, part)
    stage.one_pass(NS)
    for _ in range(3):
        stage.one_pass(NS // 4)
    assert faults(stage, told) == []
    verdict = stage.run(3)
    assert verdict is not None
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 5
    assert verdict.time_s - verdict.since_s < 5


def test_among_ranks_that_spin_the_one_in_a_lock_is_named() -> None:
    stage = burnt(seconds=5, mode="spin")
    stage.become(stage.rank(3), "futex", stack=LOCK)
    verdict = stage.run(20)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (Kind.HUNG, Cause.BLOCKED_LOCK)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 3


@pytest.mark.parametrize("first_waits_elsewhere", [False, True])
def test_a_rank_that_comes_late_is_waited_for(*, first_waits_elsewhere: bool) -> None:
    """Seven ranks connect one after the other and wait for the eighth, which loads for 19 s more."""
    stage = Stage(world=8)
    stage.job = Job(stage.policy, SyscallTable("x86_64"), whole=True)
    came = [stage.rank(rank) for rank in range(7)]
    stage.procs.clear()
    for number, proc in enumerate(came):
        stage.add(proc)
        stage.become(proc, "poll", files=(SOCKET,), last_send_ns=stage.now_ns + number * NS // 10)
    if first_waits_elsewhere:
        stage.become(came[0], "futex", stack=LOCK)
        for proc in came[1:]:
            stage.become(proc, "futex")
    stage.run(19)
    assert faults(stage) == []
