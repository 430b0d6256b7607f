"""Where ranks were, as a Lease carries it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.pass_slots import moment_s
from kcover_ebpf.diagnosis.clock.rank_pace import Paces, decoded, encoded
from kcover_ebpf.diagnosis.clock.step_watch import StepWatch
from kcover_ebpf.diagnosis.clock.stragglers import Place
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.stragglers import PACE_PASSES, SLOTS

WHERE = st.one_of(st.floats(0, 1e6), st.sampled_from(Place))


@given(st.dictionaries(st.integers(5000, 5000 + SLOTS), WHERE, min_size=1))
def test_decoded__what_was_encoded_is_as_exact_as_it_has_to_be(
    found: dict[int, float | Place],
) -> None:
    last = max(found)
    again = decoded(encoded(found, last), last)
    assert again.keys() == {slot for slot in found if slot > last - SLOTS}
    for slot, where in again.items():
        before = found[slot]
        if isinstance(where, Place) or isinstance(before, Place):
            assert where is before
        elif 0.001 <= before <= 180:
            assert where == pytest.approx(before, rel=0.2)


@given(st.text(max_size=2 * SLOTS), st.integers(-(10**12), 10**12))
def test_decoded__any_text_is_read(places: str, last_slot: int) -> None:
    found = decoded(places, last_slot)
    assert all(last_slot - SLOTS < slot <= last_slot for slot in found)


def test_paces__a_rank_is_where_it_was_at_each_slot_from_some_passes_on() -> None:
    watch, paces, unix_offset_s = StepWatch(), Paces(), 1_000.0
    for number in range(PACE_PASSES + 6):
        assert paces.of(watch, number, unix_offset_s) == {} or number > PACE_PASSES
        at_ns = round((moment_s(6_000 + 3 * number) - unix_offset_s) * NS)
        watch.observe({Pid(1): Place.SLEEPS, Pid(2): 0.5 if number % 2 else Place.COMPUTES}, at_ns)
    known = paces.of(watch, 10 * NS, unix_offset_s)
    assert known[Pid(1)].waits == 0.0
    assert (known[Pid(2)].waits, known[Pid(2)].passes) == (0.5, PACE_PASSES + 6)
    assert known[Pid(2)].slot == 6_000 + 3 * (PACE_PASSES + 5)
    found = decoded(known[Pid(2)].places, known[Pid(2)].slot)
    assert found.keys() == set(range(6_000, known[Pid(2)].slot + 1, 3))
    assert found[6_000] is Place.COMPUTES
    assert found[6_003] == pytest.approx(0.5, rel=0.2)


def test_paces__while_ranks_are_compared_they_are_counted_more_often() -> None:
    watch, paces = StepWatch(), Paces()
    for number in range(60):
        late = number > 40
        watch.observe(
            {Pid(1): Place.COMPUTES, Pid(2): 0.5 if late else Place.COMPUTES}, number * NS
        )
    assert watch.compares(59 * NS)
    first = paces.of(watch, 59 * NS, 0.0)
    watch.observe({Pid(1): Place.COMPUTES, Pid(2): 0.5}, 60 * NS)
    assert paces.of(watch, 60 * NS - 1, 0.0) is first
    assert paces.of(watch, 60 * NS, 0.0)[Pid(2)].slot > first[Pid(2)].slot
