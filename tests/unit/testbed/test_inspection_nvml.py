"""The check `nvml` through the real binding, against a library that has no GPU behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.driver import nvml_stub
from tests.unit.support.inspection_hosts import pci_device

pytestmark = pytest.mark.needs("gcc", "nvidia-ml-py")

PROGRAM = """
import json, sys
from dataclasses import replace
from pathlib import Path
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.checks import nvml
from kcover_ebpf.inspection.options import InspectionOptions
check = replace(nvml.CHECK, deadline_s=float(sys.argv[2]))
options = InspectionOptions(root=Path(sys.argv[1]), pause=lambda _: None)
(found,) = runner.inspect([check], options)
part, try_busy = found.part, sys.argv[3] == "busy"
print(json.dumps([part.result.value, part.evidence, part.advice,
                  runner.reason_not_to_run(options.root) if try_busy else "",
                  [[each.device, each.result.value] for each in found.findings if each.device]]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_stub.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for address in ("0000:5d:00.0", "0000:5e:00.0"):
        pci_device(tmp_path, address)
    return tmp_path


def examine(
    library: Path, host: Path, script: str = "", deadline_s: float = 60, how: str = "-"
) -> tuple[str, list[str], str, str]:
    result, evidence, advice, reason, _ = answer(library, host, script, deadline_s, how)
    return result, evidence, advice, reason


def answer(
    library: Path, host: Path, script: str = "", deadline_s: float = 60, how: str = "-"
) -> list[Any]:
    (host / "script").write_text(script)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(host), str(deadline_s), how],
        env=nvml_stub.environ(library, host / "script"),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_inspection_nvml__each_gpu_has_a_result_of_its_own(library: Path, host: Path) -> None:
    first, second = "0000:5d:00.0", "0000:5e:00.0"
    assert answer(library, host)[4] == [[first, "pass"], [second, "pass"]]
    assert answer(library, host, "recovery 1 1\n")[4] == [[first, "pass"], [second, "fail"]]
    gone = answer(library, host, "count -1 1\n")[4]
    assert gone == [[second, "fail"], [first, "pass"]], "it is on the bus, but NVML has it not"


def test_inspection_nvml__a_virtual_function_of_a_gpu_is_none_that_nvml_lacks(
    library: Path, host: Path
) -> None:
    """On a host of vGPUs the driver has them, and NVML lists the GPU alone."""
    driver = host / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    virtual = pci_device(host, "0000:5d:00.4")
    (virtual / "driver").symlink_to(driver)
    (virtual / "physfn").symlink_to(host / "sys/bus/pci/devices/0000:5d:00.0")
    assert answer(library, host)[4] == [["0000:5d:00.0", "pass"], ["0000:5e:00.0", "pass"]]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without a GPU")
def test_inspection_nvml__devices_that_our_container_lacks_are_no_fault_of_the_node(
    library: Path, host: Path
) -> None:
    """As of an agent that is not privileged, which may load the host's library."""
    failing = "init -1 error 9\n"
    assert answer(library, host, failing)[0] == "fail", "the driver has no files on the host either"
    (host / "dev").mkdir()
    (host / "dev/nvidiactl").touch()
    result, evidence, advice, _ = examine(library, host, failing)
    assert result == "unknown"
    assert "are on the host, not here" in evidence[0]
    assert "agent.privileged: true" in advice


def test_inspection_nvml__healthy_gpus(library: Path, host: Path) -> None:
    result, evidence, advice, _ = examine(library, host)
    assert (result, advice) == ("pass", "")
    assert evidence == [
        "GPU 0 (0000:5d:00.0): healthy, PCIe x16, 4 NVLinks up, 40 C, 70 of 700 W",
        "GPU 1 (0000:5e:00.0): healthy, PCIe x16, 4 NVLinks up, 40 C, 70 of 700 W",
    ]


OLD_LINKS = "link_replays 1 error 2\nlink_recoveries 1 error 3\nlink_crc 1 error 3"
"""Links since the fifth generation do not have these counters."""
NEWER_LINKS = [
    ("link_malformed 1 grow", "malformed packets of NVLink 0 grew by"),
    ("link_overruns 1 grow", "packets lost for lack of buffers of NVLink 0 grew by"),
    ("link_received_errors 1 grow", "received errors of NVLink 0 grew by"),
    ("link_integrity 1 grow", "integrity errors of NVLink 0 grew by"),
    ("link_effective 1 grow", "effective errors of NVLink 0 grew by"),
    ("link_recovery_events 1 grow", "recoveries of NVLink 0 grew by"),
    ("link_recovery_events 1 2", "2 recoveries of NVLink 0 since the driver was loaded"),
    ("link_malformed 1 error 3\nlink_recovery_events 1 2", "2 recoveries of NVLink 0"),
]
WRONG_FABRICS = [
    (2, "wrong GUID of the system"),
    (3, "wrong serial number of the chassis"),
    (4, "no partition"),
    (5, "too few NVLinks"),
    (6, "the GPU's firmware does not fit"),
    (7, "invalid location"),
    (8, "invalid state of the GPU"),
    (15, "number 15"),
]


@pytest.mark.parametrize(
    ("script", "result", "words"),
    [
        ("ecc 1 2", "fail", "2 uncorrected ECC error(s)"),
        ("ecc_mode 1 0", "warn", "ECC is off"),
        ("remap_failure 1 1", "fail", "could not be remapped"),
        ("remap_pending 1 1", "warn", "waits for a reset"),
        ("retired 1 30", "fail", "60 retired pages"),
        ("pending_page 1 1", "warn", "to be retired"),
        ("recovery 1 1", "fail", "requests a recovery action: GPU reset"),
        ("recovery 1 2", "fail", "node reboot"),
        ("width 1 8", "fail", "PCIe link x8 of x16"),
        ("generation 1 3", "warn", "generation 3 of 5"),
        ("replays 1 grow", "warn", "PCIe replays grew by"),
        ("links 1 3", "fail", "3 NVLinks are up, another GPU of this model has 4"),
        ("link_recoveries 1 2", "warn", "2 recoveries of NVLink 0"),
        ("link_recoveries 1 grow", "warn", "recoveries of NVLink 0 grew by"),
        ("link_replays 1 grow", "warn", "replays of NVLink 0 grew by"),
        ("link_crc 1 grow", "warn", "CRC errors of NVLink 0 grew by"),
        *((f"{OLD_LINKS}\n{script}", "warn", words) for script, words in NEWER_LINKS),
        ("throttle 1 64", "warn", "heat, by hardware"),
        ("throttle 1 32", "warn", "heat, by software"),
        ("throttle 1 136", "warn", "power brake"),
        ("throttle 1 8", "warn", "hardware slow-down"),
        (
            "power_limit_mw 1 400000",
            "warn",
            "power limit of 400 W, 700 W by default; it draws 70 W",
        ),
        (
            "utilization 1 80\nsm_clock 1 990",
            "warn",
            "SM clock of 990 MHz while it is 80% busy, of 1980",
        ),
        (
            "utilization 1 99\nsm_clock 1 345\nset_clock 1 1100",
            "warn",
            "345 MHz while it is 99% busy, of 1100",
        ),
        ("utilization 1 99\nsm_clock 1 345\nthrottle 1 2", "warn", "SM clock of 345 MHz"),
        ("temperature 1 84", "warn", "84 C"),
        ("temperature 1 90", "fail", "90 C, the GPU slows down at 87 C"),
        ("persistence 1 0", "warn", "persistence mode is off"),
        ("fabric 1 2", "fail", "not registered with the NVLink fabric (state 2, status 0)"),
        (
            "fabric_status 1 999",
            "fail",
            "not registered with the NVLink fabric (state 3, status 999)",
        ),
        (f"fabric_health 1 {0b10_10_10_01}", "warn", "NVLink fabric: its bandwidth is degraded"),
        (f"fabric_health 1 {0b10_10_01_10}", "warn", "NVLink fabric: a route is being recovered"),
        (f"fabric_health 1 {0b10_01_10_10}", "fail", "NVLink fabric: a route is unhealthy"),
        (f"fabric_health 1 {0b01_10_10_10}", "warn", "an access time-out is being recovered"),
        *(
            (
                f"fabric_health 1 {number << 8 | 0b10_10_10_10}",
                "warn" if words == "no partition" else "fail",
                f"wrong configuration: {words}",
            )
            for number, words in WRONG_FABRICS
        ),
        ("handle 1 error 15", "fail", "GPU 1 gives no answer"),
        ("ecc 1 error 15", "fail", "the GPU is lost"),
        ("ecc 1 error 999", "unknown", "ecc: NVML: Unknown Error"),
        ("power_mw 1 error 999", "unknown", "power: NVML: Unknown Error"),
        ("count -1 1", "fail", "0000:5e:00.0 is on the PCI bus"),
        ("init -1 error 9", "fail", "with 2 GPU(s) on the PCI bus: Driver Not Loaded"),
    ],
)
def test_inspection_nvml__each_fault_is_found(
    library: Path, host: Path, script: str, result: str, words: str
) -> None:
    seen, evidence, advice, _ = examine(library, host, f"{script}\n")
    assert seen == result
    assert words in evidence[0]
    assert advice
    others = [line for line in evidence if line.startswith("GPU 0")]
    assert len(others) == (not script.startswith("init"))
    assert all("healthy" in line for line in others)


@pytest.mark.parametrize("folder", ["usr/lib64", "run/nvidia/driver/usr/lib64"])
def test_inspection_nvml__a_library_that_only_the_host_has(
    library: Path, host: Path, folder: str
) -> None:
    place = host / folder
    place.mkdir(parents=True)
    (place / "libnvidia-ml.so.1").symlink_to(library / "libnvidia-ml.so.1")
    result, evidence, _, _ = examine(host / "nowhere", host, "recovery 1 1\n")
    assert (result, "GPU reset" in evidence[0]) == ("fail", True)
    *_, reason = examine(host / "nowhere", host, "utilization 0 7\n", how="busy")
    assert reason == "GPU 0 is busy: its utilisation is 7%"


@pytest.mark.parametrize(
    "script",
    [
        "generation 1 1\npstate 1 8\n",  # idle: it saves power
        "throttle 1 1\n",  # idle
        "power_mw 1 705000\nutilization 1 100\nthrottle 1 4\nsm_clock 1 900\n",  # all the power that it may draw
        "power_limit_mw 1 800000\n",  # raised
        "power_limit_mw 1 699000\n",
        "sm_clock 1 345\nutilization 1 79\n",  # it hardly computes
        "sm_clock 1 345\nutilization 1 100\npstate 1 8\n",
        "sm_clock 1 991\nutilization 1 100\n",
        "sm_clock 1 500\nset_clock 1 800\nutilization 1 100\nthrottle 1 2\n",  # the applications' setting
        "fabric_health 1 0\n",  # no field is supported
        f"fabric_health 1 {1 << 8}\n",  # a right configuration
        "ecc 1 error 3\necc_mode 1 error 3\nfabric 1 0\n",  # not supported
        "power_mw 1 error 3\npower_limit_mw 1 400000\ndefault_mw 1 error 3\n",
        "sm_clock 1 error 3\nutilization 1 100\n",
        "sm_clock 1 345\nutilization 1 100\nthrottle 1 error 3\nold_throttle 1 error 3\n",
        "sm_clock 1 345\nutilization 1 100\nhighest_clock 1 error 3\nset_clock 1 error 3\n",
        "links 0 0\nlinks 1 0\n",
        "links 1 0\nmodel 1 632295646\n",  # a display adapter beside GPUs for computing
        "retired 1 5\n",
        "recovery 1 error 3\n",
        "link_replays 1 error 2\n",  # a counter that this generation of links does not have
        f"{OLD_LINKS}\n",
        f"{OLD_LINKS}\nlink_received_errors 1 5\nlink_effective 1 5\n",  # of before
    ],
)
def test_inspection_nvml__what_is_no_fault(library: Path, host: Path, script: str) -> None:
    result, evidence, _, _ = examine(library, host, script)
    assert result == "pass", evidence


def test_inspection_nvml__no_library(tmp_path: Path) -> None:
    result, evidence, advice, _ = examine(tmp_path, tmp_path)
    if "libnvidia-ml" not in evidence[0]:
        pytest.skip("needs a machine without NVML: this one has it")
    assert result == "unknown"
    assert "install NVIDIA's driver" in advice


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", ""),
        ("process 1 4711\n", "GPU 1 is busy: process 4711 computes on it"),
        ("utilization 0 7\n", "GPU 0 is busy: its utilisation is 7%"),
        ("memory_mib 1 2000\n", "GPU 1 is busy: 2000 MiB"),
        ("init -1 error 9\n", "whether a GPU is busy is not known: NVML: Driver Not Loaded"),
    ],
)
def test_inspection_nvml__when_a_gpu_is_busy(
    library: Path, host: Path, script: str, words: str
) -> None:
    reason = examine(library, host, script, how="busy")[3]
    assert reason.startswith(words)
    assert bool(reason) == bool(words)
