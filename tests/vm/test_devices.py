"""Real kernels and a stub driver: every report is one fact with the right device and process.

Each count is compared with a second source in the guest: the kernel's log.
"""

from __future__ import annotations

import json

import pytest

from kcover_ebpf.devices.catalog import judge
from kcover_ebpf.devices.catalog.files import shipped
from testbed.machines.packages import ROOT
from tests.vm import kernels
from tests.vm.conftest import GPU, UUID, needs_driver
from tests.vm.guest import Guest
from tests.vm.sensing import HOLD, Figure, Observer, of_kind

# 23, a prime: no buffer or batch size divides it
XIDS = (
    13, 31, 32, 43, 45, 46, 48, 61, 62, 63, 64, 69, 74, 79, 92, 94, 95, 109, 119, 120, 140, 154,
    172,
)  # fmt: skip
WORDS = "pid={pid}, name=python3, Ch 0000000{n}, said by the stub"


def logged(guest: Guest) -> int:
    return int(guest.shell("dmesg | grep -c 'NVRM: Xid' || true"))


@pytest.mark.family("probes")
@needs_driver
def test_every_probe_is_attached(guest: Guest, observer: Observer) -> None:
    assert observer.ready["ready"] == "kprobe"
    refused = {name: reason for name, reason in observer.ready["probes"].items() if reason}
    # since Linux 5.18
    has_block = guest.run("/bin/ls", "/sys/kernel/tracing/events/block/block_rq_error").code == 0
    assert set(refused) == (set() if has_block else {"block.on_block_error"}), refused


@pytest.mark.family("probes")
@needs_driver
def test_doctor_names_who_reports(guest: Guest, observer: Observer) -> None:
    done = guest.run(str(ROOT / ".venv/bin/kcover-ebpf"), "doctor", "-o", "json")
    reported = {row["family"]: row["rung"] for row in json.loads(done.output)["rungs"]}
    assert reported["Xids"] == "kprobe nv_report_error"
    # since Linux 6.0 the console's tracepoint sees each line
    stored = "log.on_stored" in observer.ready["probes"]
    source = "kprobe prb_final_commit" if stored else "printk:console"
    assert observer.ready["console"]
    assert reported["driver lines"] == f"{source}, read in /dev/kmsg"
    assert reported["GPU holders"] == "kprobes and /proc"
    assert reported["PCIe errors"] == "tracepoint aer_event"
    assert reported["RDMA ports"] == "kprobe, state and counters"
    assert reported["NIC firmware"] == "tracepoint devlink_health_report"
    assert reported["links"] == "netlink"


@pytest.mark.family("xid")
@needs_driver
def test_23_xids_are_23_facts(guest: Guest, observer: Observer, record_property: Figure) -> None:
    mark, before = observer.mark(), logged(guest)
    for n, number in enumerate(XIDS):
        text = WORDS.format(pid=observer.member, n=n % 10)
        guest.python(f"say('xid {number} {GPU} {text}')")
    facts = observer.facts("XidReported", len(XIDS), mark)
    record_property("facts", f"{len(facts)} of {len(XIDS)}")
    assert [fact["number"] for fact in facts] == list(XIDS)
    assert logged(guest) - before == len(XIDS)
    assert {fact["device"] for fact in facts} == {GPU}
    assert {fact["rung"] for fact in facts} == {"kprobe"}
    assert {fact["pid"] for fact in facts} == {observer.member}
    assert all(fact["confirmed"] and fact["text"].endswith("the stub") for fact in facts)


@pytest.mark.family("xid")
@needs_driver
def test_xids_that_end_a_job_are_faults_of_the_process_that_holds_the_gpu(
    guest: Guest, observer: Observer
) -> None:
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


@pytest.mark.family("silent")
@needs_driver
def test_a_silent_driver_is_seen_all_the_same(guest: Guest, observer: Observer) -> None:
    """With NVreg_RmLogonRC=0 the driver reports without printing."""
    mark, before = observer.mark(), logged(guest)
    guest.python(f"say('report 95 {GPU} Uncontained: LTC TAG')")
    (fact,) = observer.facts("XidReported", 1, mark)
    assert (fact["number"], fact["text"], fact["rung"]) == (95, "Uncontained: LTC TAG", "kprobe")
    assert logged(guest) == before


@pytest.mark.family("log")
@needs_driver
def test_a_line_alone_is_believed_only_from_the_kernel(guest: Guest, observer: Observer) -> None:
    mark = observer.mark()
    guest.shell(f"echo 'NVRM: Xid (PCI:0000:5d:00): 79, pid={observer.member}, forged' >/dev/kmsg")
    guest.python("say('print NVRM: Xid (PCI:0000:5d:00 GPU-I:03): 48, by the kernel')")
    facts = observer.facts("XidReported", 2, mark)
    by_number = {fact["number"]: fact for fact in facts}
    assert not by_number[79]["confirmed"]
    assert by_number[48]["confirmed"]
    assert by_number[48]["gpu_instance"] == 3
    faults = of_kind(observer.lines()[mark:], "DeviceFault")
    assert {fault["code"] for fault in faults} == {"Xid 48"}


USE = """
import fcntl, os, time
gpu = os.open("/dev/nvidia0", os.O_RDWR)
time.sleep(3600)
"""


@pytest.mark.family("holders")
@needs_driver
def test_an_error_of_a_mig_instance_concerns_who_opened_it(
    guest: Guest, prepared: kernels.Prepared
) -> None:
    """Two processes hold the GPU, one of them its instance 3; the line names no process."""
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
    # no process is known to use instance 7: then all that hold the GPU are concerned
    assert {entry["pid"] for entry in faults} == set(members)


@pytest.mark.family("holders")
@needs_driver
def test_a_function_that_the_compiler_renamed(guest: Guest, observer: Observer) -> None:
    """The stub's uvm_api_unregister_gpu is a clone, as gcc makes them."""
    # since 6.2 the padding before a function has a name too, with __pfx_ before it
    names = guest.shell("grep -o ' uvm_api_unregister_gpu[^ \t]*' /proc/kallsyms").split()
    assert names == ["uvm_api_unregister_gpu.constprop.0"]
    mark = observer.mark()
    guest.run("/usr/bin/python3", "-c", HOLD.replace("time.sleep(3600)", LET_GO))
    facts = observer.facts("CudaContext", 2, mark)
    assert [(fact["active"], fact["uuid"]) for fact in facts] == [(True, UUID), (False, UUID)]


LET_GO = 'fcntl.ioctl(uvm, 38, bytes.fromhex("00112233445566778899aabbccddeeff") + bytes(24))'


@pytest.mark.family("tracepoint")
@needs_driver
def test_the_drivers_own_tracepoint_when_asked_to(guest: Guest, observer: Observer) -> None:
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


@pytest.mark.family("lost")
@needs_driver
def test_a_lost_gpu_without_an_xid(guest: Guest, observer: Observer) -> None:
    mark = observer.mark()
    guest.python(f"say('print NVRM: GPU {GPU}: GPU has fallen off the bus.')")
    (fault,) = observer.facts("DeviceFault", 1, mark)
    assert (fault["code"], fault["pid"], fault["ends_job"]) == ("gpu_lost", observer.member, True)


@pytest.mark.family("switch")
@needs_driver
def test_switch_errors_concern_every_gpu(guest: Guest, observer: Observer) -> None:
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
    reports = of_kind(observer.lines()[mark:], "XidReported")
    assert [report["link"] for report in reports] == [30, 30]
