"""Mirrors of the records and map values in bpf/devices.h, by the rules of `wire`."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_uint8, c_uint32, c_uint64
from enum import IntEnum

from kcover_ebpf.kernel.records.wire import EventHeader

DeviceName = c_uint8 * 24
XidText = c_uint8 * 256
LogText = c_uint8 * 512
ModuleName = c_uint8 * 56
MemoryLabel = c_uint8 * 64
Uuid = c_uint8 * 16
NicDeviceName = c_uint8 * 64
NicReporter = c_uint8 * 32
NicText = c_uint8 * 128
DiskName = c_uint8 * 32
BitCounts = c_uint32 * 32
NcclCounts = c_uint64 * 10


class DeviceEventType(IntEnum):
    """Values of `event_header.type` for device records (bpf/devices.h)."""

    XID = 32
    LOG = 33
    AER = 34
    MEMORY = 35
    OPEN = 36
    UVM = 37
    MODULE = 38
    NIC = 39
    BLOCK = 40


class XidRung(IntEnum):
    """Values of `xid_event.rung`: which probe reported the Xid."""

    KPROBE = 1
    TRACEPOINT = 2


class MemorySource(IntEnum):
    """Values of `memory_event.source`: the tracepoint that reported the error."""

    EDAC = 1
    PAGE = 2
    MACHINE_CHECK = 3
    ARM = 4
    NON_STANDARD = 5


class NicSource(IntEnum):
    """Values of `nic_event.source`: the hook that reported the change."""

    RDMA = 1
    HEALTH = 2


class NcclOperation(IntEnum):
    """Indexes of `nccl_comm_value.launched_count`: the counted operations."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    BROADCAST = 3
    REDUCE = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7
    SEND = 8
    RECEIVE = 9


class XidEvent(ctypes.Structure):
    """An Xid seen by a probe on the driver; decoded to XidSighting."""

    _fields_ = (
        ("header", EventHeader),
        ("number", c_uint32),
        ("rung", c_uint32),
        ("device", DeviceName),
        ("text", XidText),
    )


class LogEvent(ctypes.Structure):
    """A kernel log line of a driver; decoded to DriverLine."""

    _fields_ = (("header", EventHeader), ("text", LogText))


class AerEvent(ctypes.Structure):
    """The PCIe error totals of one device; decoded to AerTotal."""

    _fields_ = (
        ("header", EventHeader),
        ("device", DeviceName),
        ("status", c_uint32),
        ("severity", c_uint32),
        ("total", c_uint64),
    )


class MemoryEvent(ctypes.Structure):
    """A hardware memory error; decoded to MemoryFault."""

    _fields_ = (
        ("header", EventHeader),
        ("address", c_uint64),
        ("status", c_uint64),
        ("source", c_uint32),
        ("severity", c_uint32),
        ("count", c_uint32),
        ("cpu", c_uint32),
        ("label", MemoryLabel),
    )


class OpenEvent(ctypes.Structure):
    """An open or close of a GPU file; decoded to DeviceHeld."""

    _fields_ = (
        ("header", EventHeader),
        ("file", c_uint64),
        ("minor", c_uint32),
        ("opened", c_uint32),
    )


class UvmEvent(ctypes.Structure):
    """The begin or end of a CUDA context; decoded to CudaContext."""

    _fields_ = (
        ("header", EventHeader),
        ("uuid", Uuid),
        ("registered", c_uint32),
        ("pad", c_uint32),
    )


class ModuleEvent(ctypes.Structure):
    """A kernel module was loaded or unloaded; decoded to DriverChange."""

    _fields_ = (
        ("header", EventHeader),
        ("loaded", c_uint32),
        ("pad", c_uint32),
        ("name", ModuleName),
    )


class NicEvent(ctypes.Structure):
    """A change of a network or RDMA device; decoded to PortChange or DeviceNotice."""

    _fields_ = (
        ("header", EventHeader),
        ("source", c_uint32),
        ("event", c_uint32),
        ("port", c_uint32),
        ("pad", c_uint32),
        ("device", NicDeviceName),
        ("reporter", NicReporter),
        ("text", NicText),
    )


class BlockEvent(ctypes.Structure):
    """A failed block request; decoded to BlockError."""

    _fields_ = (
        ("header", EventHeader),
        ("sector", c_uint64),
        ("bytes", c_uint32),
        ("status", c_uint32),
        ("operation", c_uint32),
        ("major", c_uint32),
        ("minor", c_uint32),
        ("pad", c_uint32),
        ("disk", DiskName),
    )


class AerKey(ctypes.Structure):
    """Key of the map `aer_totals`: device and severity."""

    _fields_ = (("device", DeviceName), ("severity", c_uint32), ("pad", c_uint32))


class AerValue(ctypes.Structure):
    """Value of the map `aer_totals`: counters that only grow."""

    _fields_ = (("total", c_uint64), ("reported_ns", c_uint64), ("bit_count", BitCounts))


class NcclProcessValue(ctypes.Structure):
    """Value of the map `nccl_processes`, by pid: processes that user space entered are counted."""

    _fields_ = (
        ("launched_count", c_uint64),
        ("lost_count", c_uint64),
        ("comm_count", c_uint32),
        ("peer_count", c_uint32),
    )


class NcclCommKey(ctypes.Structure):
    """Key of the map `nccl_comms`: process and communicator handle."""

    _fields_ = (("comm", c_uint64), ("pid", c_uint32), ("pad", c_uint32))


class NcclBirth(ctypes.Structure):
    """How a communicator was created, from the call that made it."""

    _fields_ = (
        ("address", c_uint64),
        ("identity", c_uint64),
        ("size", c_uint32),
        ("rank", c_uint32),
        ("key", c_int32),
        ("is_split", c_uint32),
    )


class NcclCommValue(ctypes.Structure):
    """Value of the map `nccl_comms`: creation and launch counts."""

    _fields_ = (
        ("birth", NcclBirth),
        ("split_count", c_uint32),
        ("pad", c_uint32),
        ("launched_count", NcclCounts),
    )


class NcclBirthsValue(ctypes.Structure):
    """Value of the map `nccl_births`, by pid."""

    _fields_ = (("next", c_uint32), ("pad", c_uint32), ("births", NcclBirth * 32))


class NcclPeerKey(ctypes.Structure):
    """Key of the map `nccl_peers`: communicator and peer rank."""

    _fields_ = (("identity", c_uint64), ("pid", c_uint32), ("peer", c_uint32))


class NcclPeerValue(ctypes.Structure):
    """Value of the map `nccl_peers`: messages sent and received."""

    _fields_ = (("sent_count", c_uint64), ("received_count", c_uint64))
