"""What always ran beside training explains no wait: helper programs, monitors, logs, threads that take turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.history.background import Efforts
from kcover_ebpf.diagnosis.history.code_map import CodeMap
from kcover_ebpf.diagnosis.history.sampled_call import UsualWaits
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.diagnosis.membership.roles import classify
from kcover_ebpf.facts.host import Module, ProcessSeen
from kcover_ebpf.facts.kernel import NO_SYSCALL, ProcessExit, ProcessTotals, TaskState, ThreadSample
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.rank_snapshot import EffortRates
from kcover_ebpf.model.roles import Role
from tests.unit.support import scripted_job
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.thread_samples import FUTEX, POLL, TABLE, sample, seen

WAITER = Pid(101)
TOOL = ("nvidia-smi", "dmon")


def totals(at_s: float, *, cpu_s: float = 0.0, written: int = 0) -> ProcessTotals:
    return ProcessTotals(
        round(at_s * NS), Pid(1), Pid(0), round(cpu_s * NS), 0, written, 0, written, 0, 1
    )


def efforts(*seen_totals: ProcessTotals, learned: int) -> Efforts:
    found = Efforts()
    for number, process_totals in enumerate(seen_totals):
        found.observe(process_totals, None, (), learns=number < learned)
    return found


def test_efforts__bursts_of_threads_are_one_rate_at_passes_of_any_length() -> None:
    """6 ms of a CPU and 2 kB each tenth of a second; of a pass of 10 ms that is most of a CPU."""
    calm = [totals(at_s, cpu_s=0.06 * at_s, written=20_000 * at_s) for at_s in range(10)]
    burst = totals(9.01, cpu_s=0.06 * 9 + 0.006, written=20_000 * 9 + 2_000)
    after = totals(10, cpu_s=0.6, written=200_000)
    assert efforts(*calm, burst, after, learned=10).during(5 * NS, 0) is None
    busy = totals(10, cpu_s=0.54 + 0.5, written=200_000)
    assert efforts(*calm, burst, busy, learned=10).during(5 * NS, 0) is Effort.COMPUTE


def test_efforts__rates_to_compare_with_are_those_of_the_wait_with_what_always_runs() -> None:
    found = efforts(*[totals(at_s, cpu_s=0.06 * at_s) for at_s in range(10)], learned=10)
    assert found.during(5 * NS, 0) is None
    assert found.most(5 * NS, 0) == pytest.approx((1.2, 0.0))
    assert found.most(9 * NS, 0) == pytest.approx((0.0, 0.0))


@pytest.mark.parametrize(
    ("module", "spread", "effort"),
    [
        ("libc.so.6", 1, None),
        ("libc.so.6", 2, None),
        ("libc.so.6", 24, Effort.COMPUTE),
        ("libgomp.so.1", 1, Effort.COMPUTE),
    ],
)
def test_efforts__a_side_thread_that_repeats_a_call_is_no_work_and_a_tight_computation_is(
    module: str, spread: int, effort: Effort | None
) -> None:
    """As the thread of a TCPStore whose host has left: it wants a CPU, gets a ninth, and asks a closed connection."""
    found, side = Efforts(), ThreadHistory(spinning(0, 0))
    code = CodeMap([Module(0x1000, 0x2000, module)])
    for number in range(40):
        side.observe(spinning(number / 2, number % spread), TABLE, code)
        found.observe(totals(number / 2, cpu_s=number / 18), None, (side,), learns=False)
    assert found.during(15 * NS, 0) is effort


@pytest.mark.parametrize(("sleeps", "effort"), [(False, Effort.COMPUTE), (True, None)])
def test_efforts__a_side_thread_that_gets_no_cpu_works_unless_it_sleeps_in_between(
    sleeps: bool, effort: Effort | None
) -> None:
    """As an OpenMP thread on a busy machine: 2% of a CPU are left for it."""
    found, side = Efforts(), ThreadHistory(spinning(0, 0))
    for number in range(40):
        at_s = number / 2
        wants = replace(spinning(at_s, number), cpu_ns=round(0.02 * at_s * NS))
        side.observe(replace(wants, voluntary_count=number if sleeps else 1), TABLE)
        found.observe(totals(at_s, cpu_s=0.02 * at_s), None, (side,), learns=False)
    assert found.during(15 * NS, 0) is effort


def spinning(at_s: float, value: int) -> ThreadSample:
    cpu_s, delay_s = at_s / 9, at_s * 8 / 9
    call = sample(at_s, NO_SYSCALL, TaskState.RUNNING, cpu_s, (5, value, 1), delay_s=delay_s)
    return replace(call, voluntary_count=1, user_ip=0x1800)


@pytest.mark.parametrize(
    ("written", "moved_s"), [(200_000, 0), (300_000, 10)], ids=["logs as always", "a file as well"]
)
def test_efforts__bytes_that_always_move_are_no_checkpoint(written: int, moved_s: int) -> None:
    calm = [totals(at_s, written=20_000 * at_s) for at_s in range(10)]
    found = efforts(*calm, totals(10, written=written), learned=10)
    assert found.storage_moved_ns > 9 * NS if moved_s else found.storage_moved_ns < 2 * NS


def test_classify__a_frozen_file_system_is_one_though_other_files_are_written() -> None:
    stage = trained()
    stage.become(stage.rank(1), "write", wait_channel="percpu_rwsem_wait", io_bytes_s=1_000_000)
    all_wait(stage, 1)
    stage.run(8)
    waiter = stage.job.snapshot().processes[WAITER]
    assert (waiter.state, waiter.proven) == (State.STORAGE, True)


def run_tool(stage: Stage, pid: int, lasts_s: float) -> Proc:
    """Rank 1 starts a program, which computes and then ends."""
    tool = stage.add(Proc(pid, ppid=101, argv=TOOL, mode="run"))
    stage.run(lasts_s)
    return tool


def end(stage: Stage, tool: Proc) -> None:
    tool.alive = False
    stage.feed(ProcessExit(stage.now_ns, Pid(tool.pid), 0, 0, False, "python3"))


@pytest.mark.parametrize(
    ("habits_s", "lasts_s", "state"),
    [
        ((3, 3), 2, State.FUTEX),
        ((), 2, State.CHILDREN),
        ((1, 1), 4, State.CHILDREN),
        ((10, 10), 8, State.CHILDREN),
    ],
    ids=["as always", "the first one", "longer than always", "one that may be waited for"],
)
def test_classify__a_program_that_came_and_went_beside_training_explains_no_wait(
    habits_s: tuple[float, ...], lasts_s: float, state: State
) -> None:
    stage = trained()
    for number, habit_s in enumerate(habits_s):
        end(stage, run_tool(stage, 700 + number, habit_s))
        stage.run(5)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(3)
    run_tool(stage, 702, lasts_s)
    assert stage.job.snapshot().processes[WAITER].state is state


@pytest.mark.parametrize(
    ("beside_s", "then", "state"),
    [
        (40, "pulse", State.FUTEX),
        (4, "pulse", State.CHILDREN),
        (40, "run", State.CHILDREN),
        (40, "starved", State.CHILDREN),
    ],
    ids=["as always", "a new one", "more than always", "it wants a CPU"],
)
def test_classify__a_child_that_wakes_as_it_does_beside_training_explains_no_wait(
    beside_s: float, then: str, state: State
) -> None:
    """It uses 5% of a CPU, as a reporter of metrics that wakes some times a second."""
    stage = trained()
    watcher = stage.add(Proc(700, ppid=101, argv=TOOL, mode="pulse"))
    stage.run(beside_s)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    stage.become(watcher, then)
    all_wait(stage, 1)
    stage.run(8)
    assert stage.job.snapshot().processes[WAITER].state is state


def test_classify__a_child_that_is_caught_between_two_of_its_waits_is_not_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = trained()
    stage.add(Proc(700, ppid=101, argv=TOOL, mode="pulse"))
    stage.run(40)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(8)
    monkeypatch.setitem(scripted_job.STATES, "pulse", TaskState.RUNNING)
    stage.run(1)
    assert stage.job.snapshot().processes[WAITER].state is State.FUTEX


def test_classify__a_child_that_is_first_seen_on_a_cpu_is_at_work() -> None:
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(8)
    stage.add(Proc(700, ppid=101, argv=TOOL, mode="starved"))
    stage.one_pass(NS)
    waiter = stage.job.snapshot().processes[WAITER]
    assert (waiter.state, waiter.effort_rates) == (State.CHILDREN, EffortRates(children=1.0))


def test_classify__what_a_child_does_while_its_rank_moves_nothing_may_be_its_work() -> None:
    """A rank that the others do without: it waits for its child all along."""
    stage = trained()
    worker = stage.add(Proc(700, ppid=101, argv=TOOL, mode="pulse"))
    stage.become(stage.rank(1), "futex", stack=LOCK)
    stage.run(40)
    assert worker.alive
    all_wait(stage, 1)
    stage.run(8)
    assert stage.job.snapshot().processes[WAITER].state is State.CHILDREN


def rank(pid: int, number: int, command: str) -> ProcessSeen:
    environ = {"RANK": str(number), "WORLD_SIZE": "2"}
    return ProcessSeen(0, Pid(pid), Pid(1), "python3", tuple(command.split()), environ)


@pytest.mark.parametrize(
    ("command", "settled", "roles"),
    [
        ("python3 watch.py", {10, 11}, [Role.RANK, Role.RANK, Role.HELPER]),
        # before any is connected, each may be the rank; and a rank is started anew with its own program
        ("python3 watch.py", set(), [Role.RANK, Role.RANK, Role.RANK]),
        ("python3 train.py", {10, 11}, [Role.RANK, Role.RANK, Role.RANK]),
    ],
)
def test_classify__another_program_with_the_number_of_a_connected_rank_is_a_monitor(
    command: str, settled: set[int], roles: list[Role]
) -> None:
    known = [rank(10, 0, "python3 train.py"), rank(11, 1, "python3 train.py"), rank(12, 0, command)]
    found = classify(known, settled={Pid(pid) for pid in settled})
    assert [found[Pid(pid)].role for pid in (10, 11, 12)] == roles


SLEEP = 230


def waits(*seen_waits: tuple[float, float, float]) -> UsualWaits:
    """A thread that was seen at a second, asleep since another one, while its rank last moved at a third."""
    found = UsualWaits()
    for at_s, idle_s, moved_s in seen_waits:
        asleep = replace(sample(at_s, SLEEP), idle_since_ns=round(idle_s * NS))
        found.observe(asleep, round(moved_s * NS))
    return found


HEARTBEATS = [(at_s + 2.0, at_s, at_s + 2.0) for at_s in range(0, 28, 7)]


@pytest.mark.parametrize(
    ("seen_waits", "longest_s"),
    [
        (HEARTBEATS, 2),
        ([(2, 0, 2), (20, 17, 20)], 0),
        ([(5, 0, 5), (10, 0, 10), (16, 0, 16)], 0),
        # its rank trains on until all is used up that was fetched before
        ([(1, 0, 1), (3, 1.5, 3), (7, 3.5, 7), (14, 7.5, 8)], 0),
        # naps of tenths of a second, each seen at its beginning
        ([(at_s, at_s - 0.05, at_s) for at_s in range(30)], 0),
        # one that was not sent again may have slept again since: it is as old as its last sample
        ([(at_s, 0.0, 0.1) for at_s in range(30)], 0),
        # now and then, in a thread that mostly does something else
        ([*HEARTBEATS, *((at_s, at_s, at_s) for at_s in range(30, 46))], 0),
    ],
    ids=[
        "heartbeats",
        "twice",
        "one wait",
        "backs off",
        "naps",
        "since the rank stopped",
        "seldom",
    ],
)
def test_usual_waits__are_those_beside_which_the_rank_moved_on_again_and_again(
    seen_waits: list[tuple[float, float, float]], longest_s: float
) -> None:
    assert waits(*seen_waits).longest_ns(SLEEP) == longest_s * NS
    assert waits(*seen_waits).longest_ns(FUTEX) == 0


RUNS = TaskState.RUNNING
BURN = [sample(at_s, NO_SYSCALL, RUNS, cpu_s=at_s) for at_s in (0, 1, 2)]


@pytest.mark.parametrize(
    ("last", "burns"),
    [
        (sample(3, FUTEX, cpu_s=2.3, delay_s=0.6), True),
        (sample(2.05, FUTEX, cpu_s=2.0), True),
        (sample(3, FUTEX, cpu_s=2.1), False),
        (sample(2.05, POLL, cpu_s=2.0), False),
    ],
    ids=["it wanted a CPU", "moments at a lock", "a second at a lock", "moments in a poll"],
)
def test_thread__a_burn_outlasts_moments_at_the_lock_of_its_interpreter(
    last: ThreadSample, *, burns: bool
) -> None:
    thread = seen(*BURN, last)
    assert (thread.burning_since_ns is not None) is burns


@pytest.mark.parametrize(
    ("side_cpu", "written", "is_inert"), [(0.06, 0, True), (0.0, 0, False), (0.06, 1000, False)]
)
def test_snapshot__a_loop_that_takes_turns_with_threads_that_always_run_is_inert(
    side_cpu: float, written: int, *, is_inert: bool
) -> None:
    """It sleeps for its interpreter's lock; where no other thread runs, for something else."""
    stage = trained(seconds=5)
    stage.become(stage.rank(1), "train", side_cpu=side_cpu)
    stage.run(40)
    stage.become(stage.rank(1), "run", side_cpu=side_cpu, io_bytes_s=written)
    all_wait(stage, 1)
    stage.run(15)
    inert_s = stage.job.snapshot().processes[WAITER].inert_s
    assert inert_s is not None
    assert (inert_s > 10) is is_inert
