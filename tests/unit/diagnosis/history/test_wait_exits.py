"""A wait that burns a CPU never sleeps: who slept has left it, unless that is rarer than in its steps."""

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.history.code_map import Code, CodeMap
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.diagnosis.history.wait_exits import WaitExits
from kcover_ebpf.facts.host import Module
from kcover_ebpf.facts.kernel import NO_SYSCALL, ProcessTotals, TaskState, ThreadSample, Tick
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.tunables.certainty import WAIT_EXIT_SLEEPS
from tests.unit.support.thread_samples import TABLE, sample

NANOSLEEP = 230
CUDA = CodeMap([Module(0x1000, 0x2000, "libcuda.so.1")])


def spins(second: float, sleeps: int) -> ThreadSample:
    """Found in the driver's library, after so many sleeps in all."""
    found = sample(second, NO_SYSCALL, TaskState.RUNNING, cpu_s=0.9 * second)
    return replace(found, user_ip=0x1800, voluntary_count=sleeps)


def left(
    exits: WaitExits, sleeps: int, seconds: float = 1.0, code: Code | None = Code.DEVICE
) -> bool:
    return exits.observe(spins(10, 100), spins(10 + seconds, 100 + sleeps), code)


@pytest.mark.parametrize(
    ("code", "sleeps", "is_left"),
    [
        (Code.DEVICE, WAIT_EXIT_SLEEPS, True),
        (Code.COLLECTIVE, WAIT_EXIT_SLEEPS, True),
        (Code.DEVICE, WAIT_EXIT_SLEEPS - 1, False),
        (Code.DEVICE, 0, False),
        (Code.MESSAGES, 50, False),
        (Code.OWN, 50, False),
        (None, 50, False),
    ],
)
def test_wait_exits__what_slept_left_a_wait_for_a_device(
    code: Code | None, sleeps: int, *, is_left: bool
) -> None:
    assert left(WaitExits(), sleeps, code=code) is is_left


def test_wait_exits__what_sleeps_much_more_rarely_than_in_its_steps_has_not_left() -> None:
    exits = WaitExits()
    assert all(left(exits, 40) for _ in range(5))
    assert not any(left(exits, 8) for _ in range(50)), "as a watchdog's lock has it; never learned"
    assert left(exits, 10)


def test_wait_exits__its_rate_is_that_of_the_last_pass_however_long_it_is() -> None:
    exits = WaitExits()
    assert left(exits, 40, seconds=4.0)
    assert left(exits, 3, seconds=1.0)
    assert not left(exits, 3, seconds=2.0)


@pytest.mark.parametrize(
    ("code", "sleeps", "bytes_s", "healthy_s", "is_habit"),
    [
        (CUDA, 9, 0, 2, True),
        (CUDA, 0, 0, 2, False),
        (CUDA, 9, 3, 2, False),  # its bytes are seen, and would show it
        (CUDA, 9, 1, 2, True),  # those that all ranks exchange when they start
        (CUDA, 9, 1, 0, False),  # it has not trained yet
        (CodeMap(), 9, 0, 2, False),
    ],
)
def test_process_history__what_sleeps_beside_a_rank_without_bytes_that_moves_on_is_its_habit(
    code: CodeMap, sleeps: int, bytes_s: int, healthy_s: int, *, is_habit: bool
) -> None:
    rank = ProcessHistory(Pid(1), 0, code=code, peer_bytes_ns=bytes_s * NS)
    rank.healthy_since_ns = healthy_s * NS
    for second in range(30):
        rank.on_thread(spins(second, sleeps * second), TABLE)
        slept_ns = int((second - 0.7) * NS)
        telemetry = replace(sample(second, NANOSLEEP), tid=Tid(2), idle_since_ns=slept_ns)
        rank.on_thread(telemetry, TABLE)
        rank.on_totals(ProcessTotals(second * NS, Pid(1), Pid(0), 0, 0, 0, 0, 0, 0, 2))
        rank.note_beside(Tick(second * NS, NS, 0, late=False))
    assert (rank.threads[Tid(2)].usual_wait_ns > 0) is is_habit


def test_thread__a_spinning_rank_that_steps_makes_progress_and_one_that_hangs_does_not() -> None:
    thread = ThreadHistory(spins(0, 0))
    stepped = [thread.observe(spins(second, 9 * second), TABLE, CUDA) for second in range(1, 12)]
    assert all(stepped[3:])
    assert thread.progress_ns == 11 * NS
    hung = [thread.observe(spins(second, 99), TABLE, CUDA) for second in range(12, 40)]
    assert not any(hung)
    assert thread.progress_ns == 11 * NS
