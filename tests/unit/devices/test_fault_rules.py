"""What the report of a device means for the processes that have it open."""

import pytest

from kcover_ebpf.devices import catalog, fault_rules
from kcover_ebpf.devices.aer import names
from kcover_ebpf.devices.attribution import Attributed, Attribution
from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    AnnouncedFault,
    DeviceNotice,
    Notice,
    Rung,
    XidReported,
)
from kcover_ebpf.ids import Pid

GPU = "0000:5d:00.0"
CORRECTED, NONFATAL, FATAL = AerSeverity.CORRECTED, AerSeverity.NONFATAL, AerSeverity.FATAL


def xid(number: int, text: str = "", **more) -> XidReported:
    values = {"rung": Rung.KPROBE, "confirmed": True, **more}
    return XidReported(5, GPU, number, text, **values)


class FakeHolders:
    """A host whose only GPU two processes hold."""

    holders = frozenset({Pid(10), Pid(11)})

    def of(self, *_: object) -> set[Pid]:
        return set(self.holders)

    def of_any_gpu(self, *_: object) -> set[Pid]:
        return set(self.holders)

    def uuid(self, _: str) -> str:
        return "GPU-0"


def attributed(report_xid: XidReported) -> Attributed:
    attribution = Attribution(FakeHolders(), shipped, 0)  # type: ignore[arg-type]
    return attribution.of_xid(report_xid, FakeHolders.holders, 5, None)


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
    named, *found = attributed(report)
    assert isinstance(named, AnnouncedFault)
    assert named.holders == pids
    assert found == named.of_holders
    assert {fault.ends_job for fault in (named, *found)} == {ends_job}
    assert all(GPU in fault.text for fault in (named, *found))


def test_of_xid__what_could_be_forged_is_no_fault():
    assert fault_rules.of_xid(xid(79, confirmed=False), shipped()) is None
    assert attributed(xid(79, confirmed=False)) == []


def test_of_xid__it_is_judged_once(monkeypatch):
    """For the node and for each holder alike."""
    judged = []

    def judge(entry, text):
        judged.append(entry.number)
        return catalog.judge(entry, text)

    monkeypatch.setattr(fault_rules, "judge", judge)
    assert len(attributed(xid(79))) == 3
    assert judged == [79]


def aer(severity: AerSeverity, device: str = GPU) -> AerError:
    return AerError(5, device, severity, 0x20, names(severity, 0x20), 1)


def test_of_aer__whom_a_pcie_error_concerns():
    assert fault_rules.of_aer(aer(CORRECTED), GPU) is None
    reported = fault_rules.of_aer(aer(NONFATAL), GPU)
    assert reported is not None
    assert not reported.ends_job
    reported = fault_rules.of_aer(aer(FATAL, "0000:5c:00.0"), GPU)
    assert reported is not None
    assert reported.ends_job
    assert reported.device == GPU
    assert reported.text.startswith("PCIe fatal error of port 0000:5c:00.0 above 0000:5d:00.0")


def test_of_notice__whom_a_notice_concerns():
    lost = DeviceNotice(5, GPU, Notice.GPU_LOST, "gone")
    reported = fault_rules.of_notice(lost, GPU)
    assert reported is not None
    assert reported.ends_job
    assert fault_rules.of_notice(DeviceNotice(5, GPU, Notice.SLOT_UP, "x"), GPU) is None
    for notice in (Notice.NIC_TIMEOUT, Notice.NIC_HEALTH):
        late = DeviceNotice(5, GPU, notice, "x")
        reported = fault_rules.of_notice(late, GPU)
        assert reported is not None
        assert not reported.ends_job


@pytest.mark.parametrize(
    ("notice", "ends_job", "device_unfit"),
    [
        (Notice.GPU_LOST, True, True),
        (Notice.GPU_INIT_FAILED, True, True),
        (Notice.GPU_RESET, True, False),
        (Notice.GPU_WORN_OUT, False, True),
        (Notice.GPU_ERROR, False, False),
        (Notice.GPU_LINK_ERROR, False, False),
    ],
)
def test_of_notice__a_gpu_of_any_vendor(notice: Notice, ends_job: bool, device_unfit: bool) -> None:
    fault = fault_rules.of_notice(DeviceNotice(5, GPU, notice, "amdgpu: ..."), GPU)
    assert fault is not None
    assert (fault.ends_job, fault.device_unfit) == (ends_job, device_unfit)
