"""The meaning of a device report, independent of which processes use the device. Pure."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.catalog import FIRST_SXID, Action, Catalog, judge
from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    AnnouncedFault,
    DeviceNotice,
    Notice,
    PortChange,
    XidReported,
)

PORT_DOWN, LINK_DOWN = "port down", "link down"
"""Fault codes of an RDMA port that is down and of a network interface that is down."""
_BROKEN = frozenset({Notice.GPU_LOST, Notice.GPU_INIT_FAILED, Notice.NIC_FAILED, Notice.SLOT_DOWN})
_ENDS_JOB = _BROKEN | {Notice.GPU_RESET}
_UNFIT = _BROKEN | {Notice.GPU_WORN_OUT}
_ONE_PROCESS = frozenset({Action.RESTART_APP, Action.CHECK_APP, Action.CHECK_PEER, Action.NONE})
"""These actions affect only the process that the driver named, not all processes on the GPU."""


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """The fault that an Xid or SXid means, and how far it reaches."""

    fault: AnnouncedFault
    is_confined: bool
    """Only the process that the driver named is affected, if it named one."""


def of_xid(xid: XidReported, catalog: Catalog, driver: str | None = None) -> XidMeaning | None:
    """The meaning of an Xid or SXid; None if user space could have forged it.

    `driver`: version of the loaded GPU driver, which decides the meaning of some numbers.
    """
    if not xid.confirmed:
        return None
    entry = catalog.find(xid.number, driver)
    judged = judge(entry, xid.text) if entry is not None else None
    # an NVSwitch error of one link ends the jobs on the GPU of that link, and that GPU reports it
    # itself
    fabric_wide = judged is not None and judged.action is Action.RESET_FABRIC
    lost = judged is not None and judged.ends_job
    code = entry.name if entry is not None else f"Xid {xid.number}"
    meaning = f" ({entry.meaning})" if entry is not None else ""
    fault = AnnouncedFault(
        xid.boottime_ns,
        xid.device,
        code,
        f"{code} on {xid.device}{meaning}: {xid.text or 'no text'}",
        ends_job=lost and (fabric_wide or xid.number < FIRST_SXID),
        device_unfit=judged is not None and judged.device_unfit,
    )
    one_process = judged is None or judged.action in _ONE_PROCESS
    return XidMeaning(fault, one_process or xid.gpu_instance is not None)


def of_aer(error: AerError, device: str) -> AnnouncedFault | None:
    """The fault of `device`, which reported the error or lies below the port that did; None if it was corrected."""
    if error.severity is AerSeverity.CORRECTED:
        return None
    fatal = error.severity is AerSeverity.FATAL
    what = ", ".join(error.errors) or "its registers could not be read"
    word = error.severity.name.lower()
    at = "" if error.device == device else f" of port {error.device} above {device}"
    text = f"PCIe {word} error{at or f' of {device}'}: {what}"
    return AnnouncedFault(error.boottime_ns, device, f"AER {word}", text, fatal, fatal)


def of_notice(notice: DeviceNotice, device: str) -> AnnouncedFault | None:
    """The fault that a driver message about `device` means; None if it says that the device works again."""
    if notice.notice in (Notice.SLOT_UP, Notice.NIC_RECOVERED):
        return None
    return AnnouncedFault(
        notice.boottime_ns,
        device,
        notice.notice.value,
        notice.text,
        ends_job=notice.notice in _ENDS_JOB,
        device_unfit=notice.notice in _UNFIT,
    )


def of_port(change: PortChange, device: str) -> AnnouncedFault:
    """The fault for users of a port that went down, came up or counts errors.

    It never ends the job by itself: RDMA retries for half a minute, and the link may recover.
    """
    state = "up" if change.up else "down"
    kind, what = ("port", "RDMA port") if change.is_rdma else ("link", "network interface")
    text = f"{what} {change.port} is {state}: {change.text}"
    return AnnouncedFault(
        change.boottime_ns, device, f"{kind} {state}", text, False, False, port=change.port
    )
