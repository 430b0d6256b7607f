"""tools/gpu-check without a GPU: it says so, or runs every part against stubs."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.skips import ROOT
from tools.gpucheck.self_test import complaints

TOOL = ROOT / "tools/gpu-check"
SELF_TEST_S = 120
"""45 s where nothing else runs; the machine of a test run has other work."""
PARTS = ["waits", "nvml", "holders", "nccl", "probes", "sensor", "overhead"]

pytestmark = [pytest.mark.needs("gcc", "cgroup2"), pytest.mark.timeout(SELF_TEST_S + 30)]


def check(*arguments: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    # the checkout's own environment has what the sensor needs, whatever python3 is here
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(TOOL), *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=environment,
    )


@pytest.fixture(scope="module")
def self_test(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("gpu-check")
    done = check("--self-test", "--out", str(folder), limit_s=SELF_TEST_S)
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "gpu.json").read_text())["parts"]


@pytest.mark.long
def test_every_part_of_the_gpu_check_is_done(self_test: tuple[Path, Any]) -> None:
    _, parts = self_test
    assert {name: part["why"] for name, part in parts.items() if part["state"] != "done"} == {}
    assert sorted(parts) == sorted(PARTS)


@pytest.mark.long
def test_a_spinning_wait_differs_from_a_sleeping_one(self_test: tuple[Path, Any]) -> None:
    facts = self_test[1]["waits"]["facts"]
    spinning, sleeping = (
        facts[f"synchronize {mode} primary"] for mode in ("SPIN", "BLOCKING_SYNC")
    )
    assert spinning["states"].keys() == {"R"}
    assert sleeping["states"].keys() == {"S"}
    assert sleeping["registers"]["sets_compared_in_16"] == 1
    assert spinning["registers"]["sets_of_all_words_in_16"] > 4


@pytest.mark.long
def test_a_self_test_with_wrong_facts_complains(self_test: tuple[Path, Any]) -> None:
    parts = copy.deepcopy(self_test[1])
    assert list(complaints(parts)) == []
    waits, stages = parts["waits"]["facts"], parts["holders"]["facts"]["CUDA_VISIBLE_DEVICES empty"]
    waits["synchronize SPIN primary"] = waits["synchronize BLOCKING_SYNC primary"]
    del parts["nccl"]["facts"]["torch"]
    stages["initialised"]["not possible here"] = "no word"
    parts["nvml"].update(state="not possible here", why="not over after 20 s")
    assert {line.partition(":")[0] for line in complaints(parts)} == {
        "waits",
        "nccl",
        "holders",
        "nvml",
    }


@pytest.mark.long
def test_the_sensor_names_the_stopped_rank_and_the_one_whose_device_failed(
    self_test: tuple[Path, Any],
) -> None:
    facts = self_test[1]["sensor"]["facts"]
    found = {fault: facts[fault]["first"]["rank"] for fault in ("stop", "address")}
    assert found == {"stop": 1, "address": 1}, facts


@pytest.mark.long
def test_the_page_has_a_section_for_each_part(self_test: tuple[Path, Any]) -> None:
    page = (self_test[0] / "gpu.md").read_text()
    assert page.count("\n## ") == len(PARTS)
    assert "a stub, no GPU" in page


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    done = check("--out", str(tmp_path / "out"), limit_s=40)
    assert done.returncode == 3
    assert done.stderr.startswith("gpu-check: no NVIDIA GPU to check here: ")
    assert done.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = check("--out", str(tmp_path / "file"), limit_s=20)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
