"""Parsers of what a job writes: its environment, its memory, its NCCL, its log, and programs that read its stacks."""

from __future__ import annotations

import json
from copy import copy
from unittest.mock import patch

from kcover_ebpf.api.codec import encode
from kcover_ebpf.collectives.ras import RasError
from kcover_ebpf.collectives.ras.answer import parse
from kcover_ebpf.collectives.ras.client import _EVENTS_BYTES, REPORT_BYTES, dead_peers, port_of
from kcover_ebpf.collectives.recorder import recorder_dump
from kcover_ebpf.collectives.recorder.pickle_machine import MOST_BYTES as _DUMP_BYTES
from kcover_ebpf.collectives.recorder.recorder_dump import DumpError
from kcover_ebpf.devices.catalog.files import shipped as catalog
from kcover_ebpf.diagnosis.membership import rank_numbers
from kcover_ebpf.facts import futex
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import (
    blocked_call,
    proc_text,
    procfs,
    stack_frames,
    stack_words,
    thread_reader,
)
from kcover_ebpf.ids import Pid
from kcover_ebpf.logs import container_log, lines, rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.logs.normal import NormalLines, normal
from kcover_ebpf.logs.reader import LogReader
from kcover_ebpf.logs.tracebacks import TracebackFinder
from kcover_ebpf.trace.native_frames import shown
from kcover_ebpf.trace.stack_helpers import parse_native
from kcover_ebpf.watching import py_spy
from tests.fuzz.target import Target, text

_VARIABLES = sorted({name for pair in rank_numbers._RANK_VARIABLES for name in pair})
_TIMED = ("futex", "futex_waitv", "clock_nanosleep", "nanosleep", "ppoll", "select", "poll")
_WAITS = ("poll", "ppoll", "select", "pselect6", "openat", "epoll_wait", "read")
_LOG_READER = LogReader(rules.shipped(), catalog())
"""New; what an input is given to is a copy, because to compile the rules takes half a second."""
_CONTAINER_RULES = rules.shipped()
_CONTAINER_READER = LogReader(_CONTAINER_RULES, catalog(), source=Source.CONTAINER)
_WORDS = stack_words.ProcessMemory("aarch64")


def _ras(data: bytes) -> None:
    report = parse(data.decode("latin-1"))
    report.concerns({1: Pid(1)})
    json.dumps([rank.counts for found in report.communicators for rank in found.ranks])


def _environment(data: bytes) -> None:
    found = procfs.parse_environ(data, _VARIABLES)
    assert all(len(value) <= 200 for value in found.values())
    rank, size = rank_numbers.rank_of(found)
    assert rank is None or 0 <= rank < 10_000_000
    assert size is None or 0 < size < 10_000_000
    assert 0 < port_of(found.get("RANK")) < 65536


def _memory(data: bytes) -> None:
    """A call's arguments (six words) and what they point to."""
    head, memory = data[:48].ljust(48, b"\0"), data[48:]
    args = tuple(int.from_bytes(head[at : at + 8], "little") for at in range(0, 48, 8))

    def read(_pid: Pid, address: int, size: int) -> bytes:
        assert 0 <= size <= 65536
        start = address % (len(memory) + 1)
        return memory[start : start + size]

    with patch.object(stack_words, "read_memory", read):
        for name in _TIMED:
            blocked_call.deadline(Pid(1), blocked_call.Call(name, args, 0), 5)
        for name in _WAITS:
            assert len(blocked_call.files(Pid(0), blocked_call.Call(name, args, 0))) <= 64
        assert len(_WORDS.words(Pid(0), args[0])) <= 256
    futex.owner(args[1], args[2], memory)
    futex.describe(args[1], args[2], memory[: thread_reader._LOCK_BYTES], {5: 6})
    for machine in ("x86_64", "aarch64"):
        stack_frames.follows_call(memory[:8], machine)


def _call(data: bytes) -> None:
    blocked_call.kind_of(text(data))
    assert proc_text.timer_left_ns(text(data)) != 0
    with patch.object(blocked_call, "read_text", lambda _: "0 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8"):
        blocked_call.read_call(Pid(1), 1, SyscallTable("x86_64"))  # type: ignore[arg-type]


def _log(data: bytes) -> None:
    """In blocks, which end anywhere: the first byte says how long they are."""
    size = data[0] + 1 if data else 1
    reader = copy(_LOG_READER)
    blocks = (data[at : at + size] for at in range(1, len(data), size))
    found = [match for block in blocks for match in reader.feed(block)]
    found += reader.finish()
    assert len(found) <= data.count(b"\n") + 1


def _normal(data: bytes) -> None:
    """In blocks, as `_log`: the same as at once, and no more than a runtime's head for each part of a line."""
    size = data[0] + 1 if data else 1
    pieces, data = NormalLines(), data[1:]
    made = b"".join(pieces.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert made + pieces.finish() == normal(data)
    assert len(made) <= 64 * (len(data) + 64)


def _container_log(data: bytes) -> None:
    """In blocks, as `_log`: joined lines, tracebacks in them, and no text of them in what is reported."""
    size = data[0] + 1 if data else 1
    pieces, finder = NormalLines(), TracebackFinder()
    for at in range(1, len(data), size):
        whole = pieces.feed(data[at : at + size])
        assert not whole or whole.endswith((b"\n", b"\r"))
        for found in finder.feed(whole):
            assert len(found.fingerprint) == 16
            assert found.place is None or len(found.place) <= 128


def _summary(data: bytes) -> None:
    """As an agent reads it: two starts, the second after bytes that were skipped."""
    half = len(data) // 2
    with patch.object(container_log, "LogReader", lambda *_, **__: copy(_CONTAINER_READER)):
        reader = container_log.ContainerLogReader("u", "c", _CONTAINER_RULES)
        for chunk in (Chunk(0, data[:half], 0, True), Chunk(1, data[half:], 7)):
            reader.feed(chunk, 1.8e9)
            found = reader.summary(1.8e9)
            json.dumps(None if found is None else encode(found), allow_nan=False)


def _dump(data: bytes) -> None:
    found = recorder_dump.record_of(recorder_dump.read(data), Pid(7), 1)
    json.dumps(encode(found), allow_nan=False)


def _native(data: bytes) -> None:
    for _, native, _, _ in parse_native(data):
        shown(list(native))


TARGETS = (
    Target("ras_answer", _ras, REPORT_BYTES, (RasError,)),
    Target("ras_events", lambda data: dead_peers(text(data).split("\n")), _EVENTS_BYTES),
    Target("environment", _environment, 256 * 1024),
    Target("call_memory", _memory, 4096),
    Target("descriptor", _call, 4096),
    Target("log_line", lambda data: lines.parse(text(data)), 65536),
    Target("log", _log, 65536),
    Target("log_normal", _normal, 65536),
    Target("container_log", _container_log, 65536),
    Target("log_summary", _summary, 65536),
    Target("recorder_dump", _dump, _DUMP_BYTES, (DumpError,)),
    Target("py_spy", lambda data: py_spy.parse(data, 7, {1: 2}), 1 << 20, (ValueError,)),
    Target("native_frames", _native, 1 << 20),
)
