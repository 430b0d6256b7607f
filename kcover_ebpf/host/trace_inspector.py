"""Details of many threads in little time: the lock, the files, the end of the wait, the kernel function.

Reading the memory of a process blocks while that process holds its own memory lock. So the reads are
made by threads that are left behind when the time is up; they are daemons and die with us.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.host import blocked_call, procfs, stack_words
from kcover_ebpf.host.blocked_call import Call
from kcover_ebpf.host.thread_inspector import lock_holders_of
from kcover_ebpf.ids import Pid, Tid

_WORKERS = 4
_LOCK_BYTES = 24
_FD_LOCKS = ("flock", "fcntl")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A thread to look at, with the call that the sampler saw it in."""

    pid: Pid
    tid: Tid
    call: Call
    since_ns: int
    """Boottime at which the call began: relative time-outs count from there."""


@dataclass(frozen=True, slots=True)
class TraceInspection:
    """What was read about one thread; each part is empty or None where it could not be."""

    wait_channel: str
    lock_memory: bytes
    """From the futex word on."""
    files: tuple[WaitedFile, ...]
    timed: bool
    deadline_ns: int | None
    """Boottime."""
    lock_holders: tuple[Pid, ...]


def glance_all(
    asks: Sequence[TraceRequest], limit_s: float
) -> dict[tuple[Pid, Tid], TraceInspection]:
    """Look at all, in order; those that were not read within `limit_s` are missing."""
    todo: SimpleQueue[TraceRequest] = SimpleQueue()
    done: SimpleQueue[tuple[TraceRequest, TraceInspection | None]] = SimpleQueue()
    for ask in asks:
        todo.put(ask)
    for _ in range(min(_WORKERS, len(asks))):
        threading.Thread(target=_work, args=(todo, done), daemon=True, name="kcover-glance").start()
    found: dict[tuple[Pid, Tid], TraceInspection] = {}
    end_s = time.monotonic() + limit_s
    for _ in asks:
        try:
            ask, glance = done.get(timeout=max(0.0, end_s - time.monotonic()))
        except Empty:
            break
        if glance is not None:
            found[ask.pid, ask.tid] = glance
    _empty(todo)
    return found


def _work(
    todo: SimpleQueue[TraceRequest], done: SimpleQueue[tuple[TraceRequest, TraceInspection | None]]
) -> None:
    while True:
        try:
            ask = todo.get_nowait()
        except Empty:
            return
        try:
            done.put((ask, _glance(ask)))
        except (OSError, ValueError):
            done.put((ask, None))


def _empty(queue: SimpleQueue[TraceRequest]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return


def _glance(ask: TraceRequest) -> TraceInspection:
    call = ask.call
    timed, deadline_ns = blocked_call.deadline(ask.pid, call, ask.since_ns)
    is_lock = call.name.startswith("futex")
    channel = blocked_call.read_text(f"/proc/{ask.pid}/task/{ask.tid}/wchan").strip()
    return TraceInspection(
        wait_channel="" if channel == "0" else channel,
        lock_memory=stack_words.read_memory(ask.pid, call.args[0], _LOCK_BYTES) if is_lock else b"",
        files=blocked_call.files(ask.pid, call),
        timed=timed,
        deadline_ns=deadline_ns,
        lock_holders=lock_holders_of(ask.pid) if call.name in _FD_LOCKS else (),
    )


def thread_numbers(pid: Pid, tids: Iterable[Tid]) -> dict[int, int]:
    """Number of each thread in the process's own pid namespace -> its number here."""
    if len(procfs.numbers_inside(procfs.PROC / str(pid))) < 2:
        return {tid: tid for tid in tids}
    numbers: dict[int, int] = {}
    for tid in tids:
        if found := procfs.numbers_inside(procfs.PROC / f"{pid}/task/{tid}"):
            numbers[found[-1]] = tid
    return numbers
