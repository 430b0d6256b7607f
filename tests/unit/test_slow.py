"""Stragglers from shares of waiting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.facts import Pid
from kcover_ebpf.incidents.slow import WaitShares

PASSES = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=60)


def shares(waits: dict[int, float], passes: int = 40) -> WaitShares:
    """Each rank waits in its share of the passes."""
    found = WaitShares()
    for step in range(passes):
        found.observe({Pid(pid): (step % 20) < 20 * share for pid, share in waits.items()})
    return found


@pytest.mark.parametrize(
    ("waits", "slow"),
    [
        ({1: 0.0, 2: 0.5, 3: 0.5}, 1),
        ({1: 0.1, 2: 0.8, 3: 0.9}, 1),
        ({1: 0.0, 2: 0.5, 3: 0.0}, None),
        ({1: 0.2, 2: 0.9, 3: 0.9}, None),
        ({1: 0.1, 2: 0.3, 3: 0.3}, None),
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
    assert found.factor == pytest.approx(2.0)


def test_a_few_passes_are_not_enough() -> None:
    assert shares({1: 0.0, 2: 1.0}, passes=15).straggler() is None
    assert shares({1: 0.0, 2: 1.0}, passes=16).straggler() is not None


def test_a_rank_that_left_is_forgotten() -> None:
    found = shares({1: 0.0, 2: 1.0, 3: 1.0})
    found.observe({Pid(2): True, Pid(3): True})
    assert found.straggler() is None


@given(PASSES)
def test_whatever_was_seen_a_straggler_waits_less_than_all_others(passes: list[list[bool]]) -> None:
    watch = WaitShares()
    for waits in passes:
        watch.observe({Pid(pid): each for pid, each in enumerate(waits)})
    found = watch.straggler()
    if found is not None:
        assert found.own_wait_share + 0.25 <= found.others_wait_share + 0.02
        assert found.factor > 1
