"""From what a device reported to what it means for the processes that hold it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    DeviceFault,
    DeviceNotice,
    Notice,
    PortChange,
    XidReported,
)
from kcover_ebpf.hardware.catalog import Action, Catalog, Entry, Judgement, judge
from kcover_ebpf.ids import Pid

_LETHAL_NOTICES = frozenset({Notice.GPU_LOST, Notice.GPU_INIT_FAILED, Notice.NIC_FAILED})
_ONE_PROCESS = frozenset({Action.RESTART_APP, Action.CHECK_APP, Action.CHECK_PEER, Action.NONE})
"""After these only the process that the driver named is concerned, not all that hold the GPU."""
_MPS = "nvidia-cuda-mps"


def of_xid(
    report: XidReported, holders: Collection[Pid], catalog: Catalog, driver: str | None = None
) -> list[DeviceFault]:
    """The faults of the processes concerned by an Xid or SXid; none for what could be forged."""
    if not report.confirmed:
        return []
    entry = catalog.find(report.number, driver)
    judged = judge(entry, report.text) if entry is not None else None
    concerned = set(holders)
    if report.pid in concerned and (_is_one_process(judged) or report.gpu_instance is not None):
        concerned = {report.pid}
    switch = entry is not None and entry.name.startswith("SXid")
    # a switch error of one link ends the jobs on that link's GPU, which then says so itself
    fabric_wide = judged is not None and judged.action is Action.RESET_FABRIC
    lost = judged is not None and judged.ends_job and (fabric_wide or not switch)
    unfit = judged is not None and judged.device_unfit
    code = entry.name if entry is not None else f"Xid {report.number}"
    text = _xid_text(report, code, entry)
    return [
        DeviceFault(report.boottime_ns, pid, report.device, code, text, lost, device_unfit=unfit)
        for pid in sorted(concerned)
    ]


def concerns_only(report: XidReported, catalog: Catalog, driver: str | None = None) -> Pid | None:
    """The process to which an Xid is confined; None where all that hold the GPU may be concerned.

    What the server of MPS is named for, its clients did, and all of them end with it.
    """
    entry = catalog.find(report.number, driver)
    judged = judge(entry, report.text) if entry is not None else None
    confined = _is_one_process(judged) or report.gpu_instance is not None
    return report.pid if confined and not report.process.startswith(_MPS) else None


def of_aer(error: AerError, holders: Collection[Pid], device: str) -> list[DeviceFault]:
    """The faults of the processes whose device `device` is, or hangs on, the one with the error."""
    fatal = error.severity is AerSeverity.FATAL
    if error.severity is AerSeverity.CORRECTED:
        return []
    what = ", ".join(error.errors) or "its registers could not be read"
    word = error.severity.name.lower()
    at = "" if error.device == device else f" of port {error.device} above {device}"
    text = f"PCIe {word} error{at or f' of {device}'}: {what}"
    return [
        DeviceFault(error.boottime_ns, pid, device, f"AER {word}", text, fatal, device_unfit=fatal)
        for pid in sorted(holders)
    ]


def of_notice(notice: DeviceNotice, holders: Collection[Pid], device: str) -> list[DeviceFault]:
    """The faults of the processes that hold a device of which the driver said something."""
    if notice.notice in (Notice.SLOT_UP, Notice.NIC_RECOVERED):
        return []
    lethal = notice.notice in _LETHAL_NOTICES or notice.notice is Notice.SLOT_DOWN
    return [
        DeviceFault(
            notice.boottime_ns,
            pid,
            device,
            notice.notice.value,
            notice.text,
            ends_job=lethal,
            device_unfit=lethal,
        )
        for pid in sorted(holders)
    ]


def of_port(change: PortChange, holders: Collection[Pid], device: str) -> list[DeviceFault]:
    """The faults of the processes that use a port which went down or counts errors.

    Never the job's end by itself: RDMA retries for half a minute, and a link may recover.
    """
    state = "up" if change.up else "down"
    kind, what = ("port", "RDMA port") if change.is_rdma else ("link", "network interface")
    text = f"{what} {change.port} is {state}: {change.text}"
    return [
        DeviceFault(change.boottime_ns, pid, device, f"{kind} {state}", text, ends_job=False)
        for pid in sorted(holders)
    ]


def _is_one_process(judged: Judgement | None) -> bool:
    return judged is None or judged.action in _ONE_PROCESS


def _xid_text(report: XidReported, code: str, entry: Entry | None) -> str:
    meaning = f" ({entry.meaning})" if entry is not None else ""
    return f"{code} on {report.device}{meaning}: {report.text or 'no text'}"
