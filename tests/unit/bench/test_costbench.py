"""The cost bench's arithmetic and report, on numbers whose answer is known."""

import json
import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean

import pytest

from bench.costbench import report
from bench.costbench.statistics import (
    Estimate,
    apart,
    beside_baseline,
    bootstrap,
    difference,
    excess_s,
    interleave,
    ratio,
    trimmed_mean,
)


def test_interleave__each_block_has_the_baseline_on_either_side() -> None:
    order = interleave(("a", "b", "c"), "none", rounds=4, seed=3)
    assert order[::2] == ["none"] * 13
    rounds = [order[start : start + 6 : 2] for start in range(1, 25, 6)]
    assert all(sorted(other_round) == ["a", "b", "c"] for other_round in rounds)
    assert len({tuple(other_round) for other_round in rounds}) > 1
    assert order == interleave(("a", "b", "c"), "none", rounds=4, seed=3)
    assert all("none" in pair for pair in pairwise(order))


def test_beside_baseline__a_block_is_compared_with_both_sides() -> None:
    blocks = [("none", 1.0), ("a", 5.0), ("none", 3.0), ("b", 8.0), ("a", 9.0), ("none", 4.0)]
    assert beside_baseline(blocks, "a", "none") == [(5.0, 2.0), (9.0, 4.0)]
    assert beside_baseline(blocks, "b", "none") == [(8.0, 3.0)]
    assert beside_baseline(blocks, "c", "none") == []


def test_beside_baseline__a_block_without_baseline_is_refused() -> None:
    with pytest.raises(ValueError, match="block 1 "):
        beside_baseline([("b", 1.0), ("a", 1.0), ("b", 1.0)], "a", "none")


def test_ratio__a_machine_that_slows_down_is_no_cost() -> None:
    order = interleave(("a",), "none", rounds=20, seed=0)
    drift = [(mode, 1.0 + 0.05 * at) for at, mode in enumerate(order)]
    assert ratio(drift, "a", "none").value == pytest.approx(1.0)
    dearer = [(mode, value * (1.01 if mode == "a" else 1)) for mode, value in drift]
    found = ratio(dearer, "a", "none")
    assert found.value == pytest.approx(1.01)
    assert found.high - found.low < 1e-9
    more = [(mode, value + (0.5 if mode == "a" else 0)) for mode, value in drift]
    assert difference(more, "a", "none").value == pytest.approx(0.5)


@pytest.mark.long  # forty intervals
def test_bootstrap__the_interval_covers_the_truth_about_95_times_in_100() -> None:
    chance = random.Random(1)
    covered = 0
    for seed in range(40):
        found = bootstrap([chance.gauss(10, 1) for _ in range(30)], fmean, seed)
        covered += found.low <= 10 <= found.high
    assert 33 <= covered <= 40


def test_bootstrap__the_same_numbers_give_the_same_interval() -> None:
    assert bootstrap([1.0, 2.0, 4.0, 3.0]) == bootstrap([1.0, 2.0, 4.0, 3.0])
    assert bootstrap([2.0]) == Estimate(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        bootstrap([])


@pytest.mark.parametrize(
    ("low", "value", "high", "said"),
    [
        (0.1, 0.2, 0.3, "met"),
        (0.1, 0.2, 0.5, "met"),
        (0.1, 0.2, 0.6, "met, but not proven"),
        (0.4, 0.55, 0.6, "**missed**, but not proven"),
        (0.51, 0.55, 0.6, "**missed**"),
    ],
)
def test_verdict__a_goal(low: float, value: float, high: float, said: str) -> None:
    reported = report.verdict(Estimate(value, low, high), 0.5)
    assert reported == said or reported.startswith(said + ":")


def _ends(steps: Sequence[float]) -> list[float]:
    return list(accumulate(steps, initial=0.0))


@pytest.mark.parametrize(
    ("at_s", "excess"),
    [
        (17.5, 0.0),  # both steps and all beside them took 1 s
        (8.5, 1.5),  # the step it falls into took 1.5 s longer
        (7.5, 1.5),  # the step after it did
        (6.5, -0.375),  # one of the eight beside did
        (3.9, None),  # fewer than four steps before
        (22.5, None),  # fewer than four after
    ],
)
def test_excess_s__steps_at_a_moment_against_those_beside(
    at_s: float, excess: float | None
) -> None:
    steps = [1.0] * 24
    steps[8] = 2.5
    found = excess_s(_ends(steps), at_s)
    assert found == (None if excess is None else pytest.approx(excess))


def test_excess_s__a_drift_of_the_machine_is_no_excess() -> None:
    ends = _ends([1.0 + 0.01 * number for number in range(40)])
    assert excess_s(ends, 20.2) == pytest.approx(0.0)


def test_trimmed_mean__a_twentieth_on_either_side_is_left_out_of_a_trimmed_mean() -> None:
    assert trimmed_mean([*range(1, 20), 1_000_000]) == pytest.approx(fmean(range(2, 20)))
    assert trimmed_mean([1.0, 3.0]) == pytest.approx(2.0)


def test_apart__two_samples_apart() -> None:
    chance = random.Random(3)
    ones = [chance.gauss(5, 1) for _ in range(50)]
    others = [chance.gauss(4, 1) for _ in range(50)]
    found = apart(ones, others)
    assert found.low < 1 < found.high
    assert found.low > 0
    assert 0.4 < found.high - found.low < 1.2


def _agent(share: float, rss_kib: int = 25_000) -> dict[str, float]:
    usage = {"rss_kib": rss_kib, "pss_kib": 20_000, "peak_kib": 33_000}
    return {"cpu_share": share, "wakeups_per_s": 1.5, **usage}


def _block(mode: str, factor: float) -> dict[str, object]:
    return {
        "mode": mode,
        "step_count": 160,
        "mean_step_s": 0.05 * factor,
        "median_step_s": 0.05,
        "rank_cpu_s_per_step": 0.005 * factor,
        "load_average": 9.5,
        "verdicts": ["HUNG stopped"] if mode == "fault" else [],
        "agent": None if mode == "absent" else _agent(0.001),
    }


def _passes(cost_s: float) -> dict[str, object]:
    """A training of 20 ms a step in which every second event is a pass that makes its step longer."""
    chance, now, ends, events = random.Random(5), 0.0, [0.0], []
    for number in range(2_000):
        step_s = 0.02 + chance.gauss(0, 1e-5)
        if number % 25 == 12:
            real = number % 50 == 12
            events.append([now + 0.01, real])
            step_s += cost_s if real else 0.0
        now += step_s
        ends.append(now)
    return {"period_s": 1.0, "events": events, "step_ends": ends}


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr("bench.costbench.statistics.RESAMPLES", 500)  # of 10,000
    factors = {"absent": 1.0, "idle": 1.0, "attached": 1.02, "fault": 1.0005}
    order = interleave(("idle", "attached", "fault"), "absent", rounds=3, seed=0)
    crowd = {"process_count": 20, "window_s": 60, "verdicts": [], "pass_ms": [1.0, 2.0, 3.0]}
    machine = {"kernel": "6.18", "machine": "x86_64", "cpu": "C", "cpu_count": 2, "python": "3.11"}
    calls = [("absent", 100.0), ("attached", 107.0), ("absent", 100.0)]
    return {
        "quick": False,
        "machine": {**machine, "unix": 0},
        "block_s": 8.0,
        "blocks": [_block(mode, factors[mode]) for mode in order],
        "passes": _passes(cost_s=0.0005),
        "steady": {"window_s": 60, "verdicts": ["WORKING training"], "agent": _agent(0.0012)},
        "starts": {
            "true_s": [0.4],
            "ready_s": [0.7],
            "verdict_s": [0.8],
            "reported": ["WORKING x"],
        },
        "crowds": [
            {
                **crowd,
                "thread_count": 2_500,
                "agent": _agent(0.02, 70_000),
                "settled": _agent(0.001),
            },
            {**crowd, "thread_count": 8_000, "agent": _agent(0.004), "settled": _agent(0.003)},
        ],
        "syscalls": [{"mode": mode, "call_ns": value} for mode, value in calls],
    }


def test_text__goals_are_judged_by_what_was_measured(raw: dict[str, object]) -> None:
    lines = report.text(raw).splitlines()
    rows = {line.split(" | ")[0]: line for line in lines if line.startswith("| ")}
    for name, measured, said in (
        ("step time, attached, by passes", "+0.050%", "met |"),
        ("step time, attached, by blocks", "+2.00%", "**missed** |"),
        ("step time, fault, by blocks", "+0.05%", "met |"),
        ("CPU, 2,500 threads, the training", "0.120%", "met |"),
        ("CPU, 2,500 threads, a parked crowd, from its 3rd second", "2.000%", "**missed** |"),
        ("CPU, 2,500 threads, a parked crowd, from its 70th second", "0.100%", "met |"),
        ("CPU, 8,000 threads, a parked crowd, from its 3rd second", "0.400%", "met |"),
        ("CPU, 8,000 threads, a parked crowd, from its 70th second", "0.300%", "met |"),
        ("RSS, 2,500 threads, the training", "25.6 MB", "met |"),
        ("RSS, 2,500 threads, a parked crowd, from its 3rd second", "71.7 MB", "**missed** |"),
        ("start: `run -- true`", "0.40 s", "met |"),
        ("start: until attached", "0.70 s", "**missed** |"),
        ("unrelated system call", "+7.00 ns", "**missed** |"),
    ):
        row = rows["| " + name]
        assert measured in row
        assert row.endswith(said)


def test_text__a_pass_that_costs_too_much_is_reported(raw: dict[str, object]) -> None:
    raw["passes"] = _passes(cost_s=0.003)
    (row,) = (line for line in report.text(raw).splitlines() if "by passes" in line)
    assert "+0.30" in row
    assert row.endswith("**missed** |")


def test_text__a_busy_machine_is_said_to_be_one(raw: dict[str, object]) -> None:
    assert "**not quiet**" in report.text(raw)
    raw["blocks"] = [{**block, "load_average": 1.0} for block in raw["blocks"]]  # type: ignore[attr-defined]
    assert "not quiet" not in report.text(raw)


def test_text__raw_numbers_survive_their_file(raw: dict[str, object]) -> None:
    assert report.text(json.loads(json.dumps(raw))) == report.text(raw)
