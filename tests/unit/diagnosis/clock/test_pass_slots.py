"""Passes are made at the same moments on every node, and keep step with no job."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.pass_slots import SLOT_S, moment_s, next_pause_s, slot_of
from kcover_ebpf.ids import NS
from kcover_ebpf.tunables.sampling import PAYLOAD_RATE_NS

SLOTS = st.integers(0, 10**10)


@given(SLOTS)
def test_slot_of__the_moment_of_a_slot_is_of_that_slot(slot: int) -> None:
    assert slot_of(moment_s(slot)) == slot
    assert moment_s(slot) < moment_s(slot + 1) < moment_s(slot) + 0.5


@given(SLOTS, st.floats(0, 1), st.sampled_from([1 / 3, 1.0, 1.7, 4.0]))
def test_next_pause_s__wherever_a_node_begins_it_comes_to_the_same_slots(
    slot: int, late_s: float, period_s: float
) -> None:
    now_s = moment_s(slot) + late_s
    pause_s = next_pause_s(now_s, period_s)
    assert 0 < pause_s <= period_s + 0.5
    reached = slot_of(now_s + pause_s)
    assert reached % round(period_s / SLOT_S) == 0
    assert now_s + pause_s == pytest.approx(moment_s(reached), abs=1e-4)


@pytest.mark.parametrize("step_s", [0.25, 0.5, 1.0])
def test_moment_s__a_job_in_step_with_the_seconds_is_found_at_many_places_of_its_steps(
    step_s: float,
) -> None:
    places = {round(moment_s(3 * second) % step_s / step_s, 2) for second in range(60)}
    assert len(places) >= 20


def test_next_pause_s__no_regular_pass_is_so_early_that_what_it_moved_is_counted_with_the_next() -> (
    None
):
    moments_s = [moment_s(3 * second) for second in range(1000)]
    gaps_s = [later - before for before, later in pairwise(moments_s)]
    assert min(gaps_s) * NS > PAYLOAD_RATE_NS
    assert max(gaps_s) < 1.15
