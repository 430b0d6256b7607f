"""Healthy jobs that were ended once, or nearly: each phase here must not end a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.facts.host import StorageState, WaitedFile
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.verdict import Cause, Certainty, Verdict, VerdictKind
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.report_builders import case, report
from tests.unit.support.report_builders import rank as reported
from tests.unit.support.scripted_job import COLLECTIVE, LOCK, Proc, Stage, trained

SOCKET = WaitedFile(10, "socket", "socket:[1]", Inode(1), "", "")
BUCKET = WaitedFile(9, "file", "/mnt/bucket/checkpoint.pt", Inode(5), "0:55", "fuse")
SHARD = WaitedFile(9, "file", "/data/shard", Inode(5), "259:0", "xfs")


def ends(verdict: Verdict) -> bool:
    return decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN


def faults(stage: Stage, since: int = 0) -> list[Verdict]:
    return [verdict for verdict in stage.verdicts[since:] if verdict.kind.is_fault]


def shutdowns(stage: Stage, since: int = 0) -> list[Verdict]:
    return [verdict for verdict in stage.verdicts[since:] if ends(verdict)]


def burnt(
    world: int = 8, seconds: float = 300, mode: str = "run", policy: Policy | None = None
) -> Stage:
    """A job whose ranks talked at their start and burn a CPU each ever since."""
    stage = Stage(world=world, policy=policy or Policy())
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


@pytest.mark.parametrize(
    "part", [0.3, 0.95, *(pytest.param(x, marks=pytest.mark.long) for x in (0.6, 0.7))]
)
@pytest.mark.parametrize("name", WAITS)
def test_false_shutdowns__a_wait_after_a_long_burn_begins_when_the_burn_ends(
    name: str, part: float
) -> None:
    stage = burnt()
    reported, mode, changes = len(stage.verdicts), *WAITS[name]
    for rank in range(8):
        into_a_wait(stage, stage.rank(rank), mode, part, **changes)
    stage.run(6)
    assert faults(stage, reported) == []


@pytest.mark.parametrize("part", [0.3, pytest.param(0.7, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", ["frozen", "stopped"])
def test_false_shutdowns__a_short_stop_after_a_long_burn_is_not_dated_back_into_it(
    mode: str, part: float
) -> None:
    stage = burnt()
    reported = len(stage.verdicts)
    into_a_wait(stage, stage.rank(5), mode, part)
    stage.one_pass(NS)
    for _ in range(3):
        stage.one_pass(NS // 4)
    assert faults(stage, reported) == []
    verdict = stage.run(3)
    assert verdict is not None
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 5
    assert verdict.time_s - verdict.since_s < 5


@pytest.mark.parametrize("mode", ["frozen", "stopped"])
def test_false_shutdowns__a_short_stop_of_a_rank_that_sleeps_is_not_dated_back_into_its_sleep(
    mode: str,
) -> None:
    """It stays in the call that it slept in: the host of a rank on a GPU may sleep for most of a step."""
    stage = Stage(world=8)
    drive(stage, 140, [(1, "train"), (6, "futex")])
    reported = len(stage.verdicts)
    for proc in stage.procs.values():
        stage.become(proc, "futex", stack=COLLECTIVE)
    stage.run(4)
    stage.become(stage.rank(5), mode)
    stage.stop_signal(stage.rank(5))
    stage.run(1)
    assert faults(stage, reported) == []
    verdict = stage.run(3)
    assert verdict is not None
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 5


def test_false_shutdowns__among_ranks_that_spin_the_one_in_a_lock_is_named() -> None:
    stage = burnt(seconds=5, mode="spin")
    stage.become(stage.rank(3), "futex", stack=LOCK)
    verdict = stage.run(20)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.BLOCKED_LOCK)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 3


@pytest.mark.parametrize("first_waits_elsewhere", [False, True])
def test_job__a_rank_that_comes_late_is_waited_for(*, first_waits_elsewhere: bool) -> None:
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


def drive(stage: Stage, seconds: float, phases: list[tuple[float, str]]) -> None:
    """All ranks repeat phases of (seconds, mode) together."""
    turn, left_s = 0, 0.0
    until_ns = stage.now_ns + int(seconds * NS)
    while stage.now_ns < until_ns:
        if left_s <= 0:
            left_s, mode = phases[turn % len(phases)]
            turn += 1
            for proc in stage.procs.values():
                stage.become(proc, mode, stack=COLLECTIVE)
        period_ns = NS // 4 if stage.job.urgent else NS
        stage.one_pass(period_ns)
        left_s -= period_ns / NS


@pytest.mark.parametrize("world", [2, pytest.param(8, marks=pytest.mark.long)])
def test_false_shutdowns__ranks_that_burn_their_cpu_for_longer_than_the_cap_are_reported_at_most(
    world: int,
) -> None:
    stage = burnt(world, 32 * 60)
    assert shutdowns(stage) == []


def test_false_shutdowns__a_compilation_beyond_the_cap_is_reported_at_most() -> None:
    stage = Stage(world=2)
    argv = ("python3", "-m", "torch._inductor.compile_worker")
    for rank in range(2):
        stage.add(Proc(500 + rank, ppid=100 + rank, argv=argv, mode="run"))
    stage.run(4)
    for rank in range(2):
        stage.become(stage.rank(rank), "futex", stack=LOCK)
    stage.run(32 * 60)
    assert [fault.kind for fault in faults(stage)] == [VerdictKind.HUNG]
    assert shutdowns(stage) == []


def test_false_shutdowns__what_the_cap_reports_is_ended_by_the_hard_limit() -> None:
    stage = burnt(2, 32 * 60, policy=Policy(hard_limit_s=1800))
    latest = stage.tracker.latest
    assert latest is not None
    assert decide(latest, Act.SHUTDOWN).act is Act.SHUTDOWN


@pytest.mark.parametrize("mode", ["spin", "futex", "yield", "poll"])
def test_false_shutdowns__a_step_of_twenty_seconds_on_the_device_is_reported_at_most(
    mode: str,
) -> None:
    stage = Stage(world=8)
    stage.run(4)
    files = (SOCKET,) if mode == "poll" else ()
    for proc in stage.procs.values():
        proc.files = files
    drive(stage, 300, [(2, "run"), (18, mode)])
    assert shutdowns(stage) == []


def test_false_shutdowns__a_service_without_requests_is_reported_at_most() -> None:
    stage = Stage(world=2)
    stage.run(120)
    for rank in range(2):
        stage.become(stage.rank(rank), "poll", files=(SOCKET,))
    stage.run(60)
    assert shutdowns(stage) == []


# what rank 0 does while the others wait for it: its mode, and what is seen of it
ELSEWHERE: dict[str, tuple[str, dict[str, object]]] = {
    "a close that uploads": ("write", {"files": (BUCKET,), "wait_channel": "request_wait_answer"}),
    "an fsync on Lustre": ("write", {"files": (BUCKET,), "wait_channel": "cl_sync_io_wait"}),
    "an fsync on NFS": ("write", {"files": (BUCKET,), "wait_channel": "nfs_wait_on_request"}),
    "a page of a cold file": ("fault", {"wait_channel": "folio_wait_bit_common"}),
    "a call of the driver": ("ioctl", {}),
    "an evaluation": ("run", {}),
    "a lock that another job holds": ("flock", {"lock_holders": (4711,)}),
}


@pytest.mark.parametrize("seconds", [50, 400])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_false_shutdowns__a_rank_that_waits_for_something_outside_the_job_ends_nothing(
    name: str, seconds: int
) -> None:
    """It sent before all others, left bytes unread and is where no rank ever was: as at every checkpoint."""
    stage = trained()
    mode, changes = ELSEWHERE[name]
    stage.become(stage.rank(0), mode, stack=LOCK, unread=4096, **changes)
    for rank in range(1, 4):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns + NS // 4)
    stage.run(seconds)
    assert shutdowns(stage) == []


@pytest.mark.parametrize("who", [1, 4])
def test_false_shutdowns__storage_that_answers_is_at_work_however_long_one_call_lasts(
    who: int,
) -> None:
    stage = trained()
    disk = StorageState("259:0", 64, 1000, suspended=False)
    for rank in range(4):
        mode = "write" if rank < who else "futex"
        stage.become(
            stage.rank(rank), mode, stack=LOCK, files=(SHARD,), last_send_ns=stage.now_ns + rank
        )
    for _ in range(600):
        disk = replace(disk, completed_count=disk.completed_count + 50)
        for rank in range(who):
            stage.rank(rank).storage = disk
        stage.run(1)
    assert faults(stage) == []


@pytest.mark.parametrize("mode", ["poll", "futex"])
def test_false_shutdowns__a_loader_that_waits_for_the_network_ends_nothing(mode: str) -> None:
    """Its connections are not sampled, and a pool of threads in it waits where its first one does not."""
    stage = trained()
    loader = stage.add(Proc(501, ppid=101))
    stage.run(5)
    stage.become(loader, mode, files=(SOCKET,), stack=LOCK)
    pipe = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
    stage.become(stage.rank(1), "poll", files=(pipe,))
    for rank in (0, 2, 3):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns + NS // 4)
    stage.run(60)
    assert shutdowns(stage) == []


def test_false_shutdowns__a_rank_that_reads_nothing_while_it_stores_is_not_blamed_for_its_closed_window() -> (
    None
):
    stage = trained()
    stage.become(stage.rank(0), "write", files=(BUCKET,), wait_channel="request_wait_answer")
    for rank in range(1, 4):
        stage.become(stage.rank(rank), "futex")
    for seconds in range(360):
        stage.run(1)
        for rank in range(1, 4):
            view = stage.job.members.ranks[Pid(100 + rank)]
            for fd, sample in list(view.sockets.items()):
                view.sockets[fd] = replace(sample, unsent_bytes=1 << 20)
        assert not ends(stage.tracker.snapshot(stage.job, 0.0)), seconds


@pytest.mark.parametrize("come", [3, 4])
def test_certainty__ranks_of_two_nodes_that_wait_for_the_last_one_are_no_mismatch(
    come: int,
) -> None:
    """Two places in the code, one of them of a single rank: a mismatch, once all have come."""
    ranks = [reported(number, sent_age_s=9.0 - number, known_wait=False) for number in range(come)]
    ranks[1] = replace(ranks[1], stack=LOCK)
    seen = [
        report(node, *(rank for rank in ranks if (rank.rank or 0) % 2 == part), trained=False)
        for part, node in enumerate("ab")
    ]
    merged = merge(case(*seen, pods=come))
    assert (merged.verdict.certainty is Certainty.INFERRED) == (come == 4)


def test_certainty__a_rank_whose_pod_still_fetches_its_data_is_reported_at_most() -> None:
    ranks = [reported(number, age_s=400.0) for number in (0, 1, 2)]
    seen = (
        report("a", ranks[0], ranks[2], trained=False),
        report("b", ranks[1], trained=False),
    )
    merged = merge(case(*seen))
    assert merged.verdict.cause is Cause.MISSING_RANK
    assert merged.verdict.certainty not in (Certainty.ANNOUNCED, Certainty.PROVEN)
