"""The check `nvml`, and what precedes a heavy check, against a driver that does not answer.

Each call of NVML hangs once, in state D.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.driver import nvml_stub
from tests.unit.support.inspection_hosts import pci_device

pytestmark = pytest.mark.needs("gcc", "nvidia-ml-py")

MODULES = (
    "inspection/checks/nvml.py",
    "inspection/checks/nvml_gpu.py",
    "devices/nvml_library.py",
)
# Each call of the check, and the name by which the script of testbed/faults/nvml_health.c knows it.
HANGS = {
    "nvmlInit": "init -1",
    "nvmlDeviceGetCount": "count -1",
    "nvmlDeviceGetHandleByIndex": "handle 1",
    "nvmlDeviceGetPciInfo": "pci 1",
    "nvmlDeviceGetFieldValues": "recovery 1",
    "nvmlDeviceGetTotalEccErrors": "ecc 1",
    "nvmlDeviceGetRemappedRows": "remap_failure 1",
    "nvmlDeviceGetRetiredPages": "retired 1",
    "nvmlDeviceGetRetiredPagesPendingStatus": "pending_page 1",
    "nvmlDeviceGetCurrPcieLinkWidth": "width 1",
    "nvmlDeviceGetMaxPcieLinkWidth": "max_width 1",
    "nvmlDeviceGetPerformanceState": "pstate 1",
    "nvmlDeviceGetCurrPcieLinkGeneration": "generation 1",
    "nvmlDeviceGetMaxPcieLinkGeneration": "max_generation 1",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle 1",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "old_throttle 1",
    "nvmlDeviceGetUtilizationRates": "utilization 1",
    "nvmlDeviceGetClockInfo": "sm_clock 1",
    "nvmlDeviceGetMaxClockInfo": "highest_clock 1",
    "nvmlDeviceGetApplicationsClock": "set_clock 1",
    "nvmlDeviceGetPowerUsage": "power_mw 1",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_mw 1",
    "nvmlDeviceGetPowerManagementDefaultLimit": "default_mw 1",
    "nvmlDeviceGetTemperature": "temperature 1",
    "nvmlDeviceGetTemperatureThreshold": "threshold 1",
    "nvmlDeviceGetGpuFabricInfoV": "fabric 1",
    "nvmlDeviceGetPersistenceMode": "persistence 1",
    "nvmlDeviceGetEccMode": "ecc_mode 1",
    "nvmlDeviceGetNvLinkState": "links 1",
    "nvmlDeviceGetPcieReplayCounter": "replays 1",
    "nvmlDeviceGetNvLinkErrorCounter": "link_crc 1",
}
# Both GPUs compute, so that their clocks are read; a hang in the older call needs a driver without the newer one.
BEFORE = "utilization 0 100\nutilization 1 100\n"
BEFORE_OLDER = f"{BEFORE}throttle 0 error 3\nthrottle 1 error 3\n"
DEADLINE_S = 5.0
"""Of a check that hangs; 1 s was enough for all of them on one busy core."""

# One inspection of a check for each script of a folder, and of one that collects which of those were in state D.
PROGRAM = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path
import pynvml
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.checks import nvml, nvml_gpu
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, Cost, passed

host, scripts, deadline_s = Path(sys.argv[1]), sorted(Path(sys.argv[2]).iterdir()), float(sys.argv[3])

def of(script):
    def find(options):
        Path("/proc/self/comm").write_text(script.name)
        os.environ["FAKE_NVML"] = str(script)
        yield from nvml.find(options)
    return replace(nvml.CHECK, name=script.name, deadline_s=deadline_s, find=find)

def states(options):
    parent, seen = os.getppid(), set()
    while time.monotonic() < end_s:
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            try:
                name, _, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            if state.split()[0] == "D":
                seen.add(name)
        time.sleep(0.1)
    yield from map(passed, sorted(seen))

end_s = time.monotonic() + deadline_s
options = InspectionOptions(root=host, pause=lambda _: None)
checks = [*map(of, scripts), Check("states", Cost.LIGHT, deadline_s + 5, "", "", states)]
found = runner.inspect(checks, options)
print(json.dumps({
    each.name: [each.part.result.value, each.part.evidence, each.seconds, each.left_behind]
    for each in found
}))
"""


def inspect(folder: Path, scripts: Mapping[str, str]) -> dict[str, Any]:
    """Result, evidence, seconds and process left behind of a check for each script, and of `states`."""
    host, library, written = (folder / name for name in ("host", "library", "scripts"))
    for path in (host, library, written):
        path.mkdir()
    for address in ("0000:5d:00.0", "0000:5e:00.0"):
        pci_device(host, address)
    for name, script in scripts.items():
        (written / name).write_text(script)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(host), str(written), str(DEADLINE_S)],
        env=nvml_stub.environ(nvml_stub.build(library), written / "none"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_inspection_nvml_hangs__no_call_that_hangs_is_waited_for(tmp_path: Path) -> None:
    names = {call: line.split()[0] for call, line in HANGS.items()}
    scripts = {names[call]: f"{BEFORE}{line} block\n" for call, line in HANGS.items()}
    older = names["nvmlDeviceGetCurrentClocksThrottleReasons"]
    scripts[older] = f"{BEFORE_OLDER}{older} 1 block\n"
    healthy = {"healthy": BEFORE, "no_shutdown": f"{BEFORE}shutdown -1 block\n"}
    found = inspect(tmp_path, scripts | healthy)

    result, in_d, *_ = found.pop("states")
    assert (result, set(in_d)) == ("pass", set(scripts)), "which were seen in state D"
    for name in healthy:
        result, evidence, *_ = found.pop(name)
        assert (result, len(evidence)) == ("pass", 2), "others have results, a line for each GPU"
    answers = {
        name: (result, evidence, left) for name, (result, evidence, _, left) in found.items()
    }
    unknown = ("unknown", [f"did not answer within {DEADLINE_S:g} s"], None)
    assert answers == dict.fromkeys(scripts, unknown)
    assert min(taken for _, _, taken, _ in found.values()) >= DEADLINE_S


def test_inspection_nvml_hangs__each_call_of_the_check_can_hang() -> None:
    assert nvml_stub.calls(*MODULES) == set(HANGS)


BUSY_HANGS = {
    "nvmlInit": "init -1",
    "nvmlDeviceGetCount": "count -1",
    "nvmlDeviceGetHandleByIndex": "handle 1",
    "nvmlDeviceGetComputeRunningProcesses": "process 1",
    "nvmlDeviceGetUtilizationRates": "utilization 1",
    "nvmlDeviceGetMemoryInfo": "memory_mib 1",
}
# A heavy check for each line. The runner's clock begins to run, past the deadline, once the check is in state D.
BUSY_PROGRAM = """
import json, os, sys, time
from pathlib import Path
import pynvml
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, Cost, passed

class Clock:
    sleep, is_over = time.sleep, False

    def monotonic(self):
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            self.is_over = self.is_over or state == "D"
        return time.monotonic() if self.is_over else 0.0

check = Check("heavy", Cost.HEAVY, 0.05, "", "", lambda _: [passed("it was run")])
script, found = Path(os.environ["FAKE_NVML"]), []
for line in sys.argv[2:]:
    script.write_text(line)
    runner.time = Clock()
    found += runner.inspect([check], InspectionOptions(root=Path(sys.argv[1])))
print(json.dumps([[each.part.result.value, each.part.evidence, each.left_behind] for each in found]))
"""


def test_inspection_nvml_hangs__no_call_before_a_heavy_check_is_waited_for(tmp_path: Path) -> None:
    lines = [f"{busy_hang} block\n" for busy_hang in BUSY_HANGS.values()]
    done = subprocess.run(
        [sys.executable, "-c", BUSY_PROGRAM, str(tmp_path), "", *lines],
        env=nvml_stub.environ(nvml_stub.build(tmp_path), tmp_path / "script"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    healthy, *hanging = json.loads(done.stdout)
    assert healthy == ["pass", ["it was run"], None]
    unknown = ["unknown", ["did not answer within 0.05 s"], None]
    assert hanging == [unknown] * len(BUSY_HANGS)


def test_inspection_nvml_hangs__each_call_before_a_heavy_check_can_hang() -> None:
    assert nvml_stub.calls("inspection/runner.py") | {"nvmlInit"} == set(BUSY_HANGS)
