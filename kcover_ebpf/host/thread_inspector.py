"""An inspection of one thread that does not move: what it waits for, until when, where in its code.

Reading the memory of a process can block for as long as something holds its memory lock, which a
driver that does not answer may do for ever. So every inspection runs in a worker thread (`host.readers`), and the
caller takes what is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial

from kcover_ebpf.facts.host import (
    CodeSeen,
    Inspection,
    InspectRequest,
    StorageState,
    Unreadable,
    WaitedFile,
)
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import blocked_call, stack_words
from kcover_ebpf.host.blocked_call import read_text
from kcover_ebpf.host.nfs_servers import nfs_state
from kcover_ebpf.host.procfs import boottime_ns, open_devices
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid

_DEVICES_S = 30.0
"""Devices are opened when a training starts and closed when it ends; to read them costs 2 us for each open file."""


class ThreadInspector:
    """Inspects threads in the background; `machine` is what `os.uname().machine` says."""

    def __init__(self, machine: str) -> None:
        self._table = SyscallTable(machine)
        self._memory = stack_words.ProcessMemory()
        self._readers: Readers[Pid, Inspection | CodeSeen] = Readers("kcover-inspect")
        self._reported: set[Pid] = set()
        self._devices: dict[Pid, tuple[float, frozenset[str] | None]] = {}

    def inspect(
        self, requests: Sequence[InspectRequest], timeout_s: float = 0.1
    ) -> list[Inspection | CodeSeen | Unreadable]:
        """Ask for inspections and take all that are ready, waiting at most `timeout_s` for the new ones.

        A process whose inspection is under way is not asked again, and after a second is reported, once, as
        `Unreadable`: that is a fact about it.
        """
        late = self._readers.take((), 0.0)
        ask, inspect = self._readers.ask, self._read
        asked = [each.pid for each in requests if ask(each.pid, partial(inspect, each))]
        taken = [*late, *self._readers.take(asked, timeout_s)]
        done = [each for _, each in taken if each is not None]
        stuck = self._readers.stuck()
        fresh, self._reported = stuck.keys() - self._reported, set(stuck)
        now_ns, now_s = boottime_ns(), time.monotonic()
        return [
            *done,
            *(Unreadable(now_ns, pid, now_ns - int((now_s - stuck[pid]) * 1e9)) for pid in fresh),
        ]

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered about a process that ended or became another program."""
        self._memory.forget(pid)
        self._readers.forget(pid)
        self._devices.pop(pid, None)

    def _read(self, request: InspectRequest) -> Inspection | CodeSeen:
        return self._inspect(request) if request.burning_sp is None else self._code(request)

    def _code(self, request: InspectRequest) -> CodeSeen:
        modules = self._memory.modules(request.pid) if request.wants_modules else ()
        words = self._memory.words(request.pid, request.burning_sp or 0)
        return CodeSeen(
            boottime_ns(), request.pid, request.tid, words, modules, self._devices_of(request.pid)
        )

    def _devices_of(self, pid: Pid) -> frozenset[str] | None:
        read_s, devices = self._devices.get(pid, (-math.inf, None))
        if time.monotonic() - read_s >= _DEVICES_S:
            devices = open_devices(pid)
            self._devices[pid] = time.monotonic(), devices
        return devices

    def _inspect(self, request: InspectRequest) -> Inspection:
        call = blocked_call.read_call(request.pid, request.tid, self._table, request.syscall)
        wait = blocked_call.read_wait(request.pid, request.tid, call, request.since_ns)
        storages = (_storage(request.pid, each) for each in wait.files)
        return Inspection(
            boottime_ns=boottime_ns(),
            pid=request.pid,
            tid=request.tid,
            wait_channel=wait.wait_channel,
            deadline_ns=wait.deadline_ns,
            timed=wait.timed,
            files=wait.files,
            stack=() if call is None else self._memory.words(request.pid, call.sp),
            storage=next((state for state in storages if state), None),
            lock_holders=wait.lock_holders,
            devices=self._devices_of(request.pid),
        )


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
