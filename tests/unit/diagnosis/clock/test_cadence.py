"""Learned gaps: what counts as a stall grows with the steps of the job, with healthy ones only."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.clock.cadence import Cadence, Frequency

TIMES = st.lists(st.floats(0, 1e6), max_size=60)


def stepping(gap_s: float, count: int = 20, began_s: float = 1000.0) -> Cadence:
    cadence = Cadence(1.6, 1.5)
    for step in range(count):
        cadence.progress(began_s + step * gap_s)
    return cadence


@pytest.mark.parametrize(("gap_s", "threshold_s"), [(0.1, 1.6), (1.0, 1.6), (10.0, 15.0), (60, 90)])
def test_cadence__the_threshold_grows_with_the_steps(gap_s: float, threshold_s: float) -> None:
    cadence = stepping(gap_s)
    assert cadence.learned
    assert cadence.threshold_s == pytest.approx(threshold_s)


def test_cadence__the_alarm_is_just_above_the_longest_gap() -> None:
    assert stepping(0.1).alarm_s == pytest.approx(0.9)
    assert stepping(10.0).alarm_s == pytest.approx(10.5)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_cadence__nothing_is_learned_from_a_few_gaps(count: int) -> None:
    cadence = stepping(0.1, count)
    assert not cadence.learned
    assert cadence.threshold_s == pytest.approx(8.0)


def test_cadence__one_long_gap_among_short_ones_is_not_learned_until_it_is_a_third_of_the_time() -> (
    None
):
    cadence = stepping(0.1, 10)
    cadence.progress(1021.0)
    assert not cadence.learned
    assert cadence.threshold_s == pytest.approx(1.5 * 20.1)
    cadence.progress(1070.0)
    assert cadence.learned is False
    for late_s in range(1071, 1160):
        cadence.progress(late_s)
    assert cadence.learned


def test_cadence__gaps_of_the_start_are_forgotten() -> None:
    cadence = stepping(10.0)
    cadence.restart()
    assert (cadence.longest_s, cadence.sign_count, cadence.learned) == (0.0, 0, False)
    for step in range(1, 10):
        cadence.progress(1190 + 0.5 * step)
    assert cadence.threshold_s == pytest.approx(1.6)


def test_cadence__the_gap_of_an_incident_is_not_learned() -> None:
    cadence = stepping(0.5)
    cadence.forget_current(5000.0)
    cadence.progress(5000.4)
    assert cadence.longest_s == pytest.approx(0.5)
    assert cadence.last_s == pytest.approx(5000.4)
    fresh = Cadence(1.6, 1.5)
    fresh.forget_current(5.0)
    assert fresh.last_s is None


@given(TIMES)
@example([2.0, 1.0, 7.0])
def test_cadence__in_whatever_order_signs_arrive_the_clock_never_goes_back(
    times: list[float],
) -> None:
    cadence = Cadence(1.6, 1.5)
    for now_s in times:
        before = cadence.last_s
        cadence.progress(now_s)
        assert cadence.last_s is not None
        assert before is None or cadence.last_s >= before
        assert cadence.threshold_s >= max(1.6, 1.5 * cadence.longest_s)
        assert cadence.alarm_s >= 0.9
    assert cadence.last_s == (max(times) if times else None)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0]), max_size=900))
def test_cadence__the_longest_gap_is_that_of_the_last_ones(gaps: list[float]) -> None:
    cadence, now_s = Cadence(1.6, 1.5), 0.0
    cadence.progress(now_s)
    for step, gap_s in enumerate(gaps, 1):
        now_s += gap_s
        cadence.progress(now_s)
        assert cadence.longest_s == max(gaps[max(0, step - 256) : step])
    cadence.restart()
    assert cadence.longest_s == 0.0


def test_cadence__a_long_gap_is_forgotten_after_many_short_ones() -> None:
    cadence = stepping(1.0, count=4)
    cadence.progress(1100.0)
    assert cadence.longest_s == 97.0
    for step in range(256):
        cadence.progress(1101.0 + step)
    assert cadence.longest_s == 1.0


def test_cadence__before_anything_is_learned_only_what_comes_near_to_a_stall_is_unusual() -> None:
    cadence = Cadence(1.6, 1.5)
    assert (cadence.threshold_s, cadence.alarm_s) == (8.0, 5.0)
    assert Cadence(1.6, 1.5, unlearned_s=3.0).alarm_s == 0.9
    # it has trained: patience puts off the verdict, not the readings
    cadence.relearn(60.0)
    assert (cadence.threshold_s, cadence.alarm_s) == (60.0, 0.9)


def moving(*phases: tuple[float, int]) -> Frequency:
    """Phases of (seconds from one step to the next, steps)."""
    frequency, now_s = Frequency(), 1000.0
    for gap_s, count in phases:
        for _ in range(count):
            now_s += gap_s
            frequency.progress(now_s)
    return frequency


def test_frequency__five_minutes_that_are_much_slower_than_the_hour() -> None:
    assert moving((1.0, 3600), (60.0, 4)).slower is None
    assert moving((1.0, 3600), (60.0, 6)).slower == pytest.approx(60.0, rel=0.05)
    assert moving((10.0, 360), (300.0, 6)).slower == pytest.approx(30.0, rel=0.05)


HEALTHY = {
    "steps of any length": ((300.0, 100),),
    "one long silence": ((1.0, 3600), (7200.0, 1), (1.0, 30)),
    "ten times slower": ((1.0, 3600), (10.0, 600)),
    "rollouts of a minute from the beginning": ((60.0, 1), (1.0, 5)) * 100,
    "many passes a second": ((1.0, 3600), (0.25, 3600)),
    "no hour of it yet": ((1.0, 600), (60.0, 8)),
    "the last hour was like that": ((1.0, 3600), (60.0, 40)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_frequency__else_nothing_is_said(name: str) -> None:
    assert moving(*HEALTHY[name]).slower is None


def test_frequency__a_minute_that_was_not_seen_whole_does_not_count() -> None:
    frequency = moving((1.0, 3600))
    for hour in range(1, 8):
        frequency.forget_current()
        frequency.progress(1000.0 + 3600.0 * hour)
    assert frequency.slower is None
