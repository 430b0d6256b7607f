"""The source of each kind of event on this host now: the highest working rung of its ladder. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.devices import Rung

_XID = {
    Rung.TRACEPOINT: "the driver's tracepoint (keeps the driver loaded)",
    Rung.KPROBE: "kprobe nv_report_error",
    Rung.KMSG: "/dev/kmsg",
    Rung.CONSOLE: "printk:console only: reported, never acted on",
    Rung.NVML: "NVML events (keep the driver loaded)",
}
NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Sources:
    """Which sources were found to work."""

    probes: Collection[str]
    """Names of the attached probes, without those that failed."""
    xid_rung: Rung
    driver: bool
    """True if the GPU driver is loaded."""
    console: bool
    """The self-test line arrived through printk:console, or through the probe that replaces it."""
    log: bool
    """True if /dev/kmsg can be read."""
    links: bool
    """True if netlink reports link changes."""


@dataclass(frozen=True, slots=True)
class Active:
    """One kind of event and the source that reports it."""

    family: str
    rung: str
    """Name of the source; `NONE` if the event cannot be observed."""


def active(sources: Sources) -> Sequence[Active]:
    """One row for each kind of device event."""

    def probed(name: str, said: str, instead: str = NONE) -> str:
        return said if name in sources.probes else instead

    return (
        Active("Xids", _xids(sources)),
        Active("driver lines", _lines(sources)),
        Active("GPU holders", probed("on_open", "kprobes and /proc", "/proc")),
        Active("PCIe errors", probed("on_aer", "tracepoint aer_event")),
        Active("memory errors", _memory(sources)),
        Active("block errors", probed("on_block_error", "tracepoint block_rq_error")),
        Active(
            "RDMA ports",
            probed("on_rdma", "kprobe, state and counters", "state and counters, polled"),
        ),
        Active("NIC firmware", probed("on_health", "tracepoint devlink_health_report")),
        Active("links", "netlink" if sources.links else NONE),
    )


def _xids(sources: Sources) -> str:
    if sources.driver or sources.xid_rung in (Rung.KPROBE, Rung.TRACEPOINT):
        return _XID[sources.xid_rung]
    return f"{_XID[sources.xid_rung]} (the driver is not loaded)"


_MEMORY = {
    "on_memory_controller": "mc_event",
    "on_page": "memory_failure_event",
    "on_machine_check": "mce_record",
    "on_arm_processor": "arm_event",
    "on_vendor_section": "non_standard_event",
}


def _memory(sources: Sources) -> str:
    found = [event for probe, event in _MEMORY.items() if probe in sources.probes]
    return f"tracepoints {', '.join(found)}" if found else NONE


def _lines(sources: Sources) -> str:
    source = "kprobe prb_final_commit" if "on_stored" in sources.probes else "printk:console"
    match sources.console, sources.log:
        case True, True:
            return f"{source}, read in /dev/kmsg"
        case False, True:
            return "/dev/kmsg, polled"
        case True, False:
            return f"{source} only, not trusted"
        case _:
            return NONE
