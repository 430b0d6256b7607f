"""Details of many threads in little time: the lock, the files, the end of the wait, the kernel function.

Reading the memory of a process blocks while that process holds its own memory lock. So the reads are
made by threads that can be left behind (`host.read_workers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from kcover_ebpf.host import blocked_call, stack_words
from kcover_ebpf.host.blocked_call import BlockedWait, Call
from kcover_ebpf.host.procfs import namespace_numbers
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid, Tid

_LOCK_BYTES = 24
_Key = tuple[Pid, Tid]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A thread to inspect, with the call that the sampler saw it in."""

    pid: Pid
    tid: Tid
    call: Call
    since_ns: int
    """Boottime at which the call began: relative time-outs count from there."""


@dataclass(frozen=True, slots=True)
class TraceInspection:
    """What was read about one thread."""

    wait: BlockedWait
    lock_memory: bytes
    """From the futex word on; empty where it waits for none, or it could not be read."""


class TraceInspector:
    """Reads many threads side by side. Used by one thread."""

    def __init__(self) -> None:
        self._readers: Readers[_Key, TraceInspection] = Readers("kcover-inspect")

    def inspect(
        self, asks: Sequence[TraceRequest], limit_s: float
    ) -> dict[tuple[Pid, Tid], TraceInspection]:
        """All of them, in order; those that were not read within `limit_s` are missing."""
        self._readers.take((), 0.0)  # what came too late belongs to an earlier pass
        keys = [(each.pid, each.tid) for each in asks]
        for key, each in zip(keys, asks, strict=True):
            self._readers.ask(key, partial(_inspect, each))
        taken = self._readers.take(keys, limit_s)
        for key in keys:
            self._readers.forget(key)
        return {key: found for key, found in taken if found is not None}


def _inspect(ask: TraceRequest) -> TraceInspection:
    call = ask.call
    is_lock = call.name.startswith("futex")
    return TraceInspection(
        blocked_call.read_wait(ask.pid, ask.tid, call, ask.since_ns),
        lock_memory=stack_words.read_memory(ask.pid, call.args[0], _LOCK_BYTES) if is_lock else b"",
    )


def thread_numbers(pid: Pid, tids: Iterable[Tid]) -> dict[int, int]:
    """Number of each thread in the process's own pid namespace -> its number here."""
    if len(namespace_numbers(pid)) < 2:
        return {tid: tid for tid in tids}
    known = {tid: namespace_numbers(pid, tid) for tid in tids}
    return {numbers[-1]: tid for tid, numbers in known.items() if numbers}
