"""NVML through the real Python binding, against a library of our own that has no GPU behind it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.driver import nvml_stub

pytestmark = pytest.mark.needs("gcc", "nvidia-ml-py")

PROGRAM = """
import json, sys, time
from pathlib import Path
from kcover_ebpf.devices.nvml import Nvml
nvml = Nvml(Path(sys.argv[3]))
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
    return nvml_stub.build(tmp_path_factory.mktemp("nvml"), "nvml.c")


def listen(
    folder: Path, script: str, wanted: int = 0, patience_s: float = 20, host: Path = Path("/")
) -> dict[str, Any]:
    said: dict[str, Any] = run(folder, script, PROGRAM, str(patience_s), str(wanted), str(host))
    return said


def run(folder: Path, script: str, program: str, *arguments: str) -> Any:
    (folder / "script").write_text(script)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=nvml_stub.environ(folder, folder / "script"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nvml__xids_and_who_computes(library: Path) -> None:
    script = "xid 0 79 -1\nxid 1 94 3\nuser 0 4711 -1\nuser 0 4712 2\nuser 1 9 -1\n"
    said = listen(library, script, wanted=2)
    assert said["reason"] == ""
    assert said["xids"] == [
        ["0000:5d:00.0", 79, None, True, "nvml"],
        ["0000:5e:00.0", 94, 3, True, "nvml"],
    ]
    assert said["users"] == [[4711, None], [4712, 2]]


def test_nvml__a_library_that_only_the_host_has(library: Path, tmp_path: Path) -> None:
    place = tmp_path / "host/usr/lib64"
    place.mkdir(parents=True)
    (place / "libnvidia-ml.so.1").symlink_to(library / "libnvidia-ml.so.1")
    said = listen(tmp_path, "xid 0 79 -1\n", wanted=1, host=tmp_path / "host")
    assert (said["reason"], said["xids"]) == ("", [["0000:5d:00.0", 79, None, True, "nvml"]])


def test_nvml__a_driver_that_is_not_loaded(library: Path) -> None:
    said = listen(library, "refuse 9\n")
    assert (said["reason"], said["refusal"]) == ("NVML: Driver Not Loaded", "no_driver")


# One listener for each call, of which the thread is in state D before the next begins.
HANGING = """
import json, os, sys, time
from pathlib import Path
from kcover_ebpf.devices.nvml import Nvml

def in_d():
    stats = [(task / "stat").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum(stat.rpartition(")")[2].split()[0] == "D" for stat in stats)

script, found = Path(os.environ["FAKE_NVML"]), {}
for count, call in enumerate(sys.argv[1:], 1):
    script.write_text(f"user 0 4711 -1\\nxid 0 79 -1\\nblock {call}\\n")
    nvml = Nvml(Path("/"))
    if call in ("nvmlEventSetFree", "nvmlShutdown"):
        nvml.close()
    while in_d() < count:
        time.sleep(0.01)
    found[call] = [nvml.status().reason, [each.pid for each in nvml.users("0000:5d:00.0")]]
    assert len(nvml.take()) <= 1
    nvml.close()
print(json.dumps(found), flush=True)
os._exit(0)
"""
BEFORE_IT_LISTENS = {
    "nvmlInit",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetPciInfo",
    "nvmlEventSetCreate",
    "nvmlDeviceRegisterEvents",
}


def test_nvml__no_call_that_hangs_is_waited_for(library: Path) -> None:
    found = run(
        library,
        "",
        HANGING,
        *sorted(nvml_stub.calls("devices/nvml.py", "devices/nvml_library.py")),
    )
    for call in BEFORE_IT_LISTENS:
        assert found.pop(call) == ["it does not answer", []]
    assert found.pop("nvmlDeviceGetComputeRunningProcesses") == ["", []]
    assert found.pop("nvmlEventSetWait") == ["", [4711]], "what it learned before is kept"
    assert set(found) == {"nvmlEventSetFree", "nvmlShutdown"}


def test_nvml__no_library(tmp_path: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("needs a machine without NVML: this one has it")
    assert listen(tmp_path, "")["reason"] == "libnvidia-ml.so.1 not found"
