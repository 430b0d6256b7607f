"""Stragglers from shares of waiting."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.stragglers import Straggler, Waiting, WaitShares
from kcover_ebpf.ids import Pid

PASSES = st.lists(
    st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=3, max_size=3), max_size=200
)


def shares(waits: dict[int, float], passes: int = 48) -> WaitShares:
    """Each rank waits in its share of the passes, each time anew."""
    found = WaitShares()
    for step in range(passes):
        found.observe(
            {Pid(pid): step if (step % 20) < 20 * share else None for pid, share in waits.items()}
        )
    return found


def steps(lengths: list[tuple[int, int]]) -> Straggler | None:
    """Rank 1 needs the first number of passes for a step, ranks 2 and 3 the second and then wait for it."""
    watch = WaitShares()
    for step, (slow, others) in enumerate(lengths):
        for each in range(slow):
            wait = step if each >= others else None
            watch.observe({Pid(1): None, Pid(2): wait, Pid(3): wait})
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
def test_the_rank_that_never_waits_while_all_others_do(
    waits: dict[int, float], slow: int | None
) -> None:
    found = shares(waits).straggler()
    assert (found and found.pid) == slow


def test_the_factor_is_the_ratio_of_the_busy_shares() -> None:
    found = shares({1: 0.0, 2: 0.5, 3: 0.5}).straggler()
    assert found is not None
    assert found.factor == pytest.approx(2.0, rel=0.2)


def test_a_few_passes_are_not_enough() -> None:
    assert shares({1: 0.0, 2: 1.0}, passes=23).straggler() is None
    assert shares({1: 0.0, 2: 1.0}, passes=24).straggler() is not None


def test_the_fewer_passes_the_further_apart() -> None:
    assert shares({1: 0.0, 2: 0.2, 3: 0.2}, passes=40).straggler() is None
    assert shares({1: 0.0, 2: 0.2, 3: 0.2}, passes=100).straggler() is not None


@pytest.mark.parametrize("phase", [15, 30, 60, 180])
def test_one_long_phase_of_one_rank_is_no_slow_rank(phase: int) -> None:
    assert steps([(10, 10)] * 6 + [(10 + phase, 10)]) is None
    assert steps([(10, 10)] * 6 + [(10 + phase, 10)] + [(10, 10)] * 6) is None


@pytest.mark.parametrize(("slow", "others", "count"), [(13, 10, 14), (20, 10, 6), (50, 10, 3)])
def test_long_steps_that_are_slow_one_after_the_other(slow: int, others: int, count: int) -> None:
    found = steps([(slow, others)] * count)
    assert found is not None
    assert found.pid == 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.6])
def test_chance_alone_makes_no_slow_rank(share: float) -> None:
    dice, watch = random.Random(1), WaitShares()
    for step in range(5000):
        watch.observe({Pid(pid): step if dice.random() < share else None for pid in range(4)})
        assert watch.straggler() is None


def test_a_rank_that_left_is_forgotten() -> None:
    found = shares({1: 0.0, 2: 1.0, 3: 1.0})
    found.observe({Pid(2): 1, Pid(3): 1})
    assert found.straggler() is None


@given(PASSES)
@example([[None, step, step] if step % 20 < 12 else [None, None, None] for step in range(200)])
def test_whatever_was_seen_a_straggler_waits_less_than_all_others(
    passes: list[list[int | None]],
) -> None:
    watch = WaitShares()
    for waits in passes:
        watch.observe({Pid(pid): each for pid, each in enumerate(waits)})
    found = watch.straggler()
    assert found is None or found.own_wait_share + 0.15 <= found.others_wait_share + 0.02
    assert found is None or found.factor > 1


@given(PASSES, st.integers(2, 5))
def test_waits_are_counted_over_the_last_passes_of_each_window(
    passes: list[list[int | None]], repeated: int
) -> None:
    waits = [each for first, *_ in passes for each in [first] * repeated]
    waiting = Waiting()
    for each in waits:
        waiting.add(each)
    assert waiting.counts
    for window, count in waiting.counts.items():
        last = waits[-window:]
        assert count == len(last) - last.count(None)
        assert waiting.last(window) == last[::-1]
