"""What a child of a rank wakes for beside training is known by its place and its cost."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.history.rhythm import Rhythm
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.ids import NS
from kcover_ebpf.tunables.sampling import PLACES_KEPT
from tests.unit.support.thread_samples import POLL, READ, TABLE, sample, seen

SLEEP = 230
RUNS = TaskState.RUNNING
SECOND_POLL = (7, 1, 1000)


def pulses(call: int, count: int = 20, sp: int = 64) -> list[ThreadSample]:
    """A thread that is found in this call each second, and used a twentieth of a CPU since."""
    return [sample(at_s, call, cpu_s=0.05 * at_s, args=SECOND_POLL, sp=sp) for at_s in range(count)]


def rhythm(samples: list[ThreadSample], *later: ThreadSample, moved: bool = True) -> Rhythm:
    """Of a thread that was seen so while its rank trained on, and then so while it did not."""
    found, thread = Rhythm(), seen(samples[0])
    for number, thread_sample in enumerate([*samples, *later]):
        if thread.observe(thread_sample, TABLE):
            found.on_progress(thread, TABLE)
        if moved and number < len(samples):
            found.note_beside(thread, thread_sample.boottime_ns, TABLE)
    return found


@pytest.mark.parametrize(
    ("call", "count", "moved", "known"),
    [
        (SLEEP, 20, True, True),
        (POLL, 20, True, True),
        (READ, 20, True, False),
        (SLEEP, 10, True, False),
        (SLEEP, 20, False, False),
    ],
    ids=["sleeps", "polls", "reads", "for a short while", "while the rank waits"],
)
def test_rhythm__is_known_of_timed_waits_beside_training(
    call: int, count: int, *, moved: bool, known: bool
) -> None:
    assert rhythm(pulses(call, count), moved=moved).is_known is known


@pytest.mark.parametrize(
    ("later", "unusual_s"),
    [
        ([sample(20, SLEEP, cpu_s=1.0)], 0),
        # twice as much is within what it always uses
        ([sample(20, SLEEP, cpu_s=1.04)], 0),
        ([sample(20, SLEEP, cpu_s=1.2)], 20),
        # caught between two sleeps
        ([sample(20, NO_SYSCALL, RUNS, cpu_s=1.0), sample(21, SLEEP, cpu_s=1.05)], 0),
        (
            [sample(at_s, NO_SYSCALL, RUNS, cpu_s=0.05 * at_s) for at_s in (20, 21, 22)],
            0,
        ),
        # of a pass of 50 ms one wake is a fifth
        ([sample(20, SLEEP, cpu_s=1.0), sample(20.05, SLEEP, cpu_s=1.01)], 0),
        ([sample(20, READ, cpu_s=1.0), sample(21, READ, cpu_s=1.05)], 21),
        # the same call from elsewhere in its code: it backs off
        ([sample(20, SLEEP, cpu_s=1.0, sp=96), sample(21, SLEEP, cpu_s=1.05, sp=96)], 21),
    ],
    ids=[
        "as always",
        "a little more",
        "much more",
        "caught on a CPU",
        "again and again",
        "a short pass",
        "reads",
        "another place",
    ],
)
def test_rhythm__what_else_it_does_is_unusual(later: list[ThreadSample], unusual_s: int) -> None:
    calm = pulses(SLEEP)
    learned_ns = rhythm(calm).unusual_ns
    assert learned_ns < 19 * NS
    assert rhythm(calm, *later).unusual_ns == (unusual_s * NS or learned_ns)


def test_rhythm__whatever_it_does_is_unusual_where_nothing_is_known_of_it() -> None:
    assert rhythm(pulses(SLEEP, 2)).unusual_ns == 1 * NS


def test_rhythm__a_place_that_it_is_seldom_found_in_is_none_of_its_own() -> None:
    works = [sample(at_s, READ, cpu_s=0.05 * at_s) for at_s in range(60)]
    for at_s in range(0, 60, 6):
        works[at_s] = sample(at_s, SLEEP, cpu_s=0.05 * at_s)
    assert not rhythm(works).is_known


def test_rhythm__keeps_so_many_places() -> None:
    """Where the stack ends is the program's choice."""
    wanders = [sample(at_s, SLEEP, sp=at_s * 64) for at_s in range(2 * PLACES_KEPT)]
    places = rhythm([*wanders, *pulses(SLEEP, sp=4096)])
    assert not places.is_known
