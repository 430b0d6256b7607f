"""The stacks of a job's ranks for an archive: Python, native and kernel frames, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.diagnosis.history.stacks import unbuilt
from kcover_ebpf.host import bounded, procfs
from kcover_ebpf.host.thread_reader import thread_numbers
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.model.process_state import WAITING
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.trace.stack_helpers import Frames, Helpers
from kcover_ebpf.watching.py_spy import is_python

_MOST = 64
"""The most processes: a node of eight GPUs has eight ranks with a few loaders each."""
_WORKERS = (Role.RANK, Role.LOADER)
_Leads = Mapping[tuple[int, int], RankSnapshot]


class StackReading:
    """Stack-reading programs that run while the caller does something else."""

    def __init__(
        self,
        pids: Collection[int],
        ranks: Sequence[RankSnapshot],
        confinement: Confinement | None = None,
    ) -> None:
        """Start reading the lead threads of ranks and loaders among these processes.

        If no rank is known, one thread of each interpreter is read. `confinement`: of py-spy, None: its default.
        """
        self._pids = pids
        wanted = list(_leads(pids, ranks)) or _interpreters(pids)
        self._chosen = wanted[:_MOST]
        more = len(wanted) - _MOST
        self._unread = [f"stacks of {more} more processes"] if more > 0 else []
        self._helpers = _helpers(self._chosen, confinement) if self._chosen else None

    def finish(
        self, ranks: Sequence[RankSnapshot], end_s: float
    ) -> tuple[tuple[Stack, ...], list[str]]:
        """(the stacks, what could not be read) by `end_s` (CLOCK_MONOTONIC); `ranks`: as now known."""
        frames = Frames()
        if self._helpers is not None:
            try:
                numbers = {pid: thread_numbers(Pid(pid), [Tid(tid)]) for pid, tid in self._chosen}
                frames = self._helpers.collect(max(0.0, end_s - time.monotonic()), numbers)
            finally:
                self._helpers.close()
        leads = _leads(self._pids, ranks)
        chosen = list(leads)[:_MOST] or self._chosen
        stacks = tuple(_completed(frames, key, leads) for key in chosen)
        return stacks, [*self._unread, *frames.blind]


def read(
    pids: Collection[int],
    ranks: Sequence[RankSnapshot],
    end_s: float,
    confinement: Confinement | None = None,
) -> tuple[tuple[Stack, ...], list[str]]:
    """As `StackReading`, by `end_s`; if that is in the past, only what `ranks` contain already."""
    if end_s > time.monotonic():
        return StackReading(pids, ranks, confinement).finish(ranks, end_s)
    leads = _leads(pids, ranks)
    chosen = (list(leads) or _interpreters(pids))[:_MOST]
    stacks = tuple(_completed(Frames(), key, leads) for key in chosen)
    return stacks, ["stacks (no time was left)"] if chosen else []


def _interpreters(pids: Collection[int]) -> list[tuple[int, int]]:
    return [(pid, pid) for pid in sorted(pids) if is_python(procfs.comm(pid))]


def _leads(pids: Collection[int], ranks: Sequence[RankSnapshot]) -> _Leads:
    """(pid, tid) -> the thread that represents each process; ranks first, and of them those that do not only wait."""
    return {
        (int(rank.pid), rank.tid or int(rank.pid)): rank
        for rank in sorted(
            ranks, key=lambda rank: (rank.role is not Role.RANK, rank.state in WAITING)
        )
        if rank.role in _WORKERS and rank.exit is None and rank.pid in pids
    }


def _helpers(threads: Sequence[tuple[int, int]], confinement: Confinement | None) -> Helpers:
    return Helpers([(pid, tid, procfs.comm(pid)) for pid, tid in threads], confinement)


def _completed(frames: Frames, key: tuple[int, int], leads: _Leads) -> Stack:
    """Adds what the sensor had read before: the program's frames, and the sampled addresses of its code."""
    pid, tid = key
    rank = leads.get(key)
    stack = frames.stack(pid, tid, None if rank is None else rank.rank)
    channel = "" if stack.kernel else wait_channel(pid, tid)
    kernel = (channel,) if channel else stack.kernel
    if rank is None:
        return replace(stack, kernel=kernel)
    python = stack.python or tuple(frame.text for frame in rank.python)
    # sampled addresses would seem to differ from the named frames of other ranks
    native = stack.native if any(frames.native.values()) else unbuilt(rank.stack)
    return replace(stack, kernel=kernel, python=python, native=native)


def wait_channel(pid: int, tid: int) -> str:
    """The kernel function that a thread waits in; empty while it runs, or if it may not be read."""
    return bounded.read_text(f"/proc/{pid}/task/{tid}/wchan").strip().strip("0")
