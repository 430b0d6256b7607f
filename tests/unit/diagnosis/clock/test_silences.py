"""What a job recovered from by itself, and the patience that follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.silences import Silences, joined
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.settings import Policy

HOUR_S = 3600.0
LENGTHS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5000)), max_size=200)


def record(*silences: tuple[str, float], hours: float = 0.0) -> Silences:
    found = Silences()
    found.observe(hours * HOUR_S)
    for place, length_s in silences:
        found.learn(place, length_s)
    return found


@pytest.mark.parametrize(
    ("hours", "longest_s", "least_s", "most_s"),
    [
        (0, None, 120, 120),
        (24, None, 30, 45),
        (400, None, 10, 10.5),
        (31, 12, 24, 35),
        (24, 100, 120, 200),
        (24, 300, 600, 600),
    ],
    ids=["new", "a day", "weeks", "twelve seconds once", "up to the cap", "beyond it"],
)
def test_patience__from_the_past_of_the_job(
    hours: float, longest_s: float | None, least_s: float, most_s: float
) -> None:
    past = [] if longest_s is None else [("blocked_lock", longest_s)]
    seconds = record(*past, hours=hours).summary.patience(Policy()).seconds
    assert least_s <= seconds <= most_s


@given(LENGTHS, st.floats(0, 1e5), st.floats(1e-5, 1e-2))
def test_patience__a_silence_that_ended_is_never_the_reason_to_end_a_job(
    past: list[tuple[str, float]], hours: float, rate: float
) -> None:
    policy = Policy(false_restarts_per_h=rate)
    patience = record(*past, hours=hours).summary.patience(policy)
    longest_s = max((length_s for _, length_s in past), default=0.0)
    assert patience.seconds >= policy.act_floor_s
    assert patience.seconds + 0.1 >= longest_s


@given(LENGTHS)
def test_learn__keeps_the_longest_of_each_place_and_no_more_than_its_room(
    past: list[tuple[str, float]],
) -> None:
    found = record(*past)
    assert len(found.kept) <= 64
    for place in "abc":
        longest_s = max((length_s for at, length_s in past if at == place), default=0.0)
        if longest_s >= 2.0:
            assert (
                max(silence.length_s for silence in found.kept if silence.place == place)
                == longest_s
            )


def test_joined__the_longest_view_counts() -> None:
    first, second = SilenceSummary(100, 1, 5), SilenceSummary(50, 3, 9)
    assert joined([first, second]) == SilenceSummary(100, 3, 9)
    assert joined([]) == SilenceSummary()
