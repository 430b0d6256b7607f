"""Who waits for whom, and why what runs did not count as work, as people are shown it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcover_ebpf.diagnosis.evidence import wait_graph
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import ProcessExit
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import Discounted, EffortRates, RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.settings import Policy
from tests.unit.support.outside_waits import passes
from tests.unit.support.scripted_job import LOCK, Proc, Side, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working
from tests.unit.support.two_nodes import on_two_nodes, recorded
from tests.unit.support.wired_stage import outside

TO_RANK_2 = "ranks 0, 1, 3 -> collective -> rank 2 -> "
TOOL = ("nvidia-smi", "dmon")
Each = Callable[[], None]


@pytest.mark.parametrize(
    ("timed", "end"), [(False, "a signal"), (True, "a timer of ten minutes or more")]
)
def test_wait_graph__a_wait_for_a_signal_is_not_shown_as_one_for_a_timer(
    end: str, *, timed: bool
) -> None:
    stage = trained()
    if timed:
        ends_ns = stage.now_ns + 10**14
        stage.become(stage.rank(1), "sleep_long", timed=True, deadline_ns=ends_ns)
    else:
        stage.become(stage.rank(1), "pause", stack=LOCK)
    all_wait(stage, 1)
    stage.run(20)
    assert not_working(stage)[-1].graph[0].endswith(f"rank 1 -> {end}")


def graph(stage: Stage) -> tuple[str, ...]:
    verdict = stage.tracker.latest or stage.tracker.current
    assert verdict is not None
    return verdict.graph


@pytest.mark.parametrize(
    ("mode", "target", "end"),
    [
        ("write", "/ckpt/x", "storage"),
        ("ioctl", "", "a driver"),
        ("sleep", "", "a timer, which ends in 460 s"),
    ],
)
def test_wait_graph__a_chain_ends_at_storage_a_driver_or_a_timer(
    mode: str, target: str, end: str
) -> None:
    stage = Stage(policy=Policy(quiet_cap_s=30, storage_patience_s=30))
    stage.run(20)
    files = (WaitedFile(5, "file", target, Inode(5), "", "ext4"),) if target else ()
    deadline_ns = stage.now_ns + 500 * NS if mode == "sleep" else None
    timed = mode == "sleep"
    stage.become(stage.rank(2), mode, files=files, timed=timed, deadline_ns=deadline_ns)
    all_wait(stage, 2)
    stage.run(40)
    assert graph(stage) == (f"{TO_RANK_2}{end}",)


def test_wait_graph__a_chain_ends_at_a_service() -> None:
    stage = trained()
    file = WaitedFile(77, "tcp", "socket:[777]", Inode(777), "", "")
    stage.become(stage.rank(2), "read", files=(file,), stack=LOCK)
    all_wait(stage, 2)
    passes(stage, 70, lambda: outside(stage, stage.rank(2)))
    assert graph(stage) == (f"{TO_RANK_2}a service at 198.51.100.7:443",)


def test_wait_graph__without_a_rank_that_is_waited_for_each_ends_somewhere() -> None:
    stage = trained()
    for rank in range(4):
        kfd = (WaitedFile(5, "chr", "/dev/kfd", Inode(5), "", ""),)
        stage.become(stage.rank(rank), "ioctl", files=kfd)
    stage.run(70)
    assert graph(stage) == tuple(f"rank {rank} -> its device" for rank in range(4))


def hang(stage: Stage, seconds: float = 12, each: Each | None = None) -> None:
    """Rank 2 is at a lock, and all others wait for it."""
    stage.become(stage.rank(2), "futex", stack=LOCK)
    all_wait(stage, 2)
    passes(stage, seconds, each)


def side_threads(stage: Stage) -> None:
    for proc in stage.procs.values():
        proc.side_cpu = 0.06
    stage.run(60)
    hang(stage)


def few_side_threads(stage: Stage) -> None:
    stage.rank(1).side_cpu = 0.02
    stage.run(60)
    hang(stage)


def logs(stage: Stage) -> None:
    for proc in stage.procs.values():
        proc.io_bytes_s = 20_000
    stage.run(60)
    hang(stage)


def a_line_now_and_then(stage: Stage) -> None:
    stage.rank(1).io_bytes_s = 4_000
    stage.run(60)
    hang(stage)


def of_the_culprit(stage: Stage) -> None:
    stage.rank(2).side_cpu = 0.15
    stage.run(60)
    hang(stage)


def network_threads(stage: Stage) -> None:
    for proc in stage.procs.values():
        proc.sides = {proc.pid + 50_000: Side("spin", stack=("libc.so.6+1", "libnccl.so.2+2"))}
    stage.run(30)
    hang(stage)


def heartbeats(stage: Stage) -> None:
    for proc in stage.procs.values():
        proc.sides = {proc.pid + 50_000: Side("timed", period_ns=3 * NS)}
    stage.run(90)
    hang(stage)


def polls(stage: Stage) -> None:
    stage.run(60)
    hang(stage, 1)
    for rank in (0, 1, 3):
        stage.become(stage.rank(rank), "nap", naps_per_s=200)
    stage.run(8)


def messages(stage: Stage) -> None:
    stage.run(60)
    hang(stage, 1)
    for rank in (0, 1, 3):
        stage.become(stage.rank(rank), "yield", module="libmpi.so.40")
    stage.run(15)


def reporter(stage: Stage) -> None:
    stage.add(Proc(700, ppid=101, argv=TOOL, mode="pulse"))
    stage.run(60)
    hang(stage)


def brief_child(stage: Stage) -> None:
    for pid in (700, 701):
        tool = stage.add(Proc(pid, ppid=101, argv=TOOL, mode="run"))
        stage.run(3)
        tool.alive = False
        stage.feed(ProcessExit(stage.now_ns, Pid(pid), 0, 0, False, "python3"))
        stage.run(5)
    hang(stage, 4)
    stage.add(Proc(702, ppid=101, argv=TOOL, mode="run"))
    stage.run(2)


def telemetry(stage: Stage) -> None:
    sent = 0

    def push() -> None:
        nonlocal sent
        sent += 60
        for rank in range(4):
            outside(
                stage,
                stage.rank(rank),
                fd=60 + rank,
                inode=Inode(7000 + rank),
                local=("10.1.0.5", 52_000 + rank),
                acked_bytes=sent,
                last_send_ns=stage.now_ns,
                last_receive_ns=stage.now_ns,
            )

    passes(stage, 30, push)
    hang(stage, 8, push)


def moving_child(stage: Stage) -> None:
    stage.add(Proc(700, ppid=100, argv=("./gpu-monitor",)))
    stage.run(60)
    hang(stage)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (side_threads, "side threads of ranks 0, 1, 2, 3 compute, not clearly more than while the job trained"),
        (few_side_threads, "side threads of rank 1 compute, less than 5% of a CPU"),
        (of_the_culprit, "side threads of rank 2 compute, not clearly more than while the job trained"),
        (logs, "bytes of ranks 0, 1, 2, 3 to or from storage, not clearly more than while the job trained"),
        (a_line_now_and_then, "bytes of rank 1 to or from storage, fewer than a checkpoint has"),
        (network_threads, "side threads of ranks 0, 1, 2, 3 spin, as their library waits"),
        (heartbeats, "side threads of ranks 0, 1, 2, 3 wake for moments, as while the job trained"),
        (polls, "polls of ranks 0, 1, 3 every few milliseconds, as this library waits"),
        (messages, "the first thread of ranks 0, 1, 3 spins, as this library waits"),
        (reporter, "a child of rank 1 wakes for moments, as while the job trained"),
        (brief_child, "a child of rank 1: those of this name ended within seconds while the job trained"),
        (telemetry, "messages of ranks 0, 1, 2, 3 to an address outside, as while the job trained"),
        (moving_child, "children that work of rank 0, as during the waits of the others"),
    ],
)  # fmt: skip
def test_wait_graph__what_runs_and_is_no_work_is_said_with_the_reason(
    runs: Callable[[Stage], None], said: str
) -> None:
    stage = Stage(world=4)
    runs(stage)
    assert graph(stage) == (f"{TO_RANK_2}another thread of it -> none known", f"no work: {said}")


def test_wait_graph__a_controller_says_it_of_the_ranks_of_all_nodes() -> None:
    stage = recorded()
    stage.add(Proc(700, ppid=101, argv=TOOL, mode="pulse"))
    for number in (2, 3):
        stack = ("libc.so.6+1", "libnccl.so.2+2")
        stage.rank(number).sides = {50_000 + number: Side("spin", stack=stack)}
    stage.run(60)
    hang(stage)
    assert on_two_nodes(stage).verdict.graph == (
        f"{TO_RANK_2}another thread of it -> none known",
        "no work: side threads of ranks 2, 3 spin, as their library waits",
        "no work: a child of rank 1 wakes for moments, as while the job trained",
    )


def test_wait_graph__its_lines_are_few_however_much_runs() -> None:
    rates = EffortRates(2.0, 2.0)
    ranks = [
        RankSnapshot(
            Pid(number),
            Role.RANK,
            State.FUTEX if number else State.READ,
            rank=number,
            effort_rates=rates,
            discounted=tuple(Discounted),
        )
        for number in range(12)
    ]
    scene = JobSnapshot(0, Policy(), {rank.pid: rank for rank in ranks}, EndpointIndex(ranks))
    lines = wait_graph.lines(scene, scene)
    assert len(lines) == 9
    assert lines[1].startswith("no work: side threads of ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more ")
