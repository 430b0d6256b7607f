"""Figures, tables and plots of the report."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.faultbench import reporting, runner
from bench.faultbench.figures import false_alarms, figures, poisson_upper_bound, quantile


def result(name: str, **marks: Any) -> dict[str, Any]:
    judgement = {
        "detected": True, "latency_s": 2.0, "rank_right": True, "cause_right": True,
        "verdict": "HUNG", "cause": "stopped", "named_rank": 1, "shut_down": True,
        "shut_down_latency_s": 2.1, "false_verdicts": 0, "false_shut_down": False,
        "healthy_s": 36.0,
    }  # fmt: skip
    line = {
        "event": "verdict",
        "verdict": "HUNG",
        "cause": "stopped",
        "time": 12.0,
        "culprit": None,
    }
    scenario = name.split(".", maxsplit=1)[0]
    return {
        "name": name, "scenario": scenario, "number": "6", "framework": "torch", "step_s": 0.2,
        "world": 4, "held_out": False, "is_fault": not scenario.startswith("q"), "culprit_rank": 1,
        "act": "shutdown", "problem": None, "valid": True, "load": 1.0, "effect": "STALLED",
        "exit_code": 75, "truth": {"fault_at": 10.0}, "lines": [line],
        "judgement": judgement | marks,
    }  # fmt: skip


def test_quantile__nearest_rank_quantile():
    assert quantile([], 0.5) is None
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([3, 1, 2], 0.99) == 3
    assert quantile([5.0], 0.5) == 5.0


@pytest.mark.parametrize(("count", "bound"), [(0, 2.996), (1, 4.744), (5, 10.513)])
def test_poisson_upper_bound__poisson_bound_is_the_textbook_one(count: int, bound: float):
    assert poisson_upper_bound(count) == pytest.approx(bound, abs=0.001)


def test_goals__of_devices_a_slow_median_a_miss_and_a_wrong_rank_miss_them():
    of_gpus = {"framework": "cuda-spin", "step_s": 0.5}
    results = [result(f"g3-lock.cuda-spin.0.5s.{n}", latency_s=9.0 + n) | of_gpus for n in range(3)]
    records = [reporting.compact(entry) for entry in results]
    reached = [row.split("|")[4].strip() for row in reporting.goals(records).splitlines()[2:]]
    assert reached == ["yes"] * 5
    results = [
        result(f"g3-lock.cuda-spin.0.5s.{n}", latency_s=11.0 + n, rank_right=n > 0) | of_gpus
        for n in range(3)
    ]
    missed = {"detected": False, "latency_s": None, "rank_right": None, "cause_right": None}
    results.append(result("g3-lock.cuda-spin.0.5s.3", **missed) | of_gpus)
    records = [reporting.compact(entry) for entry in results]
    reached = [row.split("|")[4].strip() for row in reporting.goals(records).splitlines()[2:]]
    assert reached == ["no", "no", "no", "yes", "yes"]


@pytest.mark.parametrize(("step_s", "half_s"), [(0.2, 3.0), (2.0, 4.0), (10.0, 15.0)])
def test_goals__the_median_of_silent_hangs_is_held_to_that_of_its_step_length(
    step_s: float, half_s: float
):
    for latency_s, reached in ((half_s, "yes"), (half_s + 0.1, "no")):
        entry = result("06-stop.torch.0", latency_s=latency_s) | {"step_s": step_s}
        row = reporting.goals([reporting.compact(entry)]).splitlines()[2]
        assert row.split("|")[3:5] == [f" <= {half_s:g} s ", f" {reached} "]


def test_figures__a_missed_fault_counts_against_recall_only():
    missed = {"detected": False, "latency_s": None, "rank_right": None, "cause_right": None}
    results = [result("06-stop.torch.0.2s.0"), result("06-stop.torch.0.2s.1", **missed)]
    marks = figures([reporting.compact(r) for r in results])
    assert str(marks.recall) == "1/2"
    assert str(marks.rank) == str(marks.cause) == "1/1"
    assert marks.latency_s == (2.0, 2.0, 2.0)
    assert marks.latency_steps == (10.0, 10.0, 10.0)


def test_false_alarms__over_healthy_hours():
    records = [reporting.compact(result(f"q0-healthy.torch.0.2s.{n}")) for n in range(100)]
    alarms = false_alarms(records)
    assert alarms.hours == pytest.approx(1.0)
    assert alarms.per_1000_hours == 0
    assert alarms.bound_per_1000_hours == pytest.approx(2996, abs=1)


def test_false_alarms__a_job_that_was_ended_before_its_phase_began_counts():
    ended = result("qa-checkpoint.torch.0.2s.0", false_shut_down=True)
    ended |= {"valid": False, "problem": "RunFailed: the job ended before it trained"}
    records = [reporting.compact(ended), reporting.compact(result("q0-healthy.torch.0.2s.0"))]
    assert false_alarms(records).shut_downs == 1
    assert "qa-checkpoint.torch.0.2s.0" in reporting.not_counted(records)
    assert "; a false shutdown" in reporting.not_counted(records)
    assert runner.one_line(ended).endswith("FALSE SHUTDOWN")


def test_main__report_from_results_and_again_from_its_data(tmp_path: Path):
    results, out = tmp_path / "results", tmp_path / "out"
    results.mkdir()
    wrong = {"rank_right": False, "cause_right": False, "cause": "storage"}
    for name, marks in (
        ("06-stop.torch.0.2s.0", {}),
        ("15-two-locks.torch.0.2s.0", wrong),
        ("q0-healthy.torch.0.2s.0", {"false_verdicts": 1}),
    ):
        (results / f"{name}.json").write_text(json.dumps(result(name, **marks)))
    absent = {"name": "06-stop.jax.2s.0", "scenario": "06-stop", "framework": "jax", "step_s": 2.0}
    (results / "x.json").write_text(json.dumps(absent | {"not_runnable": "JAX is not installed"}))
    data = ["--out", str(out), "--data", str(tmp_path / "data")]
    assert reporting.main(["--results", str(results), *data]) == 0
    report = (out / "faultbench.md").read_text()
    assert "| 15-two-locks | blocked_lock, blocked_read, blocked_sleep, blocked_unknown |" in report
    assert "| HUNG storage (1) |" in report
    assert "| 06-stop | JAX is not installed |" in report
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    for name in ("faultbench-latency.svg", "faultbench-curves.svg"):
        ElementTree.fromstring(files[name])
    assert reporting.main(["--results", str(tmp_path / "none"), *data]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


def test_main__no_data_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    where = ["--out", str(tmp_path), "--data", str(tmp_path)]
    assert reporting.main(["--results", str(tmp_path / "none"), *where]) == 2
    assert "run tools/faultbench/run" in capsys.readouterr().err
