"""What the report of a device means for the processes that have it open."""

import pytest

from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    DeviceNotice,
    Notice,
    Rung,
    XidReported,
)
from kcover_ebpf.hardware import fault_rules
from kcover_ebpf.hardware.aer import names
from kcover_ebpf.hardware.catalog.files import shipped
from kcover_ebpf.ids import Pid

GPU = "0000:5d:00.0"
CORRECTED, NONFATAL, FATAL = AerSeverity.CORRECTED, AerSeverity.NONFATAL, AerSeverity.FATAL


def xid(number: int, text: str = "", **more) -> XidReported:
    values = {"rung": Rung.KPROBE, "confirmed": True, **more}
    return XidReported(5, GPU, number, text, **values)


@pytest.mark.parametrize(
    ("report", "pids", "ends_job"),
    [
        (xid(79), {10, 11}, True),
        (xid(79, pid=Pid(11)), {10, 11}, True),
        (xid(31, pid=Pid(11)), {11}, False),
        (xid(31), {10, 11}, False),
        (xid(94, "Contained: x. RST: No, D-RST: No", pid=Pid(11)), {11}, True),
        (xid(94, "Contained: x. RST: Yes, D-RST: No", pid=Pid(11)), {10, 11}, True),
        (xid(95, pid=Pid(11), gpu_instance=2), {11}, True),
        (xid(63), {10, 11}, False),
        (xid(999), {10, 11}, False),
        (xid(12020, "Fatal, Link 3 x"), {10, 11}, True),
        (xid(20034, "Fatal, Link 3 x"), {10, 11}, False),
    ],
)
def test_of_xid__whom_an_xid_concerns(report, pids, ends_job):
    found = fault_rules.of_xid(report, {Pid(10), Pid(11)}, shipped())
    assert {fault.pid for fault in found} == pids
    assert {fault.ends_job for fault in found} == {ends_job}
    assert all(GPU in fault.text for fault in found)


def test_of_xid__what_could_be_forged_concerns_no_process():
    assert fault_rules.of_xid(xid(79, confirmed=False), {Pid(10)}, shipped()) == []


def aer(severity: AerSeverity, device: str = GPU) -> AerError:
    return AerError(5, device, severity, 0x20, names(severity, 0x20), 1)


def test_of_aer__whom_a_pcie_error_concerns():
    assert fault_rules.of_aer(aer(CORRECTED), {Pid(1)}, GPU) == []
    (reported,) = fault_rules.of_aer(aer(NONFATAL), {Pid(1)}, GPU)
    assert not reported.ends_job
    (reported,) = fault_rules.of_aer(aer(FATAL, "0000:5c:00.0"), {Pid(1)}, GPU)
    assert reported.ends_job
    assert reported.device == GPU
    assert reported.text.startswith("PCIe fatal error of port 0000:5c:00.0 above 0000:5d:00.0")


def test_of_notice__whom_a_notice_concerns():
    lost = DeviceNotice(5, GPU, Notice.GPU_LOST, "gone")
    assert fault_rules.of_notice(lost, {Pid(1)}, GPU)[0].ends_job
    assert fault_rules.of_notice(DeviceNotice(5, GPU, Notice.SLOT_UP, "x"), {Pid(1)}, GPU) == []
    for notice in (Notice.NIC_TIMEOUT, Notice.NIC_HEALTH):
        late = DeviceNotice(5, GPU, notice, "x")
        assert not fault_rules.of_notice(late, {Pid(1)}, GPU)[0].ends_job
