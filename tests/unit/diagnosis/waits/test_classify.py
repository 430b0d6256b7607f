"""The position of one process: its state, since when, and in which words it is described."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


def snapshot_of(stage: Stage, pid: int) -> RankSnapshot:
    return stage.job.snapshot().processes[Pid(pid)]


def after(mode: str, changes: dict[str, object]) -> RankSnapshot:
    """Rank 1 after so long in `mode`, while the others wait for it."""
    stage = trained()
    stage.become(stage.rank(1), mode, **changes)
    all_wait(stage, 1)
    stage.run(6)
    return snapshot_of(stage, 101)


FD0 = WaitedFile(0, "pipe", "pipe:[1]", Inode(1), "", "")
TTY = WaitedFile(7, "tty", "/dev/pts/0", Inode(0), "", "")
FILE = WaitedFile(3, "file", "/x", Inode(0), "8:0", "ext4")
PIPE = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")


@pytest.mark.parametrize(
    ("mode", "changes", "state"),
    [
        ("futex", {}, State.FUTEX),
        ("run", {}, State.COMPUTING),
        ("spin", {}, State.SPINNING),
        ("yield", {}, State.PEERS),
        ("stopped", {}, State.STOPPED),
        ("frozen", {}, State.FROZEN),
        ("traced", {}, State.TRACED),
        ("sleep", {}, State.SLEEPING),
        ("fault", {}, State.FAULTING),
        ("ioctl", {}, State.DEVICE),
        ("throttled", {}, State.THROTTLED),
        ("read", {"files": (FD0,)}, State.USER),
        ("read", {"files": (TTY,)}, State.USER),
        ("read", {"files": (FILE,)}, State.STORAGE),
        ("read", {"files": (PIPE,)}, State.OUTSIDE),
        ("poll", {}, State.PEERS),
        ("write", {}, State.STORAGE),
        ("write", {"io_bytes_s": 1_000_000}, State.STORING),
        ("fifo", {"wait_channel": "wait_for_partner"}, State.READ),
        ("fifo", {}, State.STORAGE),
        ("futex", {"side_cpu": 0.5}, State.COMPUTING),
        ("futex", {"side_cpu": 0.02}, State.FUTEX),
        ("futex", {"io_bytes_s": 1_000_000}, State.STORING),
        ("futex", {"io_bytes_s": 5_000}, State.FUTEX),
    ],
)
def test_classify__the_state_of_a_rank(mode: str, changes: dict[str, object], state: State) -> None:
    assert after(mode, changes).state is state


@pytest.mark.parametrize(("quiet_s", "state"), [(4, State.STORING), (9, State.STORAGE)])
def test_classify__one_long_storage_call_is_charged_when_it_begins(
    quiet_s: int, state: State
) -> None:
    stage = trained()
    rank = stage.rank(1)
    stage.become(rank, "write", io_bytes_s=1_000_000)
    all_wait(stage, 1)
    stage.run(1)
    rank.io_bytes_s = 0
    stage.run(quiet_s)
    assert snapshot_of(stage, 101).state is state


@pytest.mark.parametrize(
    ("wanted", "state"), [(0.97, State.THROTTLED), (0.6, State.COMPUTING), (0.0, State.COMPUTING)]
)
def test_classify__who_gets_no_cpu_is_distinguished_from_who_shares_one(
    wanted: float, state: State
) -> None:
    """`wanted`: the share of the time in which it was ready and did not run."""
    stage = trained()
    rank = stage.rank(1)
    stage.become(rank, "run")
    for _ in range(24):
        rank.cpu_ns -= int(wanted * NS / 4)
        rank.delay_ns += int(wanted * NS / 4)
        stage.one_pass(NS // 4)
    assert snapshot_of(stage, 101).state is state


@pytest.mark.parametrize(
    ("throttled_share", "found"),
    [(0.98, (VerdictKind.SLOW, Cause.CPU_THROTTLED)), (0.3, (VerdictKind.WORKING, Cause.TRAINING))],
)
def test_classify__a_rank_whose_quota_leaves_it_no_cpu_is_named(
    throttled_share: float, found: tuple[VerdictKind, Cause]
) -> None:
    """It moves now and then, so it is never silent, and the kernel counts no wait for a CPU."""
    stage = trained()
    stage.become(stage.rank(1), "quota", throttled_share=throttled_share)
    all_wait(stage, 1)
    verdict = stage.run(20)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == found
    if verdict.kind is VerdictKind.SLOW:
        assert verdict.culprit is not None
        assert verdict.culprit.rank == 1
        assert "throttled by the CPU quota of its control group" in verdict.evidence[0].text


@pytest.mark.parametrize(
    ("ranks", "lasts_s", "named"), [((1,), 60, [1]), ((1,), 12, []), ((0, 1), 60, [])]
)
def test_classify__a_rank_that_a_quota_slows_alone_is_named_wherever_it_is_found(
    ranks: tuple[int, ...], lasts_s: float, named: list[int]
) -> None:
    """As on MPI, whose ranks poll all the time: it is found in a wait as often as the others."""
    stage = trained()
    for rank in ranks:
        stage.rank(rank).throttled_share = 0.9
    stage.run(lasts_s)
    for rank in ranks:
        stage.rank(rank).throttled_share = 0.0
    found = {
        (verdict.kind, verdict.cause, verdict.culprit and verdict.culprit.rank)
        for verdict in not_working(stage)
    }
    assert found == {(VerdictKind.SLOW, Cause.CPU_THROTTLED, rank) for rank in named}
    assert all(
        decide(verdict, Act.RESTART).act is not Act.RESTART for verdict in not_working(stage)
    )


def test_classify__ranks_that_share_a_quota_are_no_culprits() -> None:
    stage = trained()
    for rank in range(4):
        stage.become(stage.rank(rank), "quota", throttled_share=0.98)
    verdict = stage.run(20)
    assert verdict is not None
    assert verdict.kind is VerdictKind.WORKING


def test_classify__what_was_seen_in_an_earlier_wait_explains_no_later_one() -> None:
    stage = trained()
    rank = stage.rank(1)
    stage.become(rank, "read", files=(PIPE,))
    all_wait(stage, 1)
    stage.run(4)
    assert snapshot_of(stage, 101).thread_read
    stage.become(rank, "run")
    stage.one_pass(NS // 4)
    assert not snapshot_of(stage, 101).thread_read


def test_classify__silence_is_counted_from_the_moment_the_wait_began() -> None:
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    began_ns = stage.now_ns
    stage.run(9)
    waited_s = (stage.now_ns - began_ns) / NS
    assert snapshot_of(stage, 101).age_s == pytest.approx(waited_s, abs=1)
    assert snapshot_of(stage, 101).capped(waited_s - 5).age_s == waited_s - 5


def test_classify__a_process_that_was_never_sampled_counts_as_moving() -> None:
    stage = trained()
    stage.add(Proc(501, ppid=101))
    stage.job.finding()
    stage.one_pass(NS)
    stage.job.members.views[Pid(501)].threads.clear()
    assert snapshot_of(stage, 501).state is State.MOVING


@pytest.mark.parametrize(
    ("code", "number", "state"),
    [(0, 0, State.LEFT), (1, 0, State.GONE), (0, 9, State.GONE)],
)
def test_classify__how_a_rank_went(code: int, number: int, state: State) -> None:
    stage = trained()
    stage.exit(stage.rank(1), code, number)
    assert snapshot_of(stage, 101).state is state


@pytest.mark.parametrize("argv", [("python3", "train.py"), ("/usr/bin/gcc", "x.c"), ("rsync", "a")])
def test_classify__children_at_work_explain_why_their_rank_waits(argv: tuple[str, ...]) -> None:
    stage = trained()
    child = stage.add(Proc(700, ppid=101, argv=argv))
    stage.become(child, "run")
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(20)
    assert snapshot_of(stage, 101).state is State.CHILDREN
    assert [verdict for verdict in stage.verdicts if verdict.kind is not VerdictKind.WORKING] == []
    assert stage.verdicts[-1].cause is Cause.LOADING


def test_classify__a_child_that_spins_in_place_is_not_at_work() -> None:
    stage = trained()
    child = stage.add(Proc(501, ppid=101))
    stage.become(child, "spin")
    stage.become(stage.rank(1), "read", files=(PIPE,))
    all_wait(stage, 1)
    stage.run(15)
    reported = stage.verdicts[-1]
    assert (reported.kind, reported.cause) == (VerdictKind.HUNG, Cause.LOADER_STUCK)
    assert reported.culprit is not None
    assert (reported.culprit.rank, reported.culprit.tid) == (1, 501)


@pytest.mark.parametrize(
    ("of_others", "state"), [(0.0, State.THROTTLED), (0.3, State.THROTTLED), (0.8, State.COMPUTING)]
)
def test_classify__who_gets_no_cpu_where_no_rank_gets_one_is_no_reason_of_its_own(
    of_others: float, state: State
) -> None:
    """`of_others`: of the time in which the other ranks wanted a CPU, the share without one."""
    stage = trained()
    for _ in range(20):
        for rank in (0, 2, 3):
            # of those that train, which use three tenths of a CPU
            stage.rank(rank).delay_ns += int(of_others / (1 - of_others) * 0.3 * NS / 4)
        stage.one_pass(NS // 4)
    stage.become(stage.rank(1), "throttled")
    all_wait(stage, 1)
    stage.run(6)
    assert snapshot_of(stage, 101).state is state
