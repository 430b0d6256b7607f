"""Reads what a thread that makes no progress waits for, until when, and where in its code.

Reading the memory of a process blocks while its memory lock is taken, which a hanging driver may cause forever. So
every reading runs in a worker thread (`host.read_workers`), and the caller takes those that are done.
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
"""Most threads of a process in another pid namespace that are searched for the owner of a lock."""
_Key = tuple[Pid, Tid | None]
"""A thread; or (None) the single reading of a process that may be in progress."""


class ThreadSource(Protocol):
    """Reads one thread at a time.

    May block, because the memory lock of the process may be taken; used by several threads.
    """

    def reading(self, request: ReadingRequest) -> ThreadReading | CodeSeen:
        """The complete reading of one thread, or the code that it runs if it does not wait."""
        ...

    def wait(self, request: ReadingRequest) -> ThreadReading:
        """Only what the thread waits for, including the owner of a lock.

        Stack, storage and devices take longer and are left out.
        """
        ...

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered about a process. Never waits."""
        ...


class ThreadReadings:
    """A `ThreadSource` that reads in this process; `machine`: as `os.uname().machine` reports it."""

    def __init__(self, machine: str) -> None:
        self._table = SyscallTable(machine)
        self._memory = stack_words.ProcessMemory()
        self._devices: dict[Pid, tuple[float, frozenset[str] | None]] = {}

    def reading(self, request: ReadingRequest) -> ThreadReading | CodeSeen:
        """The complete reading of one thread; see `ThreadSource`."""
        return self._reading(request) if request.burning_sp is None else self._code(request)

    def wait(self, request: ReadingRequest) -> ThreadReading:
        """What the thread waits for; see `ThreadSource`."""
        call = self._call(request)
        reading = blocked_call.read_wait(request.pid, request.tid, call, request.since_ns)
        if call is None or not call.name.startswith("futex"):
            return reading
        memory = stack_words.read_memory(request.pid, call.args[0], _LOCK_BYTES)
        return replace(reading, lock_memory=memory)

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered about a process. Never waits."""
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
    """Reads threads in the background, one reading per process at a time."""

    def __init__(self, source: ThreadSource) -> None:
        """`source`: called by threads of this object."""
        self._source = source
        self._readers: Readers[_Key, ThreadReading | CodeSeen] = Readers("kcover-reader")
        self._reported: set[Pid] = set()

    def read(
        self, requests: Sequence[ReadingRequest], timeout_s: float = 0.1
    ) -> list[ThreadReading | CodeSeen | Unreadable]:
        """Request readings and take all that are done, waiting at most `timeout_s` for the new ones.

        A process with a reading in progress is not read again. After a second it is reported once as `Unreadable`,
        which is a fact about it.
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
        """What each of many threads waits for; those not read within `limit_s` are missing.

        Each reading is as `ThreadSource` defines `wait`.
        """
        self._readers.take((), 0.0)  # results that arrived too late belong to an earlier pass
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
    """The reading with the owner of the lock that the thread waits for, if the lock word shows it."""
    pid = reading.pid
    memory = stack_words.read_memory(pid, call.args[0], _LOCK_BYTES)
    number = futex.owner(call.args[1], call.args[2], memory)
    if number is None:
        return reading
    if len(namespace_numbers(pid)) > 1:
        threads = thread_numbers(pid, thread_ids(pid, _MOST_THREADS))
        return replace(reading, lock_thread=Tid(threads[number]) if number in threads else None)
    # a lock in shared memory may be owned by a thread of any process that maps it
    group = process_of(number)
    if group in (None, pid):
        return replace(reading, lock_thread=None if group is None else Tid(number))
    return replace(reading, lock_holders=(group,))


def _storage(pid: Pid, file: WaitedFile) -> StorageState | None:
    """Counters of the NFS server or block device of a file (kernel: Documentation/block/stat.rst); None for others."""
    device = file.device
    if file.fs_type in ("nfs", "nfs4"):
        return nfs_state(pid, device)
    stat = read_text(f"/sys/dev/block/{device}/stat").split() if device else []
    if len(stat) < 9:
        return None
    suspended = read_text(f"/sys/dev/block/{device}/dm/suspended").strip() == "1"
    return StorageState(device, int(stat[8]), int(stat[0]) + int(stat[4]), suspended)
