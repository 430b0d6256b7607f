"""Stragglers from shares of waiting."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.stragglers import Straggler, Waiting, WaitShares
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.diagnosis import (
    STRAGGLER_COMPARED_EASE,
    STRAGGLER_COMPARED_NS,
    STRAGGLER_COMPARED_PERIOD_NS,
)

PASSES = st.lists(
    st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=3, max_size=3), max_size=200
)


def shares(waits: dict[int, float], passes: int = 48) -> WaitShares:
    """Each rank waits in its share of the passes, each time anew."""
    found = WaitShares()
    for step in range(passes):
        found.observe(
            {Pid(pid): step if (step % 20) < 20 * share else None for pid, share in waits.items()},
            step * NS,
        )
    return found


def steps(lengths: list[tuple[int, int]]) -> Straggler | None:
    """Rank 1 needs the first number of passes for a step, ranks 2 and 3 the second and then wait for it."""
    watch, now_ns = WaitShares(), 0
    for step, (slow, others) in enumerate(lengths):
        for number in range(slow):
            wait, now_ns = step if number >= others else None, now_ns + NS
            watch.observe({Pid(1): None, Pid(2): wait, Pid(3): wait}, now_ns)
    return watch.straggler()


@pytest.mark.parametrize(
    ("waits", "slow"),
    [
        ({1: 0.0, 2: 0.5, 3: 0.5}, 1),
        ({1: 0.1, 2: 0.8, 3: 0.9}, 1),
        ({1: 0.0, 2: 0.5, 3: 0.0}, None),
        ({1: 0.2, 2: 0.9, 3: 0.9}, None),
        ({1: 0.1, 2: 0.25, 3: 0.25}, None),
        ({1: 0.0}, None),
        ({}, None),
    ],
)
def test_wait_shares__the_rank_that_never_waits_while_all_others_do(
    waits: dict[int, float], slow: int | None
) -> None:
    found = shares(waits).straggler()
    assert (found and found.pid) == slow


def test_wait_shares__the_factor_is_the_ratio_of_the_busy_shares() -> None:
    found = shares({1: 0.0, 2: 0.5, 3: 0.5}).straggler()
    assert found is not None
    assert found.factor == pytest.approx(2.0, rel=0.2)


def test_wait_shares__a_few_passes_are_not_enough() -> None:
    assert shares({1: 0.0, 2: 1.0}, passes=23).straggler() is None
    assert shares({1: 0.0, 2: 1.0}, passes=24).straggler() is not None


def test_wait_shares__the_fewer_passes_the_further_apart() -> None:
    assert shares({1: 0.0, 2: 0.2, 3: 0.2}, passes=40).straggler() is None
    assert shares({1: 0.0, 2: 0.2, 3: 0.2}, passes=100).straggler() is not None


@pytest.mark.parametrize("phase", [15, 30, 60, 180])
def test_wait_shares__one_long_phase_of_one_rank_is_no_slow_rank(phase: int) -> None:
    assert steps([(10, 10)] * 6 + [(10 + phase, 10)]) is None
    assert steps([(10, 10)] * 6 + [(10 + phase, 10)] + [(10, 10)] * 6) is None


@pytest.mark.parametrize(("slow", "others", "count"), [(13, 10, 14), (20, 10, 6), (50, 10, 3)])
def test_wait_shares__long_steps_that_are_slow_one_after_the_other(
    slow: int, others: int, count: int
) -> None:
    found = steps([(slow, others)] * count)
    assert found is not None
    assert found.pid == 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.6])
def test_wait_shares__chance_alone_makes_no_slow_rank(share: float) -> None:
    dice, watch = random.Random(1), WaitShares()
    for step in range(5000):
        waits = {Pid(pid): step if dice.random() < share else None for pid in range(4)}
        watch.observe(waits, step * NS)
        assert watch.straggler() is None


def test_wait_shares__a_rank_that_left_is_forgotten() -> None:
    found = shares({1: 0.0, 2: 1.0, 3: 1.0})
    found.observe({Pid(2): 1, Pid(3): 1}, 49 * NS)
    assert found.straggler() is None


@given(PASSES)
@example([[None, step, step] if step % 20 < 12 else [None, None, None] for step in range(200)])
def test_wait_shares__whatever_was_seen_a_straggler_waits_less_than_all_others(
    passes: list[list[int | None]],
) -> None:
    watch = WaitShares()
    for number, waits in enumerate(passes):
        watch.observe({Pid(pid): wait for pid, wait in enumerate(waits)}, number * NS)
    found = watch.straggler()
    assert found is None or found.own_wait_share + 0.15 <= found.others_wait_share + 0.02
    assert found is None or found.factor > 1


@given(PASSES, st.integers(2, 5))
def test_waiting__waits_are_counted_over_the_last_passes_of_each_window(
    passes: list[list[int | None]], repeated: int
) -> None:
    waits = [number for first, *_ in passes for number in [first] * repeated]
    waiting = Waiting()
    for wait in waits:
        waiting.add(wait)
    assert waiting.counts
    for window, count in waiting.counts.items():
        last = waits[-window:]
        assert count == len(last) - last.count(None)
        assert waiting.last(window) == last[::-1]


def lag(watch_shares: WaitShares, begin_ns: int, seconds: int) -> int:
    """Rank 1 never waits, the others do in every third pass, once a second; passes in which they were compared."""
    compared = 0
    for number in range(seconds):
        now_ns, wait = begin_ns + number * NS, number if number % 3 == 0 else None
        watch_shares.observe({Pid(1): None, Pid(2): wait, Pid(3): wait}, now_ns)
        compared += watch_shares.compares(now_ns)
    return compared


def test_wait_shares__ranks_of_which_one_may_lag_are_compared_for_a_while_and_rarely() -> None:
    watch = WaitShares()
    assert lag(watch, 0, 15) == 0, "too few passes"
    assert lag(watch, 15 * NS, 100) * NS == STRAGGLER_COMPARED_NS
    assert lag(watch, 115 * NS, 490) == 0
    assert lag(watch, 605 * NS, 60) * NS >= STRAGGLER_COMPARED_NS
    assert STRAGGLER_COMPARED_NS <= STRAGGLER_COMPARED_PERIOD_NS / 10


def test_wait_shares__ranks_that_wait_alike_are_not_compared() -> None:
    watch = WaitShares()
    for number in range(200):
        wait = number if number % 3 == 0 else None
        watch.observe({Pid(pid): wait for pid in range(4)}, number * NS)
        assert not watch.compares(number * NS)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_wait_shares__ranks_that_begin_to_wait_alike_are_compared_if_others_are_elsewhere(
    elsewhere: bool,
) -> None:
    watch, compared = WaitShares(), list[bool]()
    for number in range(120):
        wait = number if number >= 80 and number % 3 == 0 else None
        now_ns = number * NS
        watch.observe({Pid(1): wait, Pid(2): wait}, now_ns, elsewhere=elsewhere)
        compared.append(watch.compares(now_ns))
    assert not any(compared[:80])
    assert any(compared[80:]) is elsewhere


def test_wait_shares__many_passes_within_one_step_name_no_rank() -> None:
    watch = WaitShares()
    for number in range(70):
        wait = number if number % 2 else None
        watch.observe({Pid(1): None, Pid(2): wait, Pid(3): wait}, number * NS // 4)
        assert watch.straggler() is None


def named_after_s(step_s: float, factor: float, dice: random.Random) -> float | None:
    """Seconds until the slow one of four ranks is named: the others wait for it at the end of each of its steps.

    All exchange their gradients for a tenth of a step; lengths differ by 5%; passes are a second apart, and a third of
    one while ranks are compared.
    """
    watch, now_s, end_s, ready, step = WaitShares(), dice.random(), 0.0, [0.0] * 4, 0
    while now_s < 120.0:
        while now_s >= end_s:
            begin_s, step = end_s, step + 1
            lengths = [step_s * dice.gauss(1.0, 0.05) for _ in ready]
            lengths[0] *= factor
            ready = [begin_s + length for length in lengths]
            end_s = max(ready) + step_s / 10
        waits = {Pid(pid): step if now_s >= at_s else None for pid, at_s in enumerate(ready)}
        watch.observe(waits, round(now_s * NS))
        found = watch.straggler()
        if found is not None:
            return now_s if found.pid == 0 else None
        now_s += STRAGGLER_COMPARED_EASE if watch.compares(round(now_s * NS)) else 1.0
    return None


@pytest.mark.parametrize("step_s", [0.2, 0.5, 2.0])
def test_wait_shares__a_rank_that_is_1_3_times_slower_is_named_within_a_minute(
    step_s: float,
) -> None:
    dice = random.Random(7)
    times = [named_after_s(step_s, 1.3, dice) for _ in range(100)]
    assert sum(time is not None and time < 57 for time in times) >= 80


def test_wait_shares__a_rank_that_never_waits_here_may_keep_none_elsewhere_waiting() -> None:
    # as a parameter server with one of its workers on this host
    found = WaitShares()
    for step in range(48):
        found.observe({Pid(1): None, Pid(2): step, Pid(3): step}, step * NS, elsewhere=True)
    assert found.straggler() is None
