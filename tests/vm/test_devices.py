"""Real kernels, a stand-in driver, real PCIe errors: every error is one fact with the right device.

Each count is compared with a second source in the guest: the kernel's log, its sysfs counters.
"""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.hardware.catalog import judge
from kcover_ebpf.hardware.catalog.files import shipped
from tests.vm import kernels
from tests.vm.conftest import GPU, HOLD, PORT, UUID, Observer
from tests.vm.guest import Guest

Line = dict[str, Any]

needs_driver = pytest.mark.usefixtures("driver")
# 23, a prime: no buffer or batch size divides it
XIDS = (
    13, 31, 32, 43, 45, 46, 48, 61, 62, 63, 64, 69, 74, 79, 92, 94, 95, 109, 119, 120, 140, 154,
    172,
)  # fmt: skip
WORDS = "pid={pid}, name=python3, Ch 0000000{n}, said by the stand-in"

SAY = """
def say(command):
    begun = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with open("/proc/driver/nvidia/stub", "w") as stub:
        stub.write(command)
    print(begun)
"""
INJECT = """
import struct
def inject(bdf, uncorrected, corrected, times=1, pause_s=0.0):
    domain, bus, rest = bdf.split(":")
    slot, function = rest.split(".")
    record = struct.pack("<BBBxIIIIIII", int(bus, 16), int(slot, 16), int(function),
                         uncorrected, corrected, 1, 2, 3, 4, int(domain, 16))
    with open("/dev/aer_inject", "wb", buffering=0) as device:
        for _ in range(times):
            device.write(record)
            if pause_s:
                time.sleep(pause_s)
"""


def logged(guest: Guest) -> int:
    return int(guest.shell("dmesg | grep -c 'NVRM: Xid' || true"))


def counter(guest: Guest, kind: str) -> int:
    """Errors that the port above the GPU was told of, by the kernel's own count.

    The device's own count leaves out fatal errors: its registers cannot be read then.
    """
    return int(guest.shell(f"cat /sys/bus/pci/devices/{PORT}/aer_rootport_total_err_{kind}"))


@needs_driver
def test_every_probe_is_attached(observer: Observer) -> None:
    assert observer.ready["ready"] == "kprobe"
    refused = {name: reason for name, reason in observer.ready["probes"].items() if reason}
    assert refused == {}


@needs_driver
def test_23_xids_are_23_facts(guest: Guest, observer: Observer) -> None:
    guest.python(SAY)
    mark, before = observer.mark(), logged(guest)
    for n, number in enumerate(XIDS):
        text = WORDS.format(pid=observer.member, n=n % 10)
        guest.python(f"say('xid {number} {GPU} {text}')")
    facts = observer.facts("XidReported", len(XIDS), mark)
    assert [fact["number"] for fact in facts] == list(XIDS)
    assert logged(guest) - before == len(XIDS)
    assert {fact["device"] for fact in facts} == {GPU}
    assert {fact["rung"] for fact in facts} == {"kprobe"}
    assert {fact["pid"] for fact in facts} == {observer.member}
    assert all(fact["confirmed"] and fact["text"].endswith("the stand-in") for fact in facts)


@needs_driver
def test_xids_that_end_a_job_are_faults_of_the_process_that_holds_the_gpu(
    guest: Guest, observer: Observer
) -> None:
    guest.python(SAY)
    mark = observer.mark()
    for number in XIDS:
        guest.python(f"say('xid {number} {GPU} no process is named here')")
    faults = observer.facts("DeviceFault", len(XIDS), mark)
    assert [fault["code"] for fault in faults] == [f"Xid {number}" for number in XIDS]
    assert {fault["pid"] for fault in faults} == {observer.member}
    for number, fault in zip(XIDS, faults, strict=True):
        entry = shipped().find(number)
        assert entry is not None
        assert fault["ends_job"] == judge(entry, "").ends_job, number


@needs_driver
def test_a_silent_driver_is_seen_all_the_same(guest: Guest, observer: Observer) -> None:
    """With NVreg_RmLogonRC=0 the driver reports without printing."""
    guest.python(SAY)
    mark, before = observer.mark(), logged(guest)
    guest.python(f"say('report 95 {GPU} Uncontained: LTC TAG')")
    (fact,) = observer.facts("XidReported", 1, mark)
    assert (fact["number"], fact["text"], fact["rung"]) == (95, "Uncontained: LTC TAG", "kprobe")
    assert logged(guest) == before


@needs_driver
def test_a_line_alone_is_believed_only_from_the_kernel(guest: Guest, observer: Observer) -> None:
    guest.python(SAY)
    mark = observer.mark()
    guest.shell(f"echo 'NVRM: Xid (PCI:0000:5d:00): 79, pid={observer.member}, forged' >/dev/kmsg")
    guest.python("say('print NVRM: Xid (PCI:0000:5d:00 GPU-I:03): 48, by the kernel')")
    # without a console rung (before 6.0) a forged line is not even told
    wanted = 2 if observer.ready["console"] else 1
    facts = observer.facts("XidReported", wanted, mark)
    by_number = {fact["number"]: fact for fact in facts}
    assert 79 not in by_number or not by_number[79]["confirmed"]
    assert by_number[48]["confirmed"]
    assert by_number[48]["gpu_instance"] == 3
    faults = [line for line in observer.lines()[mark:] if line.get("fact") == "DeviceFault"]
    assert {fault["code"] for fault in faults} == {"Xid 48"}


USE = """
import fcntl, os, time
gpu = os.open("/dev/nvidia0", os.O_RDWR)
time.sleep(3600)
"""


@needs_driver
def test_an_error_of_a_mig_instance_concerns_who_opened_it(
    guest: Guest, prepared: kernels.Prepared
) -> None:
    """Two processes hold the GPU, one of them its instance 3; the line names no process."""
    guest.python(SAY)
    members = [
        guest.start("/usr/bin/python3", "-c", script, log="/dev/null") for script in (HOLD, USE)
    ]
    guest.shell("sleep 2")
    both = Observer(guest, members)
    mark = both.mark()
    guest.python("say('print NVRM: Xid (PCI:0000:5d:00 GPU-I:03): 95, Uncontained')")
    (fault,) = both.facts("DeviceFault", 1, mark)
    mark = both.mark()
    guest.python("say('print NVRM: Xid (PCI:0000:5d:00 GPU-I:07): 95, Uncontained')")
    faults = both.facts("DeviceFault", 2, mark)
    both.close()
    guest.run("/bin/kill", *map(str, members))
    assert (fault["pid"], fault["uuid"]) == (members[0], UUID)
    # nobody is known to use instance 7: then all that hold the GPU are concerned
    assert {each["pid"] for each in faults} == set(members)


@needs_driver
def test_a_function_that_the_compiler_renamed(guest: Guest, observer: Observer) -> None:
    """The stand-in's uvm_api_unregister_gpu is a clone, as gcc makes them."""
    names = guest.shell("grep -o 'uvm_api_unregister_gpu[^ \t]*' /proc/kallsyms").split()
    assert names == ["uvm_api_unregister_gpu.constprop.0"]
    mark = observer.mark()
    guest.run("/usr/bin/python3", "-c", HOLD.replace("time.sleep(3600)", LET_GO))
    facts = observer.facts("CudaContext", 2, mark)
    assert [(fact["active"], fact["uuid"]) for fact in facts] == [(True, UUID), (False, UUID)]


LET_GO = 'fcntl.ioctl(uvm, 38, bytes.fromhex("00112233445566778899aabbccddeeff") + bytes(24))'


@needs_driver
def test_the_drivers_own_tracepoint_when_told_to(guest: Guest, observer: Observer) -> None:
    guest.python(SAY)
    pinned = Observer(guest, [observer.member], "--pin-driver")
    assert pinned.ready["ready"] == "tracepoint"
    mark = pinned.mark()
    for number in (79, 94, 154):
        guest.python(f"say('xid {number} {GPU} pid={observer.member}, name=x, once')")
    facts = pinned.facts("XidReported", 3, mark)
    assert [(f["number"], f["rung"], f["text"]) for f in facts] == [
        (number, "tracepoint", "once") for number in (79, 94, 154)
    ]
    uses = int(guest.shell("cat /sys/module/nvidia/refcnt"))
    pinned.close()
    assert int(guest.shell("cat /sys/module/nvidia/refcnt")) < uses


@needs_driver
def test_a_lost_gpu_without_an_xid(guest: Guest, observer: Observer) -> None:
    guest.python(SAY)
    mark = observer.mark()
    guest.python(f"say('print NVRM: GPU {GPU}: GPU has fallen off the bus.')")
    (fault,) = observer.facts("DeviceFault", 1, mark)
    assert (fault["code"], fault["pid"], fault["ends_job"]) == ("gpu_lost", observer.member, True)


@needs_driver
def test_switch_errors_concern_every_gpu(guest: Guest, observer: Observer) -> None:
    guest.python(SAY)
    mark = observer.mark()
    head = "print nvidia-nvswitch0: SXid (PCI:0000:c1:00.0)"
    guest.python(f"say('{head}: 12020, Fatal, Link 30 egress sequence ID error')")
    guest.python(f"say('{head}: 12020, Data {{0x1, 0x2}}')")
    guest.python(f"say('{head}: 20034, Fatal, Link 30 LTSSM Fault Up')")
    facts = observer.facts("DeviceFault", 2, mark)
    assert [(f["code"], f["ends_job"]) for f in facts] == [
        ("SXid 12020", True),
        ("SXid 20034", False),
    ]
    reports = [line for line in observer.lines()[mark:] if line.get("fact") == "XidReported"]
    assert [report["link"] for report in reports] == [30, 30]


def aer_counts(observer: Observer, mark: int, wanted: int) -> list[Line]:
    def enough(lines: list[Line]) -> bool:
        told = sum(int(x["count"]) for x in lines if x.get("fact") == "AerError")
        return told >= wanted

    lines = observer.wait(enough, mark)
    observer.mark()
    return [line for line in observer.lines()[mark:] if line.get("fact") == "AerError"] or lines


def check_severity(
    guest: Guest, observer: Observer, kind: str, bits: tuple[int, int], pause_s: float
) -> list[Line]:
    guest.python(INJECT)
    mark, before = observer.mark(), counter(guest, kind)
    guest.python(f"inject('{GPU}', {bits[0]}, {bits[1]}, 23, {pause_s})", timeout_s=200)
    facts = aer_counts(observer, mark, 23)
    assert counter(guest, kind) - before == 23
    assert {fact["device"] for fact in facts} == {GPU}
    assert sum(fact["count"] for fact in facts) == 23
    return facts


def test_23_corrected_errors(guest: Guest, observer: Observer) -> None:
    facts = check_severity(guest, observer, "cor", (0, 0x40), 0.02)
    assert {fact["severity"] for fact in facts} == {2}
    assert all("Bad TLP" in fact["errors"] for fact in facts)
    assert len(facts) < 23


@needs_driver
def test_23_nonfatal_errors(guest: Guest, observer: Observer) -> None:
    mark = observer.mark()
    facts = check_severity(guest, observer, "nonfatal", (0x4000, 0), 0.3)
    assert len(facts) == 23
    assert all("Completion Timeout" in fact["errors"] for fact in facts)
    faults = [line for line in observer.lines()[mark:] if line.get("fact") == "DeviceFault"]
    assert {(fault["pid"], fault["ends_job"]) for fault in faults} == {(observer.member, False)}


@needs_driver
def test_23_fatal_errors_end_the_job_that_holds_the_gpu(guest: Guest, observer: Observer) -> None:
    mark = observer.mark()
    facts = check_severity(guest, observer, "fatal", (0x40000, 0), 1.5)
    assert len(facts) == 23
    faults = [line for line in observer.lines()[mark:] if line.get("fact") == "DeviceFault"]
    assert len(faults) == 23
    assert {(f["code"], f["pid"], f["ends_job"]) for f in faults} == {
        ("AER fatal", observer.member, True)
    }


@needs_driver
def test_an_error_of_the_port_above_is_the_gpus(guest: Guest, observer: Observer) -> None:
    guest.python(INJECT)
    mark = observer.mark()
    guest.python(f"inject('{PORT}', 0x20, 0)")
    (fault,) = observer.facts("DeviceFault", 1, mark)
    assert fault["device"] == GPU
    assert fault["pid"] == observer.member
    assert PORT in fault["text"]
    assert "Surprise Down Error" in fault["text"]


def test_a_storm_of_corrected_errors_is_counted(guest: Guest, observer: Observer) -> None:
    guest.python(INJECT)
    mark, before = observer.mark(), counter(guest, "cor")
    guest.python(f"inject('{GPU}', 0, 0x1, 10000); time.sleep(2)", timeout_s=300)
    happened = counter(guest, "cor") - before
    facts = aer_counts(observer, mark, happened)
    passes = len([line for line in observer.lines()[mark:] if "cpu_s" in line])
    assert happened > 1000
    assert sum(fact["count"] for fact in facts) == happened
    assert len(facts) <= 2 * passes
