"""NVML through the real Python binding, against a library of our own that has no GPU behind it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.skips import ROOT

pytestmark = pytest.mark.needs("gcc", "nvidia-ml-py")

PROGRAM = """
import json, sys, time
from kcover_ebpf.hardware.nvml import Nvml
nvml = Nvml()
status = nvml.status(float(sys.argv[1]))
found, end_s = [], time.monotonic() + 20
while status.attached and len(found) < int(sys.argv[2]) and time.monotonic() < end_s:
    found += nvml.take()
    time.sleep(0.01)
print(json.dumps({
    "reason": status.reason,
    "refusal": status.refusal,
    "xids": [(x.device, x.number, x.gpu_instance, x.confirmed, x.rung.value) for x in found],
    "users": [(u.pid, u.gpu_instance) for u in nvml.users("0000:5d:00.0")],
}))
nvml.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source = ROOT / "tests/faults/nvml.c"
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, source], check=True, timeout=60)
    return folder


def listen(folder: Path, script: str, wanted: int = 0, patience_s: float = 20) -> dict[str, Any]:
    (folder / "script").write_text(script)
    environ = os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_NVML": str(folder / "script"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(patience_s), str(wanted)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_nvml__xids_and_who_computes(library: Path) -> None:
    script = "xid 0 79 -1\nxid 1 94 3\nuser 0 4711 -1\nuser 0 4712 2\nuser 1 9 -1\n"
    said = listen(library, script, wanted=2)
    assert said["reason"] == ""
    assert said["xids"] == [
        ["0000:5d:00.0", 79, None, True, "nvml"],
        ["0000:5e:00.0", 94, 3, True, "nvml"],
    ]
    assert said["users"] == [[4711, None], [4712, 2]]


def test_nvml__a_driver_that_is_not_loaded(library: Path) -> None:
    said = listen(library, "refuse 9\n")
    assert (said["reason"], said["refusal"]) == ("NVML: Driver Not Loaded", "no_driver")


def test_nvml__a_library_that_hangs_is_not_waited_for(library: Path) -> None:
    assert listen(library, "hang\n", patience_s=0.3)["reason"] == "it does not answer"


def test_nvml__no_library(tmp_path: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("needs a machine without NVML: this one has it")
    assert listen(tmp_path, "")["reason"] == "libnvidia-ml.so.1 not found"
