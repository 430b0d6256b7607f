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


@pytest.mark.parametrize(
    ("longest_s", "gives_up_s", "seconds", "is_said"),
    [
        (0.0, 100.0, 90.0, True),
        (400.0, 600.0, 590.0, True),
        (400.0, 1800.0, 800.0, False),
        (595.0, 600.0, 1190.0, False),
        (400.0, None, 800.0, False),
    ],
    ids=["shorter than the cap", "by its own silence", "longer", "disproved", "unknown"],
)
def test_patience__ends_before_the_framework_gives_up_by_itself(
    longest_s: float, gives_up_s: float | None, *, seconds: float, is_said: bool
) -> None:
    policy = Policy()
    past = SilenceSummary(24 * HOUR_S if longest_s else 0.0, 1, longest_s, gives_up_s)
    patience = past.patience(policy)
    assert patience.seconds == seconds
    assert patience.why.endswith(f"gives up after {gives_up_s or 0:.0f} s") is is_said
    slow = past.patience(Policy(act_floor_s=2000.0, act_cap_s=3000.0))
    assert slow.seconds == 2000.0


@pytest.mark.parametrize(("hours", "is_capped"), [(0.0, True), (1.4, True), (1.5, False)])
def test_patience__the_cap_wins_over_the_rate_for_an_hour_and_a_half(
    hours: float, *, is_capped: bool
) -> None:
    past = SilenceSummary(hours * HOUR_S)
    needed_s = past.patience(Policy(act_cap_s=190.0)).seconds
    assert (needed_s > past.patience(Policy()).seconds) is is_capped
    assert needed_s < 190.0


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
    shorter = [SilenceSummary(gives_up_s=limit_s) for limit_s in (None, 1800.0, 600.0)]
    assert joined(shorter).gives_up_s == 600.0
