"""A closer look at one thread that does not move: what it waits for, until when, where in its code.

Reading the memory of a process can block for as long as that process holds its own memory lock,
which a thread stuck in a page fault may do for ever. So every look runs in a worker thread, and the
caller takes what is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from kcover_ebpf.host import calls, stack
from kcover_ebpf.host.calls import read_text
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.host_facts import Inspection, Look, StorageState
from kcover_ebpf.ids import Pid
from kcover_ebpf.syscalls import SyscallTable

_WORKERS = 3


class Inspector:
    """Looks at threads in the background; `machine` is what `os.uname().machine` says."""

    def __init__(self, machine: str) -> None:
        self._table = SyscallTable(machine)
        self._memory = stack.Memory()
        self._asked: SimpleQueue[Look] = SimpleQueue()
        self._seen: SimpleQueue[Inspection | None] = SimpleQueue()
        self._pending = 0
        self._workers: list[threading.Thread] = []

    def look(self, looks: Sequence[Look], timeout_s: float = 0.1) -> list[Inspection]:
        """Ask for looks and take all that are ready, waiting at most `timeout_s` for the new ones."""
        if self._pending < 4 * _WORKERS:
            for each in looks:
                self._asked.put(each)
                self._pending += 1
        if looks and not self._workers:
            self._start()
        done: list[Inspection] = []
        deadline_s = time.monotonic() + timeout_s
        while self._pending:
            try:
                found = self._seen.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except Empty:
                break
            self._pending -= 1
            if found is not None:
                done.append(found)
        return done

    @property
    def blocked(self) -> bool:
        """True while looks are under way that did not come back in time."""
        return self._pending > 0

    def forget(self, pid: Pid) -> None:
        """Drop what was remembered about a process that ended or became another program."""
        self._memory.forget(pid)

    def _start(self) -> None:
        for _ in range(_WORKERS):
            worker = threading.Thread(target=self._work, name="kcover-inspect", daemon=True)
            worker.start()
            self._workers.append(worker)

    def _work(self) -> None:
        while True:
            look = self._asked.get()
            try:
                self._seen.put(self._inspect(look))
            except (OSError, ValueError):
                self._seen.put(None)

    def _inspect(self, look: Look) -> Inspection:
        call = calls.read_call(look.pid, look.tid, self._table, look.syscall)
        timed, deadline_ns = (
            (False, None) if call is None else calls.deadline(look.pid, call, look.since_ns)
        )
        files = () if call is None else calls.files(look.pid, call)
        return Inspection(
            boottime_ns=boottime_ns(),
            pid=look.pid,
            tid=look.tid,
            wait_channel=_wait_channel(look),
            deadline_ns=deadline_ns,
            timed=timed,
            files=files,
            stack=() if call is None else self._memory.words(look.pid, call.sp),
            storage=next((state for each in files if (state := _storage(each.device))), None),
            lock_holders=lock_holders_of(look.pid)
            if call and call.name in ("flock", "fcntl")
            else (),
        )


def _wait_channel(look: Look) -> str:
    text = read_text(f"/proc/{look.pid}/task/{look.tid}/wchan").strip()
    return "" if text == "0" else text


def _storage(device: str) -> StorageState | None:
    """Counters of a block device (kernel: Documentation/block/stat.rst); None if it is none."""
    stat = read_text(f"/sys/dev/block/{device}/stat").split() if device else []
    if len(stat) < 9:
        return None
    suspended = read_text(f"/sys/dev/block/{device}/dm/suspended").strip() == "1"
    return StorageState(device, int(stat[8]), int(stat[0]) + int(stat[4]), suspended)


def lock_holders_of(pid: Pid) -> tuple[Pid, ...]:
    """Processes that hold the lock `pid` waits for (kernel: /proc/locks, "->" marks a waiter)."""
    return parse_locks(read_text("/proc/locks"), pid)


def parse_locks(text: str, waiter: Pid) -> tuple[Pid, ...]:
    """Holders, from the text of /proc/locks; empty if `waiter` waits for no lock."""
    holders: dict[str, Pid] = {}
    for line in text.splitlines():
        part = line.replace("->", " -> ").split()
        if len(part) < 6:
            continue
        waits = part[1] == "->"
        pid = part[5] if waits else part[4]
        if not pid.removeprefix("-").isdecimal():
            continue
        if not waits:
            holders[part[0]] = Pid(int(pid))
        elif int(pid) == waiter and part[0] in holders:
            return (holders[part[0]],)
    return ()
