"""Readings of GPUs through the real binding, against a library that has no GPU behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.api.codec import decode
from kcover_ebpf.devices.inventory.gpu_vendors import Gpu
from kcover_ebpf.devices.telemetry import watch
from kcover_ebpf.devices.telemetry.helper import HelperOptions
from kcover_ebpf.devices.telemetry.reading import GpuProcess, GpuReading
from kcover_ebpf.devices.telemetry.watch import GpuTelemetry, TelemetryOptions
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid
from testbed.driver import nvml_stub

pytestmark = pytest.mark.needs("gcc", "nvidia-ml-py")

READ = """
import json, os, sys, time
from pathlib import Path
import pynvml
from kcover_ebpf.api.codec import encode
from kcover_ebpf.devices.telemetry import nvml_source
nvml_source.NVML_STUCK_S = float(sys.argv[1])
source = nvml_source.NvmlSource(pynvml, Path("/"), 0.05)
end_s = time.monotonic() + 60
while time.monotonic() < end_s:
    found = source.readings()
    states = [task.read_text().rpartition(")")[2].split()[0] for task in Path("/proc/self/task").glob("*/stat")]
    answered = [each for each in found if each.boottime_ns or each.unanswered.startswith("NVML")]
    hanging = [each for each in found if each.unanswered and each not in answered]
    if len(hanging) == states.count("D") == int(sys.argv[2]) == len(found) - len(answered):
        break
    time.sleep(0.02)
else:
    raise SystemExit(f"{hanging} hang, in state D are {states.count('D')} threads")
print(json.dumps([encode(each) for each in found]), flush=True)
os._exit(0)
"""
GIB = 1 << 30


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_stub.build(tmp_path_factory.mktemp("nvml"))


def read(
    library: Path, folder: Path, script: str, stuck_s: float = 60, hanging_count: int = 0
) -> list[GpuReading]:
    (folder / "script").write_text(script)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(stuck_s), str(hanging_count)],
        env=nvml_stub.environ(library, folder / "script"),
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [decode(GpuReading, load) for load in json.loads(done.stdout)]


def test_gpu_reading__everything_is_read_in_our_units(library: Path, tmp_path: Path) -> None:
    script = (
        "utilization 1 98\npower_mw 1 612000\nmemory_mib 1 2048\nprocess 1 4711\nprocess_mib 1 1500\n"
        "throttle 1 72\ntemperature 1 66\necc 1 2\necc_corrected 1 9\nsm_clock 1 1755\nmemory_clock 1 2619\n"
        "nvlink_sent_kib 1 3\nnvlink_received_kib 1 4\npcie_sent 1 5\npcie_received 1 6\n"
    )
    first, second = read(library, tmp_path, script)
    assert (first.uuid, first.pci_bus_id, first.device) == (
        "GPU-7c0e-0",
        "00000000:5D:00.0",
        "0000:5d:00.0",
    )
    assert (first.utilization, first.power_w, first.processes) == (0.0, 70.0, ())
    assert second.boottime_ns > 0
    assert second == GpuReading(
        gpu="1",
        uuid="GPU-7c0e-1",
        pci_bus_id="00000000:5E:00.0",
        boottime_ns=second.boottime_ns,
        model="Stub 1",
        serial="165002100001",
        utilization=0.98,
        memory_utilization=0.49,
        memory_used_bytes=2 * GIB,
        memory_total_bytes=80 * GIB,
        power_w=612.0,
        power_limit_w=700.0,
        sm_clock_hz=1_755_000_000,
        memory_clock_hz=2_619_000_000,
        throttle=72,
        temperature_c=66,
        ecc_corrected_count=9,
        ecc_uncorrected_count=2,
        nvlink_sent_bytes=3072,
        nvlink_received_bytes=4096,
        pcie_sent_bytes=5,
        pcie_received_bytes=6,
        processes=(GpuProcess(4711, 1500 << 20),),
    )


def test_telemetry_nvml__what_a_gpu_does_not_support_is_not_observed(
    library: Path, tmp_path: Path
) -> None:
    names: tuple[str, ...] = (
        "old_throttle",
        "utilization",
        "power_mw",
        "power_limit_mw",
        "memory_mib",
        "throttle",
        "temperature",
    )
    names += ("ecc", "ecc_corrected", "sm_clock", "memory_clock", "nvlink_sent_kib", "pcie_sent")
    names += ("serial", "process")
    first, second = read(library, tmp_path, "".join(f"{name} 1 error 3\n" for name in names))
    assert (first.utilization, first.power_w) == (0.0, 70.0)
    unknown: tuple[object, ...] = (
        second.utilization,
        second.power_w,
        second.power_limit_w,
        second.memory_used_bytes,
    )
    unknown += (second.throttle, second.temperature_c, second.ecc_uncorrected_count)
    unknown += (second.sm_clock_hz, second.nvlink_sent_bytes, second.pcie_sent_bytes)
    assert set(unknown) == {None}
    assert (second.serial, second.processes, second.unanswered) == ("", (), "")
    assert second.pcie_received_bytes == 0


# Each call about one GPU, and the line by which the script of testbed/faults/nvml_health.c makes it hang on GPU {}.
HANGS = {
    "nvmlDeviceGetHandleByIndex": "handle {} block",
    "nvmlDeviceGetPciInfo": "pci {} block",
    "nvmlDeviceGetUUID": "uuid {} block",
    "nvmlDeviceGetName": "name {} block",
    "nvmlDeviceGetSerial": "serial {} block",
    "nvmlDeviceGetUtilizationRates": "utilization {} block",
    "nvmlDeviceGetMemoryInfo": "memory_mib {} block",
    "nvmlDeviceGetPowerUsage": "power_mw {} block",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_mw {} block",
    "nvmlDeviceGetClockInfo": "sm_clock {} block",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle {} block",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttle {0} error 3\nold_throttle {0} block",
    "nvmlDeviceGetTemperature": "temperature {} block",
    "nvmlDeviceGetTotalEccErrors": "ecc {} block",
    "nvmlDeviceGetComputeRunningProcesses": "process {} block",
    "nvmlDeviceGetFieldValues": "nvlink_sent_kib {} block",
}
# Those about all GPUs: the helper does not answer at all.
HANGS_OF_ALL = {"nvmlInit": "init -1 block\n", "nvmlDeviceGetCount": "count -1 block\n"}


def test_telemetry_nvml__a_call_that_hangs_costs_its_own_gpu_alone(
    library: Path, tmp_path: Path
) -> None:
    lines = [line.format(gpu) for gpu, line in enumerate(HANGS.values(), 1)]
    script = "\n".join([f"count -1 {1 + len(HANGS)}", *lines, ""])
    first, *others = read(library, tmp_path, script, stuck_s=1, hanging_count=len(HANGS))
    assert (first.unanswered, first.utilization) == ("", 0.0)
    assert [reading.unanswered for reading in others] == list(HANGS)
    assert {reading.utilization for reading in others} == {None}


def test_telemetry_nvml__each_call_can_hang() -> None:
    made = nvml_stub.calls("devices/telemetry/nvml_source.py", "devices/nvml_library.py")
    assert made == set(HANGS) | set(HANGS_OF_ALL)


def test_telemetry_nvml__an_older_driver_has_the_reasons_of_low_clocks_by_another_name(
    library: Path, tmp_path: Path
) -> None:
    first, second = read(library, tmp_path, "throttle 1 error 3\nold_throttle 1 72\n")
    assert (first.throttle, second.throttle) == (0, 72)


def test_telemetry_nvml__a_gpu_that_is_lost(library: Path, tmp_path: Path) -> None:
    first, second = read(library, tmp_path, "power_mw 1 error 15\n")
    assert (first.unanswered, first.power_w) == ("", 70.0)
    assert (second.unanswered, second.uuid) == ("NVML: GPU is lost", "GPU-7c0e-1")


class Host:
    """A telemetry over the real helper and the library, which a script changes."""

    def __init__(self, library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = folder / "script"
        for name, value in nvml_stub.environ(library, self.script).items():
            monkeypatch.setenv(name, value)
        self.root = folder
        (folder / "sys/module/nvidia").mkdir(parents=True)
        self.gpus: list[Gpu] = []
        self.made: list[GpuTelemetry] = []

    def watch(self, script: str = "", members: tuple[int, ...] = ()) -> GpuTelemetry:
        self.script.write_text(script)
        files = OpenFiles(self.root / "proc")
        found = GpuTelemetry(
            TelemetryOptions(0.2), lambda: self.gpus, files, self.root, again_s=0.2
        )
        self.made.append(found)
        self.members = [Pid(member) for member in members]
        return found

    def until(self, which: Callable[[], Any], timeout_s: float = 60) -> Any:
        end_s = time.monotonic() + timeout_s
        while not (answer := which()):
            assert time.monotonic() < end_s, self.made[-1].latest
            time.sleep(0.05)
        return answer


@pytest.fixture
def host(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(library, tmp_path, monkeypatch)
    yield made
    for telemetry in made.made:
        telemetry.close()


def test_telemetry_nvml__readings_reach_the_processes_that_nvml_lists(host: Host) -> None:
    script = "process 0 4711\nutilization 0 100\npower_mw 0 150000\n"
    telemetry = host.watch(script)
    seen = host.until(lambda: list(telemetry.tick([Pid(4711), Pid(4712)])))[0]
    assert (seen.pid, seen.devices, seen.use) == (4711, ("0000:5d:00.0",), GpuUse.LOW_POWER)
    assert (seen.power_w, seen.changed) == (150.0, False)
    host.script.write_text(script + "nvlink_sent_kib 0 2048\nutilization 0 30\n")
    moved = host.until(
        lambda: [gpu for gpu in telemetry.tick([Pid(4711)]) if gpu.nvlink_bytes or gpu.changed]
    )[0]
    assert moved.use is GpuUse.WORKING
    assert telemetry.latest.cpu_s > 0


def test_telemetry_nvml__a_process_that_nvml_does_not_list_has_the_gpus_whose_files_it_has_open(
    host: Host,
) -> None:
    host.gpus = [Gpu("0000:5e:00.0", 1, "GPU-7c0e-1", (), frozenset({"/dev/nvidia1"}))]
    links = host.root / "proc/31/fd"
    links.mkdir(parents=True)
    (links / "4").symlink_to("/dev/nvidia1")
    telemetry = host.watch()
    seen = host.until(lambda: list(telemetry.tick([Pid(31), Pid(32)])))
    assert {(item.pid, item.devices, item.use) for item in seen} == {
        (31, ("0000:5e:00.0",), GpuUse.IDLE)
    }


@pytest.mark.parametrize("script", HANGS_OF_ALL.values(), ids=list(HANGS_OF_ALL))
def test_telemetry_nvml__a_library_that_hangs_is_killed_and_asked_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(watch, "TELEMETRY_FIRST_S", 3.0)
    telemetry = host.watch(script)
    assert list(telemetry.tick([])) == []
    assert telemetry.latest.trouble == "not begun", "whoever waits for the driver hears of it"
    host.until(lambda: telemetry.latest.trouble == "the driver does not answer")
    host.script.write_text("")
    monkeypatch.setattr(watch, "TELEMETRY_FIRST_S", 60.0)
    host.until(lambda: len(telemetry.latest.gpus) == 2)
    assert telemetry.latest.trouble == ""


def test_telemetry_nvml__what_cannot_be_killed_is_left_behind_and_no_other_is_started(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "TELEMETRY_FIRST_S", 3.0)
    killed: list[int] = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    monkeypatch.setattr(os, "kill", lambda *_: None)
    telemetry = host.watch(HANGS_OF_ALL["nvmlInit"])
    list(telemetry.tick([]))
    text = host.until(lambda: "hangs in the driver" in telemetry.latest.trouble)
    assert text
    assert telemetry.latest.trouble == f"process {killed[0]} hangs in the driver"
    time.sleep(1.0)
    assert len(killed) == 1, "no second helper"
    host.script.write_text("")
    monkeypatch.setattr(os, "killpg", kill)
    monkeypatch.setattr(watch, "TELEMETRY_FIRST_S", 60.0)
    kill(killed[0], signal.SIGKILL)
    host.until(lambda: len(telemetry.latest.gpus) == 2)


@pytest.mark.parametrize(
    ("script", "words"),
    [("init -1 error 9\n", "NVML: Driver Not Loaded"), ("init -1 error 999\n", "NVML: Unknown")],
)
def test_telemetry_nvml__why_there_are_no_readings(host: Host, script: str, words: str) -> None:
    telemetry = host.watch(script)
    list(telemetry.tick([]))
    host.until(lambda: words in telemetry.latest.trouble)
    assert telemetry.latest.gpus == ()
    assert telemetry.latest.read_s is None


def test_telemetry_nvml__nothing_is_started_without_a_driver(host: Host) -> None:
    (host.root / "sys/module/nvidia").rmdir()
    telemetry = host.watch()
    list(telemetry.tick([]))
    host.until(lambda: telemetry.latest.trouble == "no GPU driver is loaded")


def test_telemetry_nvml__lines_of_another_version_end_the_readings(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the last values would be shown for ever."""
    program = "while echo '{\"gpus\": 1}'; do sleep 0.1; done"
    monkeypatch.setattr(HelperOptions, "argv", lambda _: ["/bin/sh", "-c", program])
    telemetry = host.watch()
    list(telemetry.tick([]))
    host.until(lambda: "of another version" in telemetry.latest.trouble, timeout_s=10)
