"""A reading of one thread that does not move: what it waits for, until when, where in its code.

Reading the memory of a process can block for as long as something holds its memory lock, which a
driver that does not answer may do for ever. So every reading runs in a worker thread (`host.read_workers`), and the
caller takes what is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from kcover_ebpf.facts import futex
from kcover_ebpf.facts.host import (
    CodeSeen,
    ReadingRequest,
    StorageState,
    ThreadReading,
    Unreadable,
    WaitedFile,
)
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import blocked_call, stack_words
from kcover_ebpf.host.blocked_call import Call
from kcover_ebpf.host.bounded import read_text
from kcover_ebpf.host.nfs_servers import nfs_state
from kcover_ebpf.host.procfs import (
    boottime_ns,
    namespace_numbers,
    open_devices,
    process_of,
    thread_ids,
)
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.tunables.host import OPEN_DEVICES_S

_LOCK_BYTES = 24
_MOST_THREADS = 2048
"""Of a process in another pid namespace: so many are searched for the holder of a lock."""
_Key = tuple[Pid, Tid | None]
"""A thread; or the one reading of a process that is under way."""


class ThreadSource(Protocol):
    """Who reads one thread. May block, for the memory of a process may be locked; used by several threads."""

    def reading(self, request: ReadingRequest) -> ThreadReading | CodeSeen:
        """All of a reading."""
        ...

    def wait(self, request: ReadingRequest) -> ThreadReading:
        """What it waits for, with the memory of the lock, and without stack, storage and devices, which take longer."""
        ...

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered of a process. Never waits."""
        ...


class ThreadReadings:
    """Reads in this process; `machine` is what `os.uname().machine` says."""

    def __init__(self, machine: str) -> None:
        self._table = SyscallTable(machine)
        self._memory = stack_words.ProcessMemory()
        self._devices: dict[Pid, tuple[float, frozenset[str] | None]] = {}

    def reading(self, request: ReadingRequest) -> ThreadReading | CodeSeen:
        """As `ThreadSource` says."""
        return self._reading(request) if request.burning_sp is None else self._code(request)

    def wait(self, request: ReadingRequest) -> ThreadReading:
        """As `ThreadSource` says."""
        call = self._call(request)
        reading = blocked_call.read_wait(request.pid, request.tid, call, request.since_ns)
        if call is None or not call.name.startswith("futex"):
            return reading
        memory = stack_words.read_memory(request.pid, call.args[0], _LOCK_BYTES)
        return replace(reading, lock_memory=memory)

    def forget(self, pid: Pid) -> None:
        """As `ThreadSource` says."""
        self._memory.forget(pid)
        self._devices.pop(pid, None)

    def _code(self, request: ReadingRequest) -> CodeSeen:
        modules = self._memory.modules(request.pid) if request.wants_modules else ()
        words = self._memory.words(request.pid, request.burning_sp or 0)
        return CodeSeen(
            boottime_ns(), request.pid, request.tid, words, modules, self._devices_of(request.pid)
        )

    def _devices_of(self, pid: Pid) -> frozenset[str] | None:
        read_s, devices = self._devices.get(pid, (-math.inf, None))
        if time.monotonic() - read_s >= OPEN_DEVICES_S:
            devices = open_devices(pid)
            self._devices[pid] = time.monotonic(), devices
        return devices

    def _reading(self, request: ReadingRequest) -> ThreadReading:
        call = self._call(request)
        reading = blocked_call.read_wait(request.pid, request.tid, call, request.since_ns)
        storages = (_storage(request.pid, file) for file in reading.files)
        if call is not None and call.name == "futex":
            reading = _with_owner(reading, call)
        return replace(
            reading,
            stack=() if call is None else self._memory.words(request.pid, call.sp),
            storage=next((state for state in storages if state), None),
            devices=self._devices_of(request.pid),
        )

    def _call(self, request: ReadingRequest) -> Call | None:
        return blocked_call.read_call(request.pid, request.tid, self._table, request.syscall)


class ThreadReader:
    """Reads threads in the background."""

    def __init__(self, source: ThreadSource) -> None:
        """`source`: asked by threads of ours."""
        self._source = source
        self._readers: Readers[_Key, ThreadReading | CodeSeen] = Readers("kcover-reader")
        self._reported: set[Pid] = set()

    def read(
        self, requests: Sequence[ReadingRequest], timeout_s: float = 0.1
    ) -> list[ThreadReading | CodeSeen | Unreadable]:
        """Ask for readings and take all that are ready, waiting at most `timeout_s` for the new ones.

        A process whose reading is under way is not asked again, and after a second is reported, once, as
        `Unreadable`: that is a fact about it.
        """
        late = self._readers.take((), 0.0)
        ask, inspect = self._readers.ask, self._source.reading
        keys: list[_Key] = [(request.pid, None) for request in requests]
        asked = [
            key
            for key, request in zip(keys, requests, strict=True)
            if ask(key, partial(inspect, request))
        ]
        taken = [*late, *self._readers.take(asked, timeout_s)]
        done = [item for _, item in taken if item is not None]
        stuck = {pid: since_s for (pid, _), since_s in self._readers.stuck().items()}
        fresh, self._reported = stuck.keys() - self._reported, set(stuck)
        now_ns, now_s = boottime_ns(), time.monotonic()
        return [
            *done,
            *(Unreadable(now_ns, pid, now_ns - int((now_s - stuck[pid]) * NS)) for pid in fresh),
        ]

    def waits(
        self, requests: Sequence[ReadingRequest], limit_s: float
    ) -> dict[tuple[Pid, Tid], ThreadReading]:
        """What each of many threads waits for, any number of one process; those not read within `limit_s` are missing.

        As of one by a `ThreadSource`.
        """
        self._readers.take((), 0.0)  # what came too late belongs to an earlier pass
        keys = [(reading_request.pid, reading_request.tid) for reading_request in requests]
        for key, request in zip(keys, requests, strict=True):
            self._readers.ask(key, partial(self._source.wait, request))
        taken = self._readers.take(keys, limit_s)
        for key in keys:
            self._readers.forget(key)
        return {
            (found.pid, found.tid): found for _, found in taken if isinstance(found, ThreadReading)
        }

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered about a process that ended or became another program."""
        self._source.forget(pid)
        self._readers.forget((pid, None))


def thread_numbers(pid: Pid, tids: Iterable[Tid]) -> dict[int, int]:
    """Number of each thread in the process's own pid namespace -> its number here."""
    if len(namespace_numbers(pid)) < 2:
        return {tid: tid for tid in tids}
    known = {tid: namespace_numbers(pid, tid) for tid in tids}
    return {numbers[-1]: tid for tid, numbers in known.items() if numbers}


def _with_owner(reading: ThreadReading, call: Call) -> ThreadReading:
    """The reading of a thread at a lock with who holds that, where its word shows it."""
    pid = reading.pid
    memory = stack_words.read_memory(pid, call.args[0], _LOCK_BYTES)
    number = futex.owner(call.args[1], call.args[2], memory)
    if number is None:
        return reading
    if len(namespace_numbers(pid)) > 1:
        threads = thread_numbers(pid, thread_ids(pid, _MOST_THREADS))
        return replace(reading, lock_thread=Tid(threads[number]) if number in threads else None)
    # a lock in memory that processes share may belong to a thread of any of them
    group = process_of(number)
    if group in (None, pid):
        return replace(reading, lock_thread=None if group is None else Tid(number))
    return replace(reading, lock_holders=(group,))


def _storage(pid: Pid, file: WaitedFile) -> StorageState | None:
    """Counters of the NFS server or block device (kernel: Documentation/block/stat.rst); None if it is none."""
    device = file.device
    if file.fs_type in ("nfs", "nfs4"):
        return nfs_state(pid, device)
    stat = read_text(f"/sys/dev/block/{device}/stat").split() if device else []
    if len(stat) < 9:
        return None
    suspended = read_text(f"/sys/dev/block/{device}/dm/suspended").strip() == "1"
    return StorageState(device, int(stat[8]), int(stat[0]) + int(stat[4]), suspended)
