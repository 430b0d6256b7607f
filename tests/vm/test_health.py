"""A node's health by real kernels: what the inspection finds, and what the rules make of the kernel's own lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from testbed.machines.packages import ROOT
from tests.vm import kernels
from tests.vm.conftest import CARD, GPU, needs_driver, stub_of
from tests.vm.guest import PYTHON, Guest
from tests.vm.sensing import Observer, inspected, logged_as

pytestmark = pytest.mark.family("health")

STUCK_S = 90
IN_DRIVER = f"""
import fcntl, os
fcntl.ioctl(os.open("/dev/nvidia0", os.O_RDWR), 102, {STUCK_S * 1000})
"""


@pytest.fixture
def faults(guest: Guest, prepared: kernels.Prepared) -> str:
    """Where the module that raises faults without a device takes its commands."""
    module = stub_of(prepared).with_name("kcover_faults.ko")
    guest.shell(f"[ -e /proc/kcover_faults ] || insmod {module}")
    return "/proc/kcover_faults"


@pytest.fixture
def port(guest: Guest) -> Iterator[str]:
    """An RDMA port of the kernel's own driver, on one end of a cable; the other end is far0."""
    if guest.run("/sbin/modprobe", "rdma_rxe").code:
        pytest.skip("needs rdma_rxe: this kernel is without it")
    guest.shell(
        "ip link add near0 type veth peer name far0; ip link set near0 up; ip link set far0 up"
    )
    guest.shell("rdma link add cable type rxe netdev near0; sleep 3")
    yield "cable/1"
    guest.shell("ip link del near0")


def test_the_link_of_a_network_card_and_its_errors(guest: Guest) -> None:
    found = inspected(guest, "pcie")
    assert any(item.startswith(f"NIC {CARD}: x") for item in found["evidence"]), found
    assert found["result"] == "pass"
    guest.python(f"inject('{CARD}', 0x4000, 0, 2, 0.5)", timeout_s=100)
    found = inspected(guest, "pcie")
    counted = int(
        guest.shell(f"awk '/TOTAL/ {{print $2}}' /sys/bus/pci/devices/{CARD}/aer_dev_nonfatal")
    )
    text = f"NIC {CARD}: {counted} nonfatal PCIe error(s) since the last boot"
    assert counted > 0
    assert (found["result"], found["evidence"][0]) == ("warn", text)


def of_port(guest: Guest, port: str, meanwhile: str = "true") -> tuple[str, str]:
    """The result of the check and what it says of a port. Ports of other tests may be down."""
    found = inspected(guest, "rdma", meanwhile)
    return found["result"], next(item for item in found["evidence"] if item.startswith(f"{port}: "))


def test_an_rdma_port_is_inspected(guest: Guest, port: str) -> None:
    guest.shell("ip link set far0 down; sleep 1")
    result, text = of_port(guest, port)
    assert (result, text.partition(" (")[0]) == ("fail", f"{port}: DOWN")
    guest.shell("ip link set far0 up; sleep 1")
    _, text = of_port(guest, port)
    assert text.startswith(f"{port}: ACTIVE, ")


def test_an_error_counter_that_grows_during_the_inspection(guest: Guest, port: str) -> None:
    counter = "/sys/class/infiniband/cable/ports/1/hw_counters/link_downed"
    if guest.run("/bin/cat", counter).code:
        pytest.skip("needs hw_counters/link_downed of rdma_rxe: this kernel is without it")
    meanwhile = "ip link set far0 down; sleep 1; ip link set far0 up; sleep 1"
    text = of_port(guest, port, meanwhile)[1]
    assert "within a second link_downed +1" in text
    assert int(guest.shell(f"cat {counter}")) >= 1


def test_firmware_that_fails_is_inspected_and_watched(
    guest: Guest, observer: Observer, faults: str
) -> None:
    """Reporters stay in error here: those of the tests before count."""
    before = errors_of_firmware(guest)
    mark = observer.mark()
    guest.shell(f"echo health fw_fatal assertion 0x10 >{faults}")
    (notice,) = observer.facts("DeviceNotice", 1, mark)
    assert (notice["notice"], notice["device"]) == ("nic_failed", GPU)
    found = inspected(guest, "devlink")
    assert found["result"] == "fail"
    text = f"pci/{GPU} fw_fatal: error, {before + 1} error(s), 0 recoveries"
    assert text in found["evidence"]
    assert f"devlink health diagnose pci/{GPU} reporter fw_fatal" in found["advice"]


def errors_of_firmware(guest: Guest) -> int:
    """How often the driver has reported it, by the kernel's own count."""
    reporters = json.loads(guest.shell("devlink -j health show"))["health"][f"pci/{GPU}"]
    return next(
        int(reporter["error"]) for reporter in reporters if reporter["reporter"] == "fw_fatal"
    )


def test_a_cpu_that_stays_in_the_kernel(guest: Guest, faults: str) -> None:
    """The detector waits for 20 s by default, here for 2."""
    guest.shell("sysctl -q kernel.watchdog_thresh=1; dmesg -C")
    guest.shell("echo 'watchdog: BUG: soft lockup - CPU#7 stuck for 99s! [forged:1]' >/dev/kmsg")
    guest.shell(f"echo lockup 10 >{faults}")
    line = logged_as(guest, "soft_lockup")
    guest.shell("sysctl -q kernel.watchdog_thresh=10")
    found = inspected(guest, "kernel_log")
    assert (found["result"], len(found["evidence"])) == ("warn", 1)
    assert found["evidence"][0].startswith("soft_lockup: ")
    guest.shell("dmesg -C")
    assert inspected(guest, "kernel_log")["result"] == "pass"
    assert "CPU#0" in line["line"]
    assert (line["concerns"], line["domain"], line["lasting"]) == ("node", "driver", False)
    assert "drain the node if it repeats" in line["advice"]


@needs_driver
def test_a_task_that_hangs_in_a_driver(guest: Guest) -> None:
    guest.shell("sysctl -q kernel.hung_task_timeout_secs=3 kernel.hung_task_warnings=10; dmesg -C")
    pid = guest.start("/usr/bin/python3", "-c", IN_DRIVER, log="/dev/null")
    found = inspected(guest, "d_state")
    line = logged_as(guest, "hung_task")
    guest.shell("sysctl -q kernel.hung_task_timeout_secs=120")
    assert f":{pid} blocked for more than" in line["line"]
    assert (line["concerns"], line["severity"]) == ("job", "error")
    assert "SIGKILL does not end such a task" in line["advice"]
    assert found["result"] == "warn"
    assert any(item.startswith(f"thread {pid} ") for item in found["evidence"])


HANGS = f"""
import fcntl, json, os
from kcover_ebpf.host.proc_text import split_stat
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, Cost, passed
def hangs(_):
    fcntl.ioctl(os.open("/dev/nvidia0", os.O_RDWR), 102, {STUCK_S * 1000})
    yield passed("the driver answered")
checks = [Check("stuck", Cost.LIGHT, 5.0, "", "", hangs),
          Check("other", Cost.LIGHT, 60.0, "", "", lambda _: iter([passed("well")]))]
stuck, other = runner.inspect(checks, InspectionOptions())
with open(f"/proc/{{stuck.left_behind}}/stat") as file:
    state = split_stat(file.read())[1][0]
print(json.dumps([stuck.part.result.value, stuck.part.evidence[0], state, other.part.result.value]))
"""


@needs_driver
def test_a_check_that_hangs_in_a_driver_is_left_behind(guest: Guest) -> None:
    """No signal ends a thread in D, so its process cannot be waited for."""
    done = guest.run("/usr/bin/env", "-C", str(ROOT), PYTHON, "-c", HANGS)
    assert done.code == 0, done.output
    result, evidence, state, other = json.loads(done.output.splitlines()[-1])
    assert (result, state, other) == ("unknown", "D", "pass"), "it ended while the driver hung"
    assert "did not answer within 5 s" in evidence


def test_an_nvme_drive_that_does_not_answer_in_time(guest: Guest) -> None:
    """The emulated drive serves 400 bytes a second, so a block takes ten; the driver waits for two."""
    if guest.run("/sbin/modprobe", "nvme_core", "io_timeout=2").code:
        pytest.skip("needs nvme_core: this kernel is without it")
    guest.shell("modprobe nvme; until [ -b /dev/nvme0n1 ]; do sleep 1; done; dmesg -C")
    guest.monitor("block_set_io_throttle flash 400 0 0 0 0 0")
    read = ("if=/dev/nvme0n1", "of=/dev/null", "bs=4096", "count=3", "iflag=direct")
    pid = guest.start("/bin/dd", *read, log="/share/dd.log")
    line = logged_as(guest, "nvme_timeout")
    guest.monitor("block_set_io_throttle flash 0 0 0 0 0 0")
    assert "nvme nvme0: " in line["line"]
    assert (line["domain"], line["concerns"], line["lasting"]) == ("storage", "node", False)
    guest.shell(f"while [ -e /proc/{pid}/exe ]; do sleep 1; done")
    assert "3+0 records in" in (guest.share / "dd.log").read_text()
    assert guest.shell("cat /sys/class/nvme/nvme0/state").strip() == "live"
    found = inspected(guest, "kernel_log")
    assert any(item.startswith("nvme_timeout: ") for item in found["evidence"])
