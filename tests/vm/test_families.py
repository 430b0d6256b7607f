"""What else the kernel reports: bad pages, RDMA ports, links; and a driver that comes and goes."""

from __future__ import annotations

import pytest

from tests.vm import kernels
from tests.vm.conftest import GPU, insert_driver, stub_of
from tests.vm.guest import Guest
from tests.vm.sensing import Observer, of_kind

# kernel helper of glibc's madvise: MADV_HWPOISON (include/uapi/asm-generic/mman-common.h)
POISON = """
import ctypes, mmap
area = mmap.mmap(-1, 4096)
area[0] = 1
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None, use_errno=True)
if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(4096), 100):
    raise OSError(ctypes.get_errno())
"""


@pytest.mark.family("memory")
def test_a_bad_page(guest: Guest, observer: Observer) -> None:
    mark = observer.mark()
    guest.run("/usr/bin/python3", "-c", POISON)
    (fact,) = observer.facts("MemoryFault", 1, mark)
    assert (fact["kind"], fact["corrected"]) == ("page", False)
    assert fact["address"] > 0
    assert "Memory failure" in guest.shell("dmesg | tail -20")


@pytest.mark.family("memory")
def test_a_machine_check(guest: Guest, observer: Observer) -> None:
    guest.shell("modprobe mce-inject")
    mark = observer.mark()
    place = "/sys/kernel/debug/mce-inject"
    # valid, uncorrected, enabled, with an address (arch/x86/include/asm/mce.h)
    guest.shell(
        f"cd {place}; echo sw >flags; echo 0xb400000000000135 >status; echo 0x12345 >addr; echo 4 >bank"
    )
    (fact,) = observer.facts("MemoryFault", 1, mark)
    assert (fact["kind"], fact["corrected"], fact["address"]) == ("machine_check", False, 0x12345)
    assert "bank 4" in fact["text"]


@pytest.fixture
def faults(guest: Guest, prepared: kernels.Prepared) -> str:
    """Where the module that raises faults without a device takes its commands."""
    module = stub_of(prepared).with_name("kcover_faults.ko")
    guest.shell(f"[ -e /proc/kcover_faults ] || insmod {module}")
    return "/proc/kcover_faults"


@pytest.mark.family("memory")
def test_a_memory_controller_that_reports(guest: Guest, observer: Observer, faults: str) -> None:
    before = int(guest.shell("cat /sys/devices/system/edac/mc/mc0/ue_count"))
    mark = observer.mark()
    guest.shell(f"echo memory DIMM_A1 >{faults}")
    (fact,) = observer.facts("MemoryFault", 1, mark)
    assert (fact["kind"], fact["corrected"], fact["count"]) == ("edac", False, 1)
    assert "DIMM_A1" in fact["text"]
    assert int(guest.shell("cat /sys/devices/system/edac/mc/mc0/ue_count")) == before + 1


@pytest.mark.family("memory")
def test_firmware_reports_of_arm64(guest: Guest, observer: Observer, faults: str) -> None:
    mark = observer.mark()
    for command in ("processor 1", "processor 0", "section 1 CCPLEX", "section 2 CMET"):
        guest.shell(f"echo {command} >{faults}")
    found = observer.facts("MemoryFault", 4, mark)
    assert [(fact["kind"], fact["corrected"], fact["text"]) for fact in found] == [
        ("arm_processor", True, "processor 0x80000100 runs on"),
        ("arm_processor", False, "processor 0x80000100 may have stopped"),
        ("vendor_section", True, "CCPLEX"),
        ("vendor_section", False, "CMET"),
    ]


@pytest.mark.family("nic")
def test_firmware_that_fails(guest: Guest, observer: Observer, faults: str) -> None:
    mark = observer.mark()
    guest.shell(
        f"echo health fw_fatal sensor 0x7 >{faults}; echo health tx queue 3 hangs >{faults}"
    )
    reported = observer.facts("DeviceNotice", 2, mark)
    assert [(fact["notice"], fact["device"], fact["text"]) for fact in reported] == [
        ("nic_failed", GPU, "fw_fatal: sensor 0x7"),
        ("nic_health", GPU, "tx: queue 3 hangs"),
    ]


@pytest.mark.family("disk")
def test_a_disk_that_fails_a_request(guest: Guest, observer: Observer) -> None:
    """The first bad sector of the emulated disk is 0x1234 (drivers/scsi/scsi_debug.c)."""
    if "block_rq_error" in observer.ready["probes"].get("block.on_block_error", ""):
        pytest.skip("needs block_rq_error: Linux 5.18 or newer")
    guest.shell("modprobe scsi_debug opts=2 max_luns=1 num_tgts=1; modprobe sd_mod; sleep 3")
    mark = observer.mark()
    read = guest.run("/bin/dd", "if=/dev/sda", "of=/dev/null", "bs=512", "skip=4660", "count=1",
                     "iflag=direct")  # fmt: skip
    assert read.code != 0
    facts = observer.facts("BlockError", 1, mark)
    assert {(f["disk"], f["operation"], f["sector"], f["error"]) for f in facts} == {
        ("sda", "read", 0x1234, "medium")
    }
    assert "sda" in guest.shell("dmesg | tail -20")


@pytest.mark.family("nic")
def test_a_link_that_goes_down(guest: Guest, observer: Observer) -> None:
    guest.shell("ip link add wire0 type veth peer name wire1; ip link set wire0 up")
    guest.shell("ip link set wire1 up; sleep 1")
    mark = observer.mark()
    guest.shell("ip link set wire1 down; sleep 1; ip link set wire1 up; sleep 1")
    lines = observer.wait(
        lambda lines: len([x for x in of_kind(lines, "PortChange") if x["port"] == "wire0"]) >= 2,
        mark,
    )
    reported = [(x["up"], x["text"]) for x in of_kind(lines, "PortChange") if x["port"] == "wire0"]
    assert [up for up, _ in reported] == [False, True]
    guest.shell("ip link del wire0")


@pytest.mark.family("nic")
def test_an_rdma_port_that_goes_down(guest: Guest, observer: Observer) -> None:
    guest.shell("modprobe rdma_rxe; ip link add wire0 type veth peer name wire1")
    guest.shell(
        "ip link set wire0 up; ip link set wire1 up; rdma link add soft type rxe netdev wire0"
    )
    guest.python("import time; time.sleep(3)")
    counters = guest.shell("ls /sys/class/infiniband/soft/ports/1/hw_counters").split()
    assert {"out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err"} <= set(counters)
    mark = observer.mark()
    guest.shell("ip link set wire1 down; sleep 1")
    lines = observer.wait(
        lambda lines: any(x["port"] == "soft/1" for x in of_kind(lines, "PortChange")), mark
    )
    reported = [x for x in of_kind(lines, "PortChange") if x["port"] == "soft/1"]
    # where the soft device has counters (7.3), a growing link_downed says it once more
    assert (False, "port down") in {(fact["up"], fact["text"]) for fact in reported}
    assert not any(fact["up"] for fact in reported)
    assert "DOWN" in guest.shell("cat /sys/class/infiniband/soft/ports/1/state")
    guest.shell("ip link del wire0")


@pytest.mark.family("reload")
def test_a_driver_that_is_unloaded_and_loaded_again(
    guest: Guest, observer: Observer, driver: kernels.Prepared
) -> None:
    """The probes must not keep the driver in, and must return with it."""
    assert driver.stub is not None
    guest.run("/bin/kill", str(observer.member))
    mark = observer.mark()
    guest.shell("rmmod nvidia_uvm; rmmod nvidia")
    observer.wait(lambda lines: any(line.get("rung") == "kmsg" for line in lines), mark)
    insert_driver(guest, driver.stub)
    mark = len(observer.lines())
    observer.wait(lambda lines: any(line.get("rung") == "kprobe" for line in lines), mark)
    mark = observer.mark()
    guest.python(f"say('xid 79 {GPU} pid=1, name=x, after the upgrade')")
    (fact,) = observer.facts("XidReported", 1, mark)
    assert (fact["rung"], fact["text"]) == ("kprobe", "after the upgrade")
