"""Faults beside background work: how they are run, and how they are compared."""

from pathlib import Path
from typing import Any

import pytest

from bench.faultbench import background_report
from bench.faultbench.job import launch_command
from bench.faultbench.plan import MATRIX, RunSpec
from testbed.workloads import background
from testbed.workloads.launch import network_members
from testbed.workloads.training import Options

STOP = next(scenario for scenario in MATRIX if scenario.id == "06-stop")


def record(name: str, **marks: Any) -> dict[str, Any]:
    known = {"valid": True, "is_fault": True, "detected": True, "rank_right": True, "load": 1.0}
    return {
        "name": name,
        "scenario": name.split(".", maxsplit=1)[0],
        "latency_s": 2.0,
        **known,
        **marks,
    }


def test_launch_command__only_with_a_collector_do_ranks_more_than_train() -> None:
    run = RunSpec(STOP, "torch", 0.2)
    plain = launch_command(run, "tag", Path("events"), "", False)
    busy = launch_command(run, "tag", Path("events"), "", False, "10.0.0.1:9")
    assert [word for word in busy if word not in plain] == [
        "--monitor", "--background", "10.0.0.1:9"
    ]  # fmt: skip
    # one goes to the launcher, the other to each rank
    assert busy.index("--monitor") < busy.index("--") < busy.index("--background")
    assert Options.from_argv(busy[busy.index("--") + 1 :]).background == "10.0.0.1:9"


@pytest.mark.parametrize(("framework", "members"), [("torch", 4), ("mpi", 1)])
def test_network_members__the_ranks_of_mpi_share_a_namespace(framework: str, members: int) -> None:
    assert network_members(framework, 4) == members


def test_background__its_logs_are_as_many_bytes_as_they_say() -> None:
    assert background.LOG_LINES * len(background.LOG_LINE) / background.PERIOD_S == 20_000
    assert pytest.approx(0.06) == background.CPU_S / background.PERIOD_S


def test_pairs__only_what_was_valid_both_times_is_compared() -> None:
    without = [record("a.torch.0.2s.0"), record("b.torch.0.2s.0", valid=False)]
    beside = [record("a.torch.0.2s.0"), record("b.torch.0.2s.0"), record("c.torch.0.2s.0")]
    (both,) = background_report.pairs(without, beside)
    assert both[0]["name"] == both[1]["name"] == "a.torch.0.2s.0"


def test_markdown__what_takes_twice_the_time_or_is_not_found_is_late() -> None:
    without = [record(f"{name}.torch.0.2s.0") for name in "abc"]
    beside = [
        record("a.torch.0.2s.0", latency_s=3.0),
        record("b.torch.0.2s.0", latency_s=4.0, rank_right=False),
        record("c.torch.0.2s.0", detected=False, latency_s=None, rank_right=None),
    ]
    beside = [
        one | {"false_shut_down": False, "healthy_s": 9, "false_verdicts": 0} for one in beside
    ]
    text = background_report.markdown(without, beside)
    assert "| found within 1.5 times the time without | 1/3 | all |" in text
    assert "| right rank | 1/2, 50.0% | 97% |" in text
    assert "| b |  | 1/1 | 1/1 | 2.0 | 4.0 | 2.00 | 0/1 |" in text
    assert "| c |  | 1/1 | 0/1 | 2.0 | - | - | - |" in text
