"""One thread over time: moves, ticks, busy waiting, loops in place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.history.code_map import CodeMap
from kcover_ebpf.diagnosis.history.sampled_call import poll_timeout_ms
from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.host import Module
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.ids import NS
from tests.unit.support.thread_samples import (
    ENDLESS,
    EPOLL_WAIT,
    FUTEX,
    NANOSLEEP,
    POLL,
    PPOLL,
    READ,
    TABLE,
    YIELD,
    burning,
    sample,
    seen,
)


def burns_since(thread: ThreadHistory) -> int | None:
    return thread.burning_since_ns


PROGRESS = {
    "another call": (sample(1, READ, cpu_s=0.01), True),
    "another first argument": (sample(1, args=(8, 0, ENDLESS), cpu_s=0.01), True),
    "the same site": (sample(1), False),
    "the same site after work": (sample(1, cpu_s=0.03), True),
    "a tick: caught on a CPU, which it hardly used": (sample(1, NO_SYSCALL, cpu_s=0.001), False),
    "a tick: its word at another address": (sample(1, args=(8, 0, 0), cpu_s=0.001), False),
    "another call with hardly any CPU": (sample(1, READ, cpu_s=0.001), True),
    "another depth of the stack": (sample(1, sp=128, cpu_s=0.001), True),
    "another thread with the same number": (sample(1, start_ns=2), True),
}


@pytest.mark.parametrize("name", PROGRESS)
def test_thread_history__what_is_progress(name: str) -> None:
    after, progressed = PROGRESS[name]
    view = ThreadHistory(sample(0))
    assert view.observe(after, TABLE) is progressed
    assert view.progress_ns == (NS if progressed else 0)


def test_thread__burning_begins_with_the_pass_before_and_ends_with_sleep() -> None:
    view = burning(5, [NO_SYSCALL], 5)
    assert burns_since(view) == 0
    view.observe(sample(2, cpu_s=1.0), TABLE)
    assert burns_since(view) is None
    assert not view.spins_in_place


def test_thread__a_thread_that_wants_a_cpu_and_gets_none_burns_as_well() -> None:
    running = TaskState.RUNNING
    view = seen(sample(0, NO_SYSCALL, running), sample(1, NO_SYSCALL, running, delay_s=0.9))
    assert view.burning_since_ns == 0
    view = seen(sample(0), sample(1, delay_s=0.9))
    assert view.burning_since_ns is None


def test_thread__a_thread_that_was_ready_all_the_time_and_never_ran_continues_burning() -> None:
    view = burning(5, [YIELD], 5)
    since_ns, last = view.burning_since_ns, view.sample
    assert since_ns is not None
    assert not view.observe(replace(last, boottime_ns=last.boottime_ns + NS), TABLE)
    assert (view.burning_since_ns, view.delay_share, view.waits_busily) == (since_ns, 1.0, True)
    asleep = replace(view.sample, boottime_ns=last.boottime_ns + 2 * NS, state=TaskState.SLEEPING)
    view.observe(asleep, TABLE)
    assert burns_since(view) is None
    ready_again = replace(asleep, boottime_ns=last.boottime_ns + 3 * NS, state=TaskState.RUNNING)
    view.observe(ready_again, TABLE)
    assert burns_since(view) is None, "it may have become ready only now"


def test_thread__a_thread_that_waits_for_a_cpu_at_the_end_of_a_pass_continues_burning() -> None:
    """The kernel counts that wait when it ends, so hardly any of the pass was used or waited for."""
    view = burning(5, [YIELD], 5)
    since_ns, last = view.burning_since_ns, view.sample
    after = replace(last, boottime_ns=last.boottime_ns + NS, cpu_ns=last.cpu_ns + NS // 10)
    assert not view.observe(after, TABLE)
    assert (view.burning_since_ns, view.waits_busily) == (since_ns, True)
    assert view.delay_share == pytest.approx(0.9)
    slept = replace(after, boottime_ns=after.boottime_ns + NS, voluntary_count=1)
    view.observe(slept, TABLE)
    assert burns_since(view) is None, "it slept in between"


@pytest.mark.parametrize(("count", "seldom"), [(2, True), (7, True), (16, False)])
def test_thread__a_few_samples_do_not_show_what_a_thread_burns_for(
    count: int, seldom: bool
) -> None:
    assert burning(count, [NO_SYSCALL], count).seen_too_seldom is seldom
    assert not burning(16, [YIELD], 1).seen_too_seldom


@pytest.mark.parametrize(
    ("count", "calls", "spread", "in_place", "waits"),
    [
        (16, [NO_SYSCALL], 2, True, False),
        (16, [NO_SYSCALL], 5, True, False),
        (16, [NO_SYSCALL], 8, False, False),
        (16, [NO_SYSCALL], 16, False, False),
        (8, [NO_SYSCALL], 1, False, False),
        (10, [NO_SYSCALL], 1, True, False),
        (16, [YIELD], 1, False, True),
        (16, [POLL], 1, False, True),
        (16, [YIELD, NO_SYSCALL, NO_SYSCALL], 16, False, True),
        (16, [YIELD, READ], 1, False, False),
        (32, [NANOSLEEP, NO_SYSCALL, NO_SYSCALL], 1, False, False),
        (3, [YIELD], 1, False, False),
    ],
)
def test_thread__a_loop_in_place_and_a_busy_waiter(
    count: int, calls: list[int], spread: int, in_place: bool, waits: bool
) -> None:
    view = burning(count, calls, spread)
    assert (view.spins_in_place, view.waits_busily) == (in_place, waits)


@pytest.mark.parametrize(
    ("loaded", "runs_in", "waits"),
    [
        ("libcuda.so.1", "python3.11", False),
        ("libcuda.so.1", "libcuda.so.1", True),
        ("libmpi.so.40", "python3.11", True),
    ],
)
def test_thread__work_between_waits_for_a_device_that_yield_is_no_busy_wait(
    loaded: str, runs_in: str, waits: bool
) -> None:
    code = CodeMap([Module(0x1000, 0x2000, "python3.11"), Module(0x3000, 0x4000, loaded)])
    at = {"python3.11": 0x1000, loaded: 0x3000}[runs_in]
    view = ThreadHistory(sample(0))
    for step in range(1, 17):
        found = sample(step / 4, [YIELD, NO_SYSCALL][step % 2], TaskState.RUNNING, step / 4)
        view.observe(replace(found, user_ip=at if step % 2 else 0x9000), TABLE, code)
    assert view.waits_busily is waits


@pytest.mark.parametrize(
    ("call", "runs_in", "asks"),
    [
        (YIELD, "python3.11", True),
        (NO_SYSCALL, "libmpi.so.40", True),
        (NO_SYSCALL, "python3.11", False),
        (FUTEX, "libmpi.so.40", False),
    ],
)
def test_thread_history__a_rank_that_polls_for_messages_between_short_computations_asks_its_peers(
    call: int, runs_in: str, asks: bool
) -> None:
    code = CodeMap([Module(0x1000, 0x2000, "python3.11"), Module(0x3000, 0x4000, "libmpi.so.40")])
    at = {"python3.11": 0x1000, "libmpi.so.40": 0x3000}[runs_in]
    view = ThreadHistory(sample(0))
    state = TaskState.SLEEPING if call == FUTEX else TaskState.RUNNING
    view.observe(replace(sample(1, call, state, 0.2), user_ip=at), TABLE, code)
    assert view.asks_peers(TABLE) is asks
    assert not view.waits_busily, "it sleeps most of the time"


def test_thread__a_loop_makes_no_progress_but_the_work_that_ends_it_does() -> None:
    view = burning(10, [NO_SYSCALL], 2)
    assert view.progress_ns == NS // 4  # when it began
    assert view.observe(sample(3, READ, cpu_s=2.6), TABLE)


@pytest.mark.parametrize(
    ("call", "args", "timeout"),
    [
        (POLL, (0, 0, 5000), 5000),
        (POLL, (0, 0, ENDLESS), -1),
        (POLL, (0, 0, 2**64 - 1), -1),
        (POLL, (0, 0, 0), 0),
        (EPOLL_WAIT, (0, 0, 9), 0),
        (PPOLL, (0, 0, 5000), None),
        (FUTEX, (0, 0, 0), None),
        (NO_SYSCALL, (0, 0, 0), None),
    ],
)
def test_poll_timeout_ms__time_outs_by_value(
    call: int, args: tuple[int, int, int], timeout: int | None
) -> None:
    assert poll_timeout_ms(sample(0, call, args=args), TABLE) == timeout


SAMPLES = st.builds(
    sample,
    st.integers(0, 9),
    st.sampled_from([NO_SYSCALL, FUTEX, POLL, YIELD, 9999]),
    st.sampled_from(TaskState),
    st.floats(0, 10),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 3),
    sp=st.integers(0, 2**64 - 1),
    start_ns=st.integers(0, 1),
    delay_s=st.floats(0, 10),
)


@given(st.lists(SAMPLES, min_size=1, max_size=20))
def test_thread__any_samples_in_any_order_are_taken(samples: list[ThreadSample]) -> None:
    view = seen(*samples)
    assert view.sample is samples[-1]
    assert len(view.glimpses) <= 16
    assert not (view.spins_in_place and view.burning_since_ns is None)


@pytest.mark.parametrize(("previous_s", "share"), [(0.0, 0.5), (9.5, 1.0), (8.0, 0.25)])
def test_thread__what_a_thread_used_it_used_since_the_sample_before(
    previous_s: float, share: float
) -> None:
    """It was at rest since 0 s, so no sample in between was sent; of old tapes the sample before is not known."""
    after = replace(sample(10, cpu_s=0.5, sp=128), previous_ns=int(previous_s * NS))
    assert seen(sample(0), after).cpu_share == share


def test_thread__a_burn_began_after_the_last_sample_that_found_the_thread_at_rest() -> None:
    after = replace(sample(10, state=TaskState.RUNNING, cpu_s=0.5), previous_ns=int(9.5 * NS))
    assert burns_since(seen(sample(0), after)) == int(9.5 * NS)


def test_thread__only_a_burn_of_this_pass_is_worth_a_reading_of_its_stack() -> None:
    """A thread that is sampled in turns may be anywhere by the next pass."""
    views = [sample(at_s, state=TaskState.RUNNING, cpu_s=at_s) for at_s in (0, 1)]
    burning = seen(*views)
    assert burning.is_unplaced(NS)
    assert burning.is_unplaced(NS + NS // 2)
    assert not burning.is_unplaced(2 * NS)
