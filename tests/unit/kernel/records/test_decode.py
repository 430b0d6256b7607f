"""Records into facts: each kind once by hand, then whatever bytes may come."""

import ctypes
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.errors import DecodeError
from kcover_ebpf.facts.kernel import (
    NO_SYSCALL,
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
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.records import wire
from kcover_ebpf.kernel.records.decode import (
    BAD_VALUE,
    TCP_STATES,
    TRUNCATED,
    UNKNOWN_TYPE,
    WRONG_SIZE,
    decode,
    decode_stream,
)

KINDS = {TRUNCATED, UNKNOWN_TYPE, WRONG_SIZE, BAD_VALUE}

MIRRORS: dict[wire.EventType, type[ctypes.Structure]] = {
    wire.EventType.THREAD: wire.ThreadEvent,
    wire.EventType.TOTALS: wire.TotalsEvent,
    wire.EventType.SOCKET: wire.SocketEvent,
    wire.EventType.DESCRIPTOR: wire.DescriptorEvent,
    wire.EventType.FORK: wire.ForkEvent,
    wire.EventType.EXEC: wire.ExecEvent,
    wire.EventType.EXIT: wire.ExitEvent,
    wire.EventType.OOM: wire.OomEvent,
    wire.EventType.SIGNAL: wire.SignalEvent,
    wire.EventType.FATAL: wire.FatalEvent,
    wire.EventType.RETRANSMIT: wire.RetransmitEvent,
    wire.EventType.TCP_STATE: wire.TcpStateEvent,
}
U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


def _comm(text: bytes) -> Any:
    return wire.Comm(*text.ljust(16, b"\0"))


def _ipv4(text: str) -> Any:
    return wire.Address(*(bytes(10) + b"\xff\xff" + bytes(int(part) for part in text.split("."))))


def _record(
    event_type: wire.EventType, /, pid: int = 7, boottime_ns: int = 1000, **fields: Any
) -> bytes:
    mirror = MIRRORS[event_type]
    header = wire.EventHeader(event_type, ctypes.sizeof(mirror), pid, boottime_ns)
    return bytes(mirror(header=header, **fields))


def test_decode__every_event_type_has_a_decoder() -> None:
    assert set(MIRRORS) == set(wire.EventType)
    for kind in wire.EventType:
        fields: dict[str, Any] = {}
        if kind is wire.EventType.THREAD:
            fields["state"] = ord("S")
        elif kind is wire.EventType.DESCRIPTOR:
            fields["kind"] = 1
        elif kind is wire.EventType.SOCKET:
            fields["state"] = 1
        elif kind is wire.EventType.TCP_STATE:
            fields |= {"old_state": 1, "new_state": 8}
        fact = decode(_record(kind, **fields))
        assert (fact.boottime_ns, fact.pid) == (1000, 7)  # type: ignore[union-attr]


def test_decode__thread() -> None:
    record = _record(
        wire.EventType.THREAD,
        start_ns=1,
        args=(ctypes.c_uint64 * 6)(10, 11, 12, 13, 14, 15),
        user_sp=2,
        user_ip=3,
        site_since_ns=4,
        idle_since_ns=5,
        cpu_ns=6,
        run_delay_ns=7,
        voluntary_count=8,
        tid=70,
        syscall=202,
        state=wire.ThreadState.UNINTERRUPTIBLE,
        comm=_comm(b"pt_main_thread"),
    )
    assert decode(record) == ThreadSample(
        boottime_ns=1000,
        pid=Pid(7),
        tid=70,  # type: ignore[arg-type]
        start_ns=1,
        state=TaskState.UNINTERRUPTIBLE,
        syscall=202,
        args=(10, 11, 12, 13, 14, 15),
        user_sp=2,
        user_ip=3,
        site_since_ns=4,
        idle_since_ns=5,
        cpu_ns=6,
        run_delay_ns=7,
        voluntary_count=8,
        comm="pt_main_thread",
    )


def test_decode__a_thread_outside_of_system_calls() -> None:
    fact = decode(_record(wire.EventType.THREAD, state=ord("R"), syscall=-1))
    assert isinstance(fact, ThreadSample)
    assert fact.syscall == NO_SYSCALL


@pytest.mark.parametrize("state", TaskState)
def test_decode__every_state_has_a_letter(state: TaskState) -> None:
    fact = decode(_record(wire.EventType.THREAD, state=wire.ThreadState[state.name]))
    assert isinstance(fact, ThreadSample)
    assert fact.state is state


def test_decode__totals() -> None:
    names = """cpu_ns read_bytes write_bytes read_chars write_chars major_faults ppid thread_count
        unseen_count"""
    fields = {name: 100 + index for index, name in enumerate(names.split())}
    fact = decode(_record(wire.EventType.TOTALS, **fields))
    assert fact == ProcessTotals(boottime_ns=1000, pid=Pid(7), **fields)  # type: ignore[arg-type]


def test_decode__socket() -> None:
    names = """inode acked_bytes received_bytes last_send_ns last_receive_ns fd unread_bytes
        unsent_bytes unacked_bytes send_window_bytes backoff"""
    numbers = {name: 100 + index for index, name in enumerate(names.split())}
    ends = wire.TcpEndpoints(_ipv4("10.0.0.1"), _ipv4("10.0.0.2"), 4444, 5555, 0)
    fact = decode(_record(wire.EventType.SOCKET, ends=ends, state=2, **numbers))
    assert fact == SocketSample(
        boottime_ns=1000,
        pid=Pid(7),
        state="SYN_SENT",
        local=("10.0.0.1", 4444),
        remote=("10.0.0.2", 5555),
        **numbers,  # type: ignore[arg-type]
    )


def test_decode__addresses_of_ipv6() -> None:
    ends = wire.TcpEndpoints(wire.Address(*bytes(15), 1), wire.Address(0xFE, 0x80), 1, 2, 0)
    fact = decode(_record(wire.EventType.RETRANSMIT, ends=ends))
    assert fact == TcpRetransmit(1000, Pid(7), ("::1", 1), ("fe80::", 2))


@pytest.mark.parametrize(
    ("peer_inode", "expected"), [(0, None), (77, 77)], ids=["pipe has no peer", "unix has one"]
)
def test_decode__descriptor(peer_inode: int, expected: int | None) -> None:
    record = _record(
        wire.EventType.DESCRIPTOR,
        inode=5,
        peer_inode=peer_inode,
        fd=3,
        kind=wire.DescriptorKind.UNIX,
    )
    fact = DescriptorSample(1000, Pid(7), 3, "unix", 5, expected)  # type: ignore[arg-type]
    assert decode(record) == fact


@pytest.mark.parametrize(
    ("status", "code", "signal", "core"),
    [
        (0, 0, 0, False),
        (3 << 8, 3, 0, False),
        (255 << 8, 255, 0, False),
        (9, 0, 9, False),
        (6 | 0x80, 0, 6, True),
    ],
)
def test_decode__exit(status: int, code: int, signal: int, core: bool) -> None:
    fact = decode(_record(wire.EventType.EXIT, wait_status=status, comm=_comm(b"python3")))
    assert fact == ProcessExit(1000, Pid(7), code, signal, core, "python3")


def test_decode__the_rest_of_the_family_tree() -> None:
    comm = _comm(b"child\0old rest")
    assert decode(_record(wire.EventType.FORK, child_pid=8, comm=comm)) == ProcessFork(
        1000, Pid(7), Pid(8), "child"
    )
    assert decode(_record(wire.EventType.EXEC, comm=comm)) == ProcessExec(1000, Pid(7), "child")
    assert decode(_record(wire.EventType.OOM, comm=comm)) == OomKill(1000, Pid(7), "child")


def test_decode__signal() -> None:
    record = _record(
        wire.EventType.SIGNAL, tid=71, signal=19, sender_pid=1, sender_comm=_comm(b"bash")
    )
    sent = SignalSent(1000, Pid(7), 71, 19, Pid(1), "bash")  # type: ignore[arg-type]
    assert decode(record) == sent
    record = _record(
        wire.EventType.SIGNAL,
        tid=71,
        signal=19,
        sender_pid=1,
        from_outside=1,
        sender_comm=_comm(b"bash"),
    )
    assert decode(record) == replace(sent, from_outside=True)


def test_decode__fatal_signal() -> None:
    record = _record(wire.EventType.FATAL, signal=11, comm=_comm(b"python3"))
    assert decode(record) == FatalSignal(1000, Pid(7), 11, "python3")


def test_decode__tcp_state_change() -> None:
    assert decode(_record(wire.EventType.TCP_STATE)) == TcpStateChange(1000, Pid(7))


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (b"", TRUNCATED),
        (b"\x01\x00\x18", TRUNCATED),
        (b"\xff\xff\x10\x00" + bytes(12), UNKNOWN_TYPE),
        (_record(wire.EventType.EXEC) + b"\0", WRONG_SIZE),
        (_record(wire.EventType.EXEC)[:-1], WRONG_SIZE),
        (_record(wire.EventType.THREAD, state=ord("X")), BAD_VALUE),
        (_record(wire.EventType.SOCKET, state=99), BAD_VALUE),
        (_record(wire.EventType.DESCRIPTOR, kind=0), BAD_VALUE),
    ],
)
def test_decode__bad_records(record: bytes, kind: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(record)
    assert caught.value.kind == kind


def test_decode__a_bad_record_in_a_stream_costs_itself_only() -> None:
    rejected: Counter[str] = Counter()
    good = _record(wire.EventType.EXEC, comm=_comm(b"x"))
    bad = _record(wire.EventType.SOCKET, state=99)
    facts = list(decode_stream(good + bad + good, rejected))
    assert facts == [decode(good)] * 2
    assert rejected == {BAD_VALUE: 1}


@pytest.mark.parametrize("size", [0, 3, 2**16 - 1])
def test_decode_stream__a_stream_without_a_sane_size_ends(size: int) -> None:
    rejected: Counter[str] = Counter()
    broken = wire.EventType.EXEC.to_bytes(2, "little") + size.to_bytes(2, "little") + bytes(28)
    assert list(decode_stream(broken, rejected)) == []
    assert rejected == {TRUNCATED: 1}


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if kind in (ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64):
        return st.integers(0, 2 ** (8 * ctypes.sizeof(kind)) - 1)
    if kind is ctypes.c_int32:
        return st.integers(-(2**31), 2**31 - 1)
    if issubclass(kind, ctypes.Array):
        return st.lists(_values(kind._type_), min_size=kind._length_, max_size=kind._length_).map(
            lambda items: kind(*items)
        )
    return st.builds(kind, **{name: _values(part) for name, part in kind._fields_})


_CLOSED: dict[str, st.SearchStrategy[int]] = {
    "old_state": st.sampled_from(sorted(TCP_STATES)),
    "new_state": st.sampled_from(sorted(TCP_STATES)),
    "kind": st.sampled_from([int(kind) for kind in wire.DescriptorKind]),
}


@st.composite
def _valid_records(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(sorted(MIRRORS)))
    fields: dict[str, Any] = {}
    for name, part in MIRRORS[kind]._fields_[1:]:  # type: ignore[misc]
        if name == "state":
            letters = [int(state) for state in wire.ThreadState]
            known = letters if kind is wire.EventType.THREAD else sorted(TCP_STATES)
            fields[name] = draw(st.sampled_from(known))
        else:
            fields[name] = draw(_CLOSED.get(name, _values(part)))
    return _record(kind, draw(U32), draw(U64), **fields)


@given(st.lists(_valid_records(), max_size=4))
def test_decode__a_stream_is_its_records(records: list[bytes]) -> None:
    rejected: Counter[str] = Counter()
    facts: list[Fact] = list(decode_stream(memoryview(b"".join(records)), rejected))
    assert facts == [decode(record) for record in records]
    assert not rejected


@given(st.binary(max_size=400))
def test_decode__any_bytes_decode_or_say_why_not(record: bytes) -> None:
    kinds = []
    try:
        decode(record)
    except DecodeError as error:
        kinds.append(error.kind)
    assert set(kinds) <= KINDS


@given(_valid_records(), st.integers(0, 2000), st.integers(0, 255))
def test_decode_stream__a_flipped_byte_never_escapes(
    record: bytes, position: int, value: int
) -> None:
    changed = bytearray(record)
    changed[position % len(changed)] = value
    rejected: Counter[str] = Counter()
    facts = list(decode_stream(bytes(changed), rejected))
    assert len(facts) + sum(rejected.values()) >= 1
    assert rejected.keys() <= KINDS
