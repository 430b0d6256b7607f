"""Mirrors of the records and map values in bpf/events.h, and nothing else.

Names, order and widths follow the C header. tests/unit/kernel/records/test_wire.py compares the two through the BTF
of layout.bpf.o, so a change on only one side fails. The meaning of a field is documented where `decode` turns it
into a fact.
"""

from __future__ import annotations

import ctypes
import struct
from ctypes import c_int32, c_uint8, c_uint16, c_uint32, c_uint64
from enum import IntEnum


class EventType(IntEnum):
    """Values of `event_header.type`: which record follows."""

    THREAD = 1
    TOTALS = 2
    SOCKET = 3
    DESCRIPTOR = 4
    FORK = 5
    EXEC = 6
    EXIT = 7
    OOM = 8
    SIGNAL = 9
    RETRANSMIT = 10
    TCP_STATE = 11
    FATAL = 12


class ThreadState(IntEnum):
    """Values of `thread_event.state`: the letters of `facts.kernel.TaskState`, as numbers."""

    RUNNING = ord("R")
    SLEEPING = ord("S")
    UNINTERRUPTIBLE = ord("D")
    STOPPED = ord("T")
    TRACED = ord("t")
    FROZEN = ord("F")
    ZOMBIE = ord("Z")
    OTHER = ord("?")


class DescriptorKind(IntEnum):
    """Values of `descriptor_event.kind`: pipe, FIFO or Unix socket."""

    PIPE = 1
    FIFO = 2
    UNIX = 3


Comm = c_uint8 * 16
Address = c_uint8 * 16


class EventHeader(ctypes.Structure):
    """The first fields of every record: type, process and time."""

    _fields_ = (
        ("type", c_uint16),
        ("size", c_uint16),
        ("pid", c_uint32),
        ("boottime_ns", c_uint64),
    )


class ThreadEvent(ctypes.Structure):
    """One thread at one pass of the sampler."""

    _fields_ = (
        ("header", EventHeader),
        ("start_ns", c_uint64),
        ("args", c_uint64 * 6),
        ("user_sp", c_uint64),
        ("user_ip", c_uint64),
        ("site_since_ns", c_uint64),
        ("idle_since_ns", c_uint64),
        ("previous_ns", c_uint64),
        ("cpu_ns", c_uint64),
        ("run_delay_ns", c_uint64),
        ("voluntary_count", c_uint64),
        ("minor_faults", c_uint64),
        ("call_chars", c_uint64),
        ("tid", c_uint32),
        ("syscall", c_int32),
        ("state", c_uint32),
        ("pad", c_uint32),
        ("comm", Comm),
    )


class TotalsEvent(ctypes.Structure):
    """Sums over the threads of one process; the first part of `ProcessValue`."""

    _fields_ = (
        ("header", EventHeader),
        ("cpu_ns", c_uint64),
        ("read_bytes", c_uint64),
        ("write_bytes", c_uint64),
        ("read_chars", c_uint64),
        ("write_chars", c_uint64),
        ("major_faults", c_uint64),
        ("asleep_bytes", c_uint64),
        ("asleep_chars", c_uint64),
        ("throttled_ns", c_uint64),
        ("ppid", c_uint32),
        ("thread_count", c_uint32),
        ("unseen_count", c_uint32),
        ("forsaken_count", c_uint32),
    )


class TcpEndpoints(ctypes.Structure):
    """Both ends of a connection: addresses as IPv6 (mapped, if need be), ports in host order."""

    _fields_ = (
        ("local", Address),
        ("remote", Address),
        ("local_port", c_uint16),
        ("remote_port", c_uint16),
        ("pad", c_uint32),
    )


class SocketEvent(ctypes.Structure):
    """One TCP socket at one pass of the sampler."""

    _fields_ = (
        ("header", EventHeader),
        ("ends", TcpEndpoints),
        ("inode", c_uint64),
        ("acked_bytes", c_uint64),
        ("received_bytes", c_uint64),
        ("last_send_ns", c_uint64),
        ("last_receive_ns", c_uint64),
        ("fd", c_uint32),
        ("state", c_uint32),
        ("unread_bytes", c_uint32),
        ("unsent_bytes", c_uint32),
        ("unacked_bytes", c_uint32),
        ("send_window_bytes", c_uint32),
        ("backoff", c_uint32),
        ("pad", c_uint32),
    )


class DescriptorEvent(ctypes.Structure):
    """One pipe, FIFO or Unix socket at one pass of the sampler."""

    _fields_ = (
        ("header", EventHeader),
        ("inode", c_uint64),
        ("peer_inode", c_uint64),
        ("drain_mark", c_uint64),
        ("fd", c_uint32),
        ("kind", c_uint32),
    )


class ForkEvent(ctypes.Structure):
    """A watched process (the header's pid) created another one."""

    _fields_ = (("header", EventHeader), ("child_pid", c_uint32), ("pad", c_uint32), ("comm", Comm))


class ExecEvent(ctypes.Structure):
    """A watched process executed another program."""

    _fields_ = (("header", EventHeader), ("comm", Comm))


class ExitEvent(ctypes.Structure):
    """The last thread of a watched process ended."""

    _fields_ = (
        ("header", EventHeader),
        ("wait_status", c_uint32),
        ("pad", c_uint32),
        ("comm", Comm),
    )


class OomEvent(ctypes.Structure):
    """The out-of-memory killer chose a watched process."""

    _fields_ = (("header", EventHeader), ("comm", Comm))


class SignalEvent(ctypes.Structure):
    """A stopping, continuing or fatal signal was sent to a watched process."""

    _fields_ = (
        ("header", EventHeader),
        ("tid", c_uint32),
        ("signal", c_uint32),
        ("sender_pid", c_uint32),
        ("from_outside", c_uint32),
        ("sender_comm", Comm),
    )


class FatalEvent(ctypes.Structure):
    """A signal that ends a watched process was delivered to it."""

    _fields_ = (("header", EventHeader), ("signal", c_uint32), ("pad", c_uint32), ("comm", Comm))


class RetransmitEvent(ctypes.Structure):
    """A known socket retransmitted a segment."""

    _fields_ = (
        ("header", EventHeader),
        ("ends", TcpEndpoints),
    )


class TcpStateEvent(ctypes.Structure):
    """A known socket changed its TCP state."""

    _fields_ = (("header", EventHeader),)


class ProcessValue(ctypes.Structure):
    """Value of the map `processes`: one watched process."""

    _fields_ = (
        ("totals", TotalsEvent),
        ("watched_ns", c_uint64),
        ("pass_id", c_uint64),
        ("whole_id", c_uint64),
        ("reported_id", c_uint64),
        ("socket_pass_id", c_uint64),
        ("detail", c_uint32),
        ("begins", c_uint32),
        ("lead_tid", c_uint32),
        ("next_tid", c_uint32),
        ("unseen_reported", c_uint32),
        ("socket_refused", c_uint32),
        ("owner_id", c_uint64),
        ("ending_signal", c_uint32),
        ("end_pad", c_uint32),
    )


class DetailValue(ctypes.Structure):
    """Value of the map `details`: how closely a process is sampled."""

    _fields_ = (
        ("detail", c_uint32),
        ("every", c_uint32),
        ("lead_tid", c_uint32),
        ("pad", c_uint32),
    )


class PassValue(ctypes.Structure):
    """Value of the map `pass`: the current pass, or the last one."""

    _fields_ = (
        ("id", c_uint64),
        ("used_bytes", c_uint64),
        ("is_incomplete", c_uint64),
        ("boottime_ns", c_uint64),
        ("previous_ns", c_uint64),
        ("monotonic_ns", c_uint64),
        ("sched_ns", c_uint64),
        ("jiffies", c_uint64),
        ("work", c_uint64),
        ("turns", c_uint64),
        ("process_count", c_uint64),
        ("pid_sum", c_uint64),
        ("stranger_count", c_uint64),
        ("stranger_sum", c_uint64),
        ("is_continued", c_uint64),
        ("leaders_only", c_uint64),
        ("tick_ns", c_uint64),
        ("is_whole", c_uint64),
        ("least_every", c_uint64),
    )


class LostValue(ctypes.Structure):
    """Value of the map `lost`: records and samples that did not fit since the start."""

    _fields_ = (
        ("ring_count", c_uint64),
        ("process_count", c_uint64),
        ("thread_count", c_uint64),
        ("socket_count", c_uint64),
        ("message_count", c_uint64),
    )


_CODES: dict[object, str] = {
    c_uint8: "B",
    c_uint16: "H",
    c_uint32: "I",
    c_int32: "i",
    c_uint64: "Q",
    Comm: "16s",
    c_uint64 * 6: "6Q",
}


def _format_of(mirror: type[ctypes.Structure]) -> str:
    kinds = [field[1] for field in mirror._fields_]
    return "".join(
        _format_of(kind) if issubclass(kind, ctypes.Structure) else _CODES[kind] for kind in kinds
    )


def unpacker(mirror: type[ctypes.Structure]) -> struct.Struct:
    """The flattened fields of `mirror` as a `struct.Struct` of exactly its size."""
    layout = struct.Struct("=" + _format_of(mirror))
    if layout.size != ctypes.sizeof(mirror):
        raise AssertionError(f"{mirror.__name__} has a hole")
    return layout
