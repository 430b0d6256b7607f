"""Decodes device records into facts, by the rules of `decode`."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

from kcover_ebpf.facts.devices import (
    AerSeverity,
    AerTotal,
    BlockError,
    CudaContext,
    DeviceFact,
    DeviceHeld,
    DeviceNotice,
    DriverChange,
    DriverLine,
    MemoryFault,
    MemoryKind,
    Notice,
    PortChange,
    Rung,
    XidSighting,
)
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.records import device_wire as wire

_RUNGS = {wire.XidRung.KPROBE: Rung.KPROBE, wire.XidRung.TRACEPOINT: Rung.TRACEPOINT}
_MEMORY = {
    wire.MemorySource.EDAC: MemoryKind.EDAC,
    wire.MemorySource.PAGE: MemoryKind.PAGE,
    wire.MemorySource.MACHINE_CHECK: MemoryKind.MACHINE_CHECK,
    wire.MemorySource.ARM: MemoryKind.ARM_PROCESSOR,
    wire.MemorySource.NON_STANDARD: MemoryKind.VENDOR_SECTION,
}
SEVERITIES = {severity.value: severity for severity in AerSeverity}
"""By the tracepoint's number; the kernel has another one (3: DPC_FATAL) that it never reports."""
# arch/x86/include/asm/mce.h: the error was not corrected
_MCE_UNCORRECTED = 1 << 61
# include/linux/edac.h, enum hw_event_mc_err_type: corrected, and only informational (ghes_edac reports such)
_EDAC_HARMLESS = frozenset({0, 4})
# include/linux/cper.h: the running state is valid; and its bit for a processor that runs on
_ARM_STATE_VALID, _ARM_RUNS = 1 << 2, 1 << 0
# include/acpi/ghes.h: nothing, and corrected
_GHES_HARMLESS = frozenset({0, 1})
# include/linux/mm.h: what became of the page
_PAGE_OUTCOMES = ("ignored", "failed", "delayed", "recovered")


def text_of(raw: ctypes.Array[ctypes.c_uint8]) -> str:
    """A C string in a field of a record."""
    return bytes(raw).partition(b"\0")[0].decode("utf-8", "replace")


def _xid(event: wire.XidEvent) -> XidSighting:
    return XidSighting(
        event.header.boottime_ns,
        text_of(event.device),
        event.number,
        text_of(event.text),
        _RUNGS[event.rung],
    )


def _line(event: wire.LogEvent) -> DriverLine:
    return DriverLine(event.header.boottime_ns, text_of(event.text))


def _aer(event: wire.AerEvent) -> AerTotal:
    return AerTotal(
        event.header.boottime_ns,
        text_of(event.device),
        SEVERITIES[event.severity],
        event.status,
        event.total,
    )


def _memory(event: wire.MemoryEvent) -> MemoryFault:
    kind = _MEMORY[event.source]
    match kind:
        case MemoryKind.EDAC:
            corrected, text = event.severity in _EDAC_HARMLESS, text_of(event.label)
        case MemoryKind.PAGE:
            outcome = event.status if event.status < len(_PAGE_OUTCOMES) else 0
            corrected, text = False, f"page {_PAGE_OUTCOMES[outcome]}"
        case MemoryKind.MACHINE_CHECK:
            corrected = not event.status & _MCE_UNCORRECTED
            text = f"CPU {event.cpu} bank {event.severity} status {event.status:#018x}"
        case MemoryKind.ARM_PROCESSOR:
            corrected = bool(event.severity & _ARM_STATE_VALID and event.status & _ARM_RUNS)
            text = f"processor {event.address:#x} {'runs on' if corrected else 'may have stopped'}"
        case MemoryKind.VENDOR_SECTION:
            corrected = event.severity in _GHES_HARMLESS
            text = text_of(event.label) or "firmware does not say which part"
    return MemoryFault(event.header.boottime_ns, kind, corrected, event.address, event.count, text)


def _held(event: wire.OpenEvent) -> DeviceHeld:
    return DeviceHeld(
        event.header.boottime_ns,
        Pid(event.header.pid),
        event.minor,
        event.file,
        held=bool(event.opened),
    )


def _cuda(event: wire.UvmEvent) -> CudaContext:
    # only on hosts with such GPUs, because it has 0.6 MB
    from uuid import UUID

    return CudaContext(
        event.header.boottime_ns,
        Pid(event.header.pid),
        f"GPU-{UUID(bytes=bytes(event.uuid))}",
        active=bool(event.registered),
    )


def _module(event: wire.ModuleEvent) -> DriverChange:
    return DriverChange(event.header.boottime_ns, text_of(event.name))


# include/rdma/ib_verbs.h, enum ib_event_type
_RDMA_EVENTS = {8: (False, "device failed"), 9: (True, "port active"), 10: (False, "port down")}


# drivers name it in the reporter (mlx5: "fw_fatal") or in the message (bnxt: "FW fatal error");
# everything else (queues that time out, full buffers, firmware that restarts itself) the driver
# repairs while the job runs
_FATAL = re.compile(r"(?<!non)(?<!non-)fatal", re.IGNORECASE)


def _nic(event: wire.NicEvent) -> PortChange | DeviceNotice:
    name, text = text_of(event.device), text_of(event.text)
    if event.source == wire.NicSource.HEALTH:
        words = f"{text_of(event.reporter)}: {text}"
        notice = Notice.NIC_FAILED if _FATAL.search(words) else Notice.NIC_HEALTH
        return DeviceNotice(event.header.boottime_ns, name, notice, words)
    up, words = _RDMA_EVENTS[event.event]
    return PortChange(event.header.boottime_ns, f"{name}/{event.port}", "", up, words)


# include/linux/blk_types.h: blk_status_t, enum req_op
_BLOCK_ERRORS = {
    1: "not supported",
    2: "timeout",
    3: "no space",
    4: "transport",
    5: "target",
    6: "reservation conflict",
    7: "medium",
    8: "protection",
    9: "resource",
    10: "I/O",
}
_BLOCK_OPERATIONS = {0: "read", 1: "write", 2: "flush", 3: "discard", 9: "write zeroes"}


def _block(event: wire.BlockEvent) -> BlockError:
    operation, status = event.operation, event.status
    return BlockError(
        event.header.boottime_ns,
        text_of(event.disk),
        f"{event.major}:{event.minor}",
        _BLOCK_OPERATIONS.get(operation, f"operation {operation}"),
        event.sector,
        event.bytes,
        _BLOCK_ERRORS.get(status, f"status {status}"),
    )


class MirrorLayout:
    """Reads a record as its ctypes mirror, with the interface of `struct.Struct` that `decode` uses.

    Device records are rare, so the readable way is fast enough.
    """

    def __init__(self, mirror: type[ctypes.Structure]) -> None:
        self._mirror = mirror
        self.size = ctypes.sizeof(mirror)

    def unpack_from(self, buffer: bytes | bytearray | memoryview, offset: int) -> ctypes.Structure:
        """A copy of the record at `offset`."""
        return self._mirror.from_buffer_copy(buffer[offset : offset + self.size])


DEVICE_DECODERS: dict[int, tuple[MirrorLayout, Callable[..., DeviceFact]]] = {
    wire.DeviceEventType.XID: (MirrorLayout(wire.XidEvent), _xid),
    wire.DeviceEventType.LOG: (MirrorLayout(wire.LogEvent), _line),
    wire.DeviceEventType.AER: (MirrorLayout(wire.AerEvent), _aer),
    wire.DeviceEventType.MEMORY: (MirrorLayout(wire.MemoryEvent), _memory),
    wire.DeviceEventType.OPEN: (MirrorLayout(wire.OpenEvent), _held),
    wire.DeviceEventType.UVM: (MirrorLayout(wire.UvmEvent), _cuda),
    wire.DeviceEventType.NIC: (MirrorLayout(wire.NicEvent), _nic),
    wire.DeviceEventType.BLOCK: (MirrorLayout(wire.BlockEvent), _block),
    wire.DeviceEventType.MODULE: (MirrorLayout(wire.ModuleEvent), _module),
}
"""Type of a record -> its layout and the function that makes its fact. That function raises
KeyError for an unknown value in a closed list."""
