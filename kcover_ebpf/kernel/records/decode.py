"""Decodes BPF records into facts.

Pure: no clock, no file, no network. It runs for every record of every pass, so each kind of record has one
precompiled layout and one small function. A record must have exactly the size of its mirror in `wire`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from socket import AF_INET, AF_INET6, inet_ntop
from typing import Any

from kcover_ebpf.errors import DecodeError
from kcover_ebpf.facts.kernel import (
    DescriptorSample,
    Fact,
    FatalSignal,
    OomKill,
    ProcessExec,
    ProcessExit,
    ProcessFork,
    ProcessTotals,
    SignalSent,
    SocketSample,
    TaskState,
    TcpRetransmit,
    TcpStateChange,
    ThreadSample,
)
from kcover_ebpf.ids import Inode, Pid, Tid
from kcover_ebpf.kernel.records import wire
from kcover_ebpf.kernel.records.device_decode import DEVICE_DECODERS, MirrorLayout

TRUNCATED = "truncated"
"""The bytes end before the record does; nothing after it can be read."""
UNKNOWN_TYPE = "unknown_type"
WRONG_SIZE = "wrong_size"
BAD_VALUE = "bad_value"
"""A field with a closed list of values contains another one."""

TCP_STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
    12: "NEW_SYN_RECV",
    13: "BOUND_INACTIVE",
}
"""Names of the states in include/net/tcp_states.h."""

_STATES = {ord(state.value): state for state in TaskState}
_KINDS = {int(kind): kind.name.lower() for kind in wire.DescriptorKind}
_MAPPED_IPV4 = bytes(10) + b"\xff\xff"
_HEAD = struct.Struct("=HH")

Buffer = bytes | bytearray | memoryview
_Fields = tuple[Any, ...]


@lru_cache(maxsize=4096)
def _text(comm: bytes) -> str:
    return comm.partition(b"\0")[0].decode("utf-8", "replace")


@lru_cache(maxsize=4096)
def _address(raw: bytes) -> str:
    if raw.startswith(_MAPPED_IPV4):
        return inet_ntop(AF_INET, raw[12:])
    return inet_ntop(AF_INET6, raw)


def _thread_sample(fields: _Fields) -> ThreadSample:
    _, _, pid, boottime_ns, start_ns, *rest = fields
    a0, a1, a2, a3, a4, a5, user_sp, user_ip, site_since_ns, idle_since_ns, *rest = rest
    previous_ns, cpu_ns, run_delay_ns, voluntary, minor_faults, call_chars, *rest = rest
    tid, syscall, state, _, comm = rest
    return ThreadSample(
        boottime_ns,
        Pid(pid),
        Tid(tid),
        start_ns,
        _STATES[state],
        syscall,
        (a0, a1, a2, a3, a4, a5),
        user_sp,
        user_ip,
        site_since_ns,
        idle_since_ns,
        cpu_ns,
        run_delay_ns,
        voluntary,
        _text(comm),
        previous_ns,
        minor_faults,
        call_chars,
    )


def _process_totals(fields: _Fields) -> ProcessTotals:
    _, _, pid, boottime_ns, cpu_ns, read_bytes, write_bytes, *rest = fields
    read_chars, write_chars, major_faults, asleep_bytes, asleep_chars, *rest = rest
    throttled_ns, ppid, threads, unseen, forsaken = rest
    return ProcessTotals(
        boottime_ns,
        Pid(pid),
        Pid(ppid),
        cpu_ns,
        read_bytes,
        write_bytes,
        read_chars,
        write_chars,
        major_faults,
        threads,
        unseen,
        forsaken,
        throttled_ns,
        asleep_bytes,
        asleep_chars,
    )


def _socket_sample(fields: _Fields) -> SocketSample:
    _, _, pid, boottime_ns, local, remote, local_port, remote_port, _, inode, *rest = fields
    acked_bytes, received_bytes, last_send_ns, last_receive_ns, *rest = rest
    fd, state, unread, unsent, unacked, send_window, backoff, _ = rest
    return SocketSample(
        boottime_ns,
        Pid(pid),
        fd,
        Inode(inode),
        TCP_STATES[state],
        (_address(local), local_port),
        (_address(remote), remote_port),
        unread,
        unsent,
        unacked,
        acked_bytes,
        received_bytes,
        backoff,
        send_window,
        last_send_ns,
        last_receive_ns,
    )


def _descriptor_sample(fields: _Fields) -> DescriptorSample:
    _, _, pid, boottime_ns, inode, peer_inode, drain_mark, fd, kind = fields
    return DescriptorSample(
        boottime_ns=boottime_ns,
        pid=Pid(pid),
        fd=fd,
        kind=_KINDS[kind],
        inode=Inode(inode),
        peer_inode=Inode(peer_inode) if peer_inode else None,
        drain_mark=drain_mark,
    )


def _process_fork(fields: _Fields) -> ProcessFork:
    _, _, pid, boottime_ns, child_pid, _, comm = fields
    return ProcessFork(boottime_ns, Pid(pid), Pid(child_pid), _text(comm))


def _process_exec(fields: _Fields) -> ProcessExec:
    _, _, pid, boottime_ns, comm = fields
    return ProcessExec(boottime_ns, Pid(pid), _text(comm))


def _process_exit(fields: _Fields) -> ProcessExit:
    _, _, pid, boottime_ns, status, _, comm = fields
    return ProcessExit(
        boottime_ns=boottime_ns,
        pid=Pid(pid),
        exit_code=status >> 8 & 0xFF,
        signal=status & 0x7F,
        core_dumped=bool(status & 0x80),
        comm=_text(comm),
    )


def _oom_kill(fields: _Fields) -> OomKill:
    _, _, pid, boottime_ns, comm = fields
    return OomKill(boottime_ns, Pid(pid), _text(comm))


def _signal_sent(fields: _Fields) -> SignalSent:
    _, _, pid, boottime_ns, tid, signal, sender_pid, from_outside, sender_comm = fields
    sender = Pid(sender_pid), _text(sender_comm), from_outside != 0
    return SignalSent(boottime_ns, Pid(pid), Tid(tid), signal, *sender)


def _fatal_signal(fields: _Fields) -> FatalSignal:
    _, _, pid, boottime_ns, signal, _, comm = fields
    return FatalSignal(boottime_ns, Pid(pid), signal, _text(comm))


def _tcp_retransmit(fields: _Fields) -> TcpRetransmit:
    _, _, pid, boottime_ns, local, remote, local_port, remote_port, _ = fields
    return TcpRetransmit(
        boottime_ns=boottime_ns,
        pid=Pid(pid),
        local=(_address(local), local_port),
        remote=(_address(remote), remote_port),
    )


def _tcp_state_change(fields: _Fields) -> TcpStateChange:
    _, _, pid, boottime_ns = fields
    return TcpStateChange(boottime_ns, Pid(pid))


_DECODERS: dict[int, tuple[struct.Struct | MirrorLayout, Callable[..., Fact]]] = {
    **DEVICE_DECODERS,
    wire.EventType.THREAD: (wire.unpacker(wire.ThreadEvent), _thread_sample),
    wire.EventType.TOTALS: (wire.unpacker(wire.TotalsEvent), _process_totals),
    wire.EventType.SOCKET: (wire.unpacker(wire.SocketEvent), _socket_sample),
    wire.EventType.DESCRIPTOR: (wire.unpacker(wire.DescriptorEvent), _descriptor_sample),
    wire.EventType.FORK: (wire.unpacker(wire.ForkEvent), _process_fork),
    wire.EventType.EXEC: (wire.unpacker(wire.ExecEvent), _process_exec),
    wire.EventType.EXIT: (wire.unpacker(wire.ExitEvent), _process_exit),
    wire.EventType.OOM: (wire.unpacker(wire.OomEvent), _oom_kill),
    wire.EventType.SIGNAL: (wire.unpacker(wire.SignalEvent), _signal_sent),
    wire.EventType.FATAL: (wire.unpacker(wire.FatalEvent), _fatal_signal),
    wire.EventType.RETRANSMIT: (wire.unpacker(wire.RetransmitEvent), _tcp_retransmit),
    wire.EventType.TCP_STATE: (wire.unpacker(wire.TcpStateEvent), _tcp_state_change),
}


def decode(record: Buffer) -> Fact:
    """The fact in one complete record; raises `DecodeError` with one of the four kinds above."""
    return _decode_at(record, 0, len(record))


def decode_stream(buffer: Buffer, rejected: Counter[str]) -> Iterator[Fact]:
    """The facts in consecutive records, as an iterator's file returns them.

    Records that cannot be decoded are skipped, and counted in `rejected` by the kind of error.
    """
    offset, end = 0, len(buffer)
    while offset < end:
        size = _HEAD.unpack_from(buffer, offset)[1] if end - offset >= _HEAD.size else 0
        if not _HEAD.size <= size <= end - offset:
            rejected[TRUNCATED] += 1
            return
        try:
            yield _decode_at(buffer, offset, size)
        except DecodeError as error:
            rejected[error.kind] += 1
        offset += size


def _decode_at(buffer: Buffer, offset: int, length: int) -> Fact:
    if length < _HEAD.size:
        raise DecodeError(TRUNCATED, f"{length} bytes")
    kind, size = _HEAD.unpack_from(buffer, offset)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise DecodeError(UNKNOWN_TYPE, f"type {kind}")
    layout, make = decoder
    if not size == length == layout.size:
        raise DecodeError(WRONG_SIZE, f"type {kind}: {length} bytes, not {layout.size}")
    try:
        return make(layout.unpack_from(buffer, offset))
    except KeyError as error:
        raise DecodeError(BAD_VALUE, f"type {kind}: {error.args[0]}") from error
