"""The cost bench's arithmetic and report, on numbers whose answer is known."""

import random

import pytest

from tools.costbench import report
from tools.costbench.statistics import (
    bootstrap,
    geometric_mean,
    median,
    paired_difference,
    paired_ratio,
)

MODES = ("absent", "idle", "attached", "fault")


def test_means() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([4.0]) == pytest.approx(4.0)
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5


def test_a_ratio_within_rounds_does_not_see_a_machine_that_slows_down() -> None:
    before = [1.0 * 1.1**index for index in range(30)]
    found = paired_ratio([value * 1.01 for value in before], before)
    assert found.value == pytest.approx(1.01)
    assert found.high - found.low < 1e-9


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    chance = random.Random(1)
    covered = 0
    for seed in range(60):
        values = [chance.gauss(10, 1) for _ in range(30)]
        found = bootstrap(values, lambda drawn: sum(drawn) / len(drawn), seed)
        covered += found.low <= 10 <= found.high
    assert 50 <= covered <= 60


def test_a_report_can_be_made_again() -> None:
    values = [1.0, 2.0, 4.0, 3.0]
    assert bootstrap(values, median) == bootstrap(values, median)


def test_no_values_are_no_estimate() -> None:
    with pytest.raises(ValueError, match="no values"):
        paired_ratio([], [])
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0], [1.0, 2.0])


def _window(mode: str, factor: float, agents: int) -> report.Raw:
    return {
        "mode": mode,
        "step_s": 0.05 * factor,
        "step_count": 160,
        "rank_cpu_s_per_step": 0.05 * factor,
        "agent_cpu_share": [0.001] * agents,
        "agent_rss_kib": [25_000] * agents,
        "agent_peak_kib": [33_000] * agents,
        "agent_start_s": [0.3] * agents,
        "load_average": 1.5,
        "syscall_ns": [100.0 * factor, 120.0],
    }


def test_the_report_says_what_was_measured() -> None:
    rounds = [
        [_window(mode, 1 + 0.02 * index, min(index, 1) + index // 3) for index, mode in each]
        for each in ([*enumerate(MODES)], [*reversed([*enumerate(MODES)])])
    ]
    threads = [{**_window("", 1, 1), "thread_count": count} for count in (10_000, 0, 2500)]
    machine = {"kernel": "6.18", "machine": "x86_64", "cpu": "C", "cpu_count": 2, "python": "3.11"}
    raw = {
        "machine": {**machine, "unix": 0},
        "window_s": 8.0,
        "rounds": rounds,
        "threads": threads,
    }
    text = report.text(raw)
    assert "2 rounds of 8 s" in text
    assert "| idle | +2.00% (+2.00 to +2.00) | +2.00% (+2.00 to +2.00) |" in text
    assert "| attached | +4.00%" in text
    assert "| attached | 0.10% | 25.6 MB | 33.8 MB | 0.30 s |" in text
    assert "| fault, sensor 2 | 0.10% |" in text
    assert "| fault | 106.0 ns | +6.0 ns (+6.0 to +6.0) |" in text
    assert text.index("| 0 | 0.10%") < text.index("| 2,500 |") < text.index("| 10,000 |")
