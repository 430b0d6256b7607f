"""What can happen to a job of four ranks, each with the verdict, cause and rank that must be reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kcover_ebpf.facts.host import CollectiveRank, CollectiveSide, WaitedFile
from kcover_ebpf.facts.kernel import SignalSent
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.scripted_job import BARRIER, LOCK, Proc, pipe
from tests.unit.support.two_nodes import Recorded


def others(stage: Recorded, odd: int, mode: str = "futex") -> None:
    for number in range(stage.world):
        if number != odd:
            stage.become(stage.rank(number), mode)


def stopped(stage: Recorded) -> None:
    stage.become(stage.rank(1), "stopped")
    stage.stop_signal(stage.rank(1))
    others(stage, 1)
    stage.run(8)


def at_a_lock(stage: Recorded) -> None:
    stage.become(stage.rank(2), "futex", stack=LOCK)
    others(stage, 2)
    stage.run(8)


def asleep(stage: Recorded) -> None:
    stage.become(stage.rank(3), "sleep_long", deadline_ns=stage.now_ns + 3600 * NS, timed=True)
    others(stage, 3)
    stage.run(8)


def in_the_driver(stage: Recorded) -> None:
    stage.become(stage.rank(3), "ioctl")
    others(stage, 3)
    stage.run(12)


def spins_alone(stage: Recorded) -> None:
    stage.become(stage.rank(3), "spin")
    others(stage, 3)
    stage.run(10)


def its_loader(stage: Recorded) -> None:
    worker = stage.add(Proc(301, ppid=101))
    stage.run(10)
    stage.become(worker, "sleep_long", timed=True, deadline_ns=stage.now_ns + 10**9 * NS)
    waited = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
    stage.become(stage.rank(1), "poll", files=(waited,))
    others(stage, 1)
    stage.run(12)


def ends_with_an_error(stage: Recorded) -> None:
    stage.exit(stage.rank(1), code=1)
    others(stage, 1)
    stage.run(6)


def is_killed(stage: Recorded) -> None:
    stage.exit(stage.rank(2), signal=9)
    others(stage, 2)
    stage.run(6)


def is_killed_by_its_launcher(stage: Recorded) -> None:
    """The others wait for it to run again, and began to one after the other."""
    stage.add(Proc(50, argv=("torchrun", "train.py"), mode="tick"))
    stage.run(5)
    victim = stage.rank(2)
    sent = SignalSent(stage.now_ns, Pid(victim.pid), Tid(victim.pid), 9, Pid(50), "torchrun")
    stage.feed(sent)
    stage.exit(victim, signal=9)
    for late, number in enumerate((0, 1, 3)):
        sent_ns = stage.now_ns + late * 100_000_000
        stage.become(stage.rank(number), "futex", last_send_ns=sent_ns)
    stage.run(60)


def leaves_early(stage: Recorded) -> None:
    stage.exit(stage.rank(1))
    others(stage, 1)
    stage.run(10)


def mismatch_by_stack(stage: Recorded) -> None:
    stage.become(stage.rank(3), "futex", stack=BARRIER)
    others(stage, 3)
    stage.run(8)


def all_wait(stage: Recorded) -> None:
    others(stage, -1, "yield")
    stage.run(25)


def link_lost(stage: Recorded) -> None:
    others(stage, -1)
    stage.rank(1).backoff = 6
    stage.run(10)


def writes(stage: Recorded) -> None:
    stage.become(stage.rank(0), "write", io_bytes_s=50_000_000)
    others(stage, 0)
    stage.run(20)


def computes(stage: Recorded) -> None:
    stage.become(stage.rank(0), "run")
    others(stage, 0)
    stage.run(20)


def computes_for_long(stage: Recorded) -> None:
    """A Python loop, or an evaluation."""
    stage.become(stage.rank(0), "run")
    others(stage, 0)
    stage.run(100)


def awaits_its_child(stage: Recorded) -> None:
    """A program that it started never ends; its peers ask for their collective every few milliseconds."""
    child = stage.add(Proc(301, ppid=101, argv=("fetch", "data")))
    stage.run(5)
    stage.become(child, "sleep_long", timed=True, deadline_ns=stage.now_ns + 10**9 * NS)
    for number in (0, 2, 3):
        stage.become(stage.rank(number), "nap", naps_per_s=300)
    for _ in range(8):
        waited = pipe(stage, child, 1, 88)
        stage.become(stage.rank(1), "read", files=(replace(waited, fd=9),), stack=LOCK)
        stage.run(1)


def its_spawned_loader_is_stopped(stage: Recorded) -> None:
    argv = (
        "python3",
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)",
    )
    worker = stage.add(Proc(303, ppid=103, argv=(*argv, "--multiprocessing-fork")))
    stage.run(10)
    stage.become(worker, "stopped")
    stage.stop_signal(worker)
    others(stage, 3)
    for _ in range(8):
        waited = pipe(stage, worker, 7, 900)
        stage.become(stage.rank(3), "poll", files=(replace(waited, fd=9),), stack=LOCK)
        stage.run(1)


def its_reader_is_stuck(stage: Recorded) -> None:
    """A thread of it reads no more, while the first one waits on a queue as in every step."""
    others(stage, -1)
    stage.run(0.2)
    stage.rank(2).unread = 8192
    stage.run(8)


def trains(stage: Recorded) -> None:
    stage.run(5)


def by_nccl(number: int, **more: object) -> CollectiveRank:
    rank = CollectiveRank(number, 4, f"10.0.0.{number}", Pid(100 + number), 6, 7, comm="0x1")
    rank = replace(rank, pid_inside=100 + number)
    return replace(rank, **more)  # type: ignore[arg-type]


def ras(mode: str = "spin", **said: object) -> Callable[[Recorded], None]:
    def act(stage: Recorded) -> None:
        others(stage, -1, mode)
        stage.run(3)
        stage.ask(15, **said)

    return act


def behind_at_a_lock(stage: Recorded) -> None:
    stage.become(stage.rank(1), "futex", stack=LOCK)
    others(stage, 1, "run")
    stage.run(3)
    stage.ask(10, behind=(by_nccl(1),), equal=False)


ODD_OF_TWO = by_nccl(0, size=2, pid=Pid(103), pid_inside=103, host="10.0.0.3")


def behind_in_a_subgroup(stage: Recorded) -> None:
    """Number 0 of two there, rank 3 of the job: only its own node knows which process that is."""
    stage.become(stage.rank(3), "futex", stack=LOCK)
    others(stage, 3, "run")
    stage.run(3)
    stage.ask(10, behind=(ODD_OF_TWO,), equal=False)


def behind_and_elsewhere(stage: Recorded) -> None:
    stage.become(stage.rank(0), "poll")
    others(stage, 0, "run")
    stage.run(3)
    stage.ask(20, behind=(by_nccl(0),), equal=False)


SIDES = (
    CollectiveSide("AllGather 50, AllReduce 101", 3, (0, 1, 2)),
    CollectiveSide("AllGather 51, AllReduce 100", 1, (3,)),
)
FAILED = by_nccl(2, trouble="system error")

STORIES: dict[str, tuple[Callable[[Recorded], None], VerdictKind, Cause, int | None]] = {
    "a rank is stopped": (stopped, VerdictKind.HUNG, Cause.STOPPED, 1),
    "a rank waits for a lock": (at_a_lock, VerdictKind.HUNG, Cause.BLOCKED_LOCK, 2),
    "a rank sleeps": (asleep, VerdictKind.HUNG, Cause.BLOCKED_SLEEP, 3),
    "a rank is in its driver": (in_the_driver, VerdictKind.HUNG, Cause.DRIVER_STUCK, 3),
    "a rank spins": (spins_alone, VerdictKind.HUNG, Cause.SPINNING, 3),
    "a loader sleeps": (its_loader, VerdictKind.HUNG, Cause.LOADER_STUCK, 1),
    "a rank ends with an error": (ends_with_an_error, VerdictKind.CRASHED, Cause.EXITED, 1),
    "a rank is killed": (is_killed, VerdictKind.CRASHED, Cause.KILLED, 2),
    "a rank is killed by its launcher": (
        is_killed_by_its_launcher,
        VerdictKind.CRASHED,
        Cause.KILLED,
        2,
    ),
    "a rank leaves early": (leaves_early, VerdictKind.HUNG, Cause.LEFT_EARLY, 1),
    "a rank is in another collective": (
        mismatch_by_stack,
        VerdictKind.DEADLOCK,
        Cause.COLLECTIVE_MISMATCH,
        3,
    ),
    "all wait": (all_wait, VerdictKind.HUNG, Cause.WAIT_CYCLE, None),
    "a link is lost": (link_lost, VerdictKind.LOST_LINK, Cause.LINK, 1),
    "a rank writes": (writes, VerdictKind.WORKING, Cause.CHECKPOINT, None),
    "a rank computes": (computes, VerdictKind.WORKING, Cause.COMPUTING, None),
    "a rank computes for long": (
        computes_for_long,
        VerdictKind.UNKNOWN,
        Cause.COMPUTING,
        0,
    ),
    "a rank waits for its child": (
        awaits_its_child,
        VerdictKind.HUNG,
        Cause.LOADER_STUCK,
        1,
    ),
    "a spawned loader is stopped": (
        its_spawned_loader_is_stopped,
        VerdictKind.HUNG,
        Cause.LOADER_STUCK,
        3,
    ),
    "a thread that should read does not": (
        its_reader_is_stuck,
        VerdictKind.UNKNOWN,
        Cause.BLOCKED_READ,
        2,
    ),
    "all train": (trains, VerdictKind.WORKING, Cause.TRAINING, None),
    "NCCL: one is behind": (
        ras(behind=(by_nccl(2),), equal=False),
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        2,
    ),
    "NCCL: one is behind, at a lock": (
        behind_at_a_lock,
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        1,
    ),
    "NCCL: one is behind in a communicator of two": (
        behind_in_a_subgroup,
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        3,
    ),
    "NCCL: one is behind and may come": (
        behind_and_elsewhere,
        VerdictKind.WORKING,
        Cause.COMPUTING,
        None,
    ),
    "NCCL: two are behind": (
        ras(behind=(by_nccl(1), by_nccl(2)), equal=False),
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        None,
    ),
    "NCCL: one does not answer": (
        ras(missing=(by_nccl(3),)),
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
        3,
    ),
    "NCCL: one called another operation": (
        ras("run", odd=(by_nccl(3),), sides=SIDES, equal=False),
        VerdictKind.DEADLOCK,
        Cause.COLLECTIVE_MISMATCH,
        3,
    ),
    "NCCL: a communicator failed": (
        ras("run", failed=(FAILED,)),
        VerdictKind.HUNG,
        Cause.COLLECTIVE_FAILED,
        2,
    ),
    "NCCL: all have joined": (ras("yield"), VerdictKind.UNKNOWN, Cause.COLLECTIVE_STUCK, None),
}
