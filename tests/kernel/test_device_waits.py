"""Ranks that wait for a device as those of CUDA do: real processes, whose libcuda.so.1 is a stub."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from testbed.skips import ROOT
from testbed.workloads import gpu_styles
from tests.kernel.command import PYTHON, Run, run

HEALTHY_STEPS = {"lock": 30, "device": 30, "asleep": 80, "beside": 80}
"""Of a quarter of a second: a wait is judged by its length once a job has trained and its steps were learned."""
JOB = "for r in 0 1 2; do RANK=$r WORLD_SIZE=3 {python} {program} {library} {memory} {steps} {fault} & done; wait"

pytestmark = pytest.mark.needs("cgroup2")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libcuda.so.1 by its real name."""
    return gpu_styles.build(gpu_styles.CUDA, tmp_path_factory.mktemp("driver"))


def job(library: Path, folder: Path, fault: str) -> list[str]:
    memory = folder / "memory"
    memory.write_bytes(bytes(4096))
    script = JOB.format(
        python=PYTHON,
        program=ROOT / "testbed/faults/gpu.py",
        library=library,
        memory=memory,
        steps=HEALTHY_STEPS[fault],
        fault=fault,
    )
    return ["--", "sh", "-c", script]


def verdicts(one: Run) -> list[dict[str, Any]]:
    return [event for event in one.events() if event["event"] == "verdict"]


def began_s(one: Run) -> float:
    return min(float(line.split()[1]) for line in one.err.splitlines() if line.startswith("fault "))


@pytest.mark.alone  # its ranks need a core each
def test_the_rank_that_took_a_lock_is_named_among_those_that_wait_for_their_devices(
    tmp_path: Path, library: Path
) -> None:
    options = ("-o", "json", "--act", "snapshot", "--for", "40s")
    with run(*options, *job(library, tmp_path, "lock"), folder=tmp_path) as one:
        one.finish(90)
    faults = [
        verdict for verdict in verdicts(one) if verdict["verdict"] not in ("WORKING", "UNKNOWN")
    ]
    assert faults, one.out
    assert {(fault["cause"], fault["culprit"]["rank"]) for fault in faults} == {("blocked_lock", 1)}
    assert faults[0]["time"] > began_s(one)


@pytest.mark.parametrize("how", ["device", "asleep", "beside"])
def test_no_rank_is_named_or_ended_where_all_wait_for_their_devices(
    tmp_path: Path, library: Path, how: str
) -> None:
    # three that spin on two cores may still look like a long step
    watched = "19s" if how == "device" else "90s"
    options = ("-o", "json", "--act", "shutdown", "--for", watched)
    with run(*options, *job(library, tmp_path, how), folder=tmp_path) as one:
        if how == "device":
            assert one.finish() != 75
        else:
            one.await_verdict("device_wait")
            one.send(signal.SIGINT)
            assert one.reap() != 75
    found = verdicts(one)
    assert found, one.out
    assert {entry["verdict"] for entry in found} <= {"WORKING", "HUNG", "UNKNOWN"}, one.out
    assert [entry["culprit"] for entry in found] == [None] * len(found), one.out
    assert {entry["cause"] for entry in found if entry["verdict"] == "HUNG"} <= {"device_wait"}
    assert how == "device" or found[-1]["cause"] == "device_wait", one.out
