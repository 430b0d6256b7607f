"""Reads the Python stacks of a stalled job's ranks, in a thread outside the sensor's loop.

They are read once when a verdict is near, again when the stall has lasted twice as long, and once more before a job
is ended. What cannot be read is reported, and no caller waits for it for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue

from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.evidence.odd_stack import LEAST_RANKS, innermost
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.python_stacks import PythonStack, PythonStacksSeen
from kcover_ebpf.host import procfs, thread_reader
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.tunables.agent import (
    STACKS_AGAIN_S,
    STACKS_BEFORE_ACTION_S,
    STACKS_FRESH_S,
    STACKS_LIMIT_S,
)
from kcover_ebpf.watching import py_spy
from kcover_ebpf.watching.py_spy import Spies

_STUCK = "Python frames (their reader does not return)"
_BUSY = "Python frames (those of other jobs were being read)"
_NO_FRAMES = "Python frames of {} ranks (their lead threads run no Python)"
_ONE_JOB = threading.Lock()
"""Readings at a time: all jobs of a node may stall at once, and the readers share the agent's memory limit."""


@dataclass(frozen=True, slots=True)
class _Lead:
    pid: Pid
    tid: Tid


class StackWatch:
    """Stacks of one job's ranks. No method waits."""

    def __init__(self, confinement: Confinement | None = None) -> None:
        """`confinement`: of py-spy; None: its default."""
        self._confinement = confinement
        self._done: SimpleQueue[PythonStacksSeen] = SimpleQueue()
        self._reader: threading.Thread | None = None
        self._began_s = self._ended_s = self._next_s = self._stalled_s = float("-inf")
        self._is_open = self._is_stuck = False

    def tick(
        self, wanted: bool, ranks: Mapping[Pid, ProcessHistory], rank_count: int
    ) -> list[PythonStacksSeen]:
        """What was read since the last call, including readings that `is_ready` requested.

        `wanted`: a verdict is near that stacks may explain; `rank_count`: of the whole job, including other hosts.
        """
        now_s = time.monotonic()
        news = self._take(now_s)
        if not wanted:
            self._is_open = False
            return news
        if not self._is_open:
            self._is_open, self._stalled_s = True, now_s
            # a job that stalls now and then is not read every time
            self._next_s = max(now_s, self._began_s + STACKS_AGAIN_S)
        if now_s >= self._next_s and rank_count >= LEAST_RANKS:
            self._begin(ranks, now_s)
            self._next_s = now_s + max(STACKS_AGAIN_S, now_s - self._stalled_s)
        return news

    def is_ready(self, ranks: Mapping[Pid, ProcessHistory]) -> bool:
        """True once the ranks were just read, or cannot be read in time; called before the job is ended."""
        now_s = time.monotonic()
        if self._reader is not None:
            return now_s - self._began_s > STACKS_BEFORE_ACTION_S
        if now_s - self._ended_s < STACKS_FRESH_S or len(ranks) < LEAST_RANKS:
            return True
        return not self._begin(ranks, now_s)

    def close(self) -> None:
        """Request no more readings; one in progress ends by itself."""
        self._is_open = False

    def _begin(self, ranks: Mapping[Pid, ProcessHistory], now_s: float) -> bool:
        """Start a reading; False if there is nothing to read, or the last reading has not returned."""
        leads = [
            _Lead(pid, process.lead.sample.tid)
            for pid, process in ranks.items()
            if process.lead is not None and py_spy.is_python(_name(process))
        ]
        if not leads or self._reader is not None:
            return False
        self._began_s, self._is_stuck = now_s, False
        self._reader = threading.Thread(
            target=self._read, args=(leads,), name="kcover-stacks", daemon=True
        )
        self._reader.start()
        return True

    def _read(self, leads: list[_Lead]) -> None:
        if not _ONE_JOB.acquire(timeout=STACKS_LIMIT_S):
            self._done.put(PythonStacksSeen(procfs.boottime_ns(), unread=(_BUSY,)))
            return
        try:
            self._done.put(read(leads, self._confinement))
        finally:
            _ONE_JOB.release()

    def _take(self, now_s: float) -> list[PythonStacksSeen]:
        if self._reader is None:
            return []
        try:
            seen = self._done.get_nowait()
        except Empty:
            # a process killed while it reads memory that never arrives may stay forever
            if now_s - self._began_s < 3 * STACKS_LIMIT_S or self._is_stuck:
                return []
            self._is_stuck = True
            return [PythonStacksSeen(procfs.boottime_ns(), unread=(_STUCK,))]
        self._reader, self._ended_s = None, now_s
        return [seen]


def _name(process: ProcessHistory) -> str:
    # the first thread of a program may have another name, as in PyTorch
    names = [process.seen.comm] if process.seen is not None else []
    return " ".join([*names, process.lead.sample.comm if process.lead is not None else ""])


def read(leads: list[_Lead], confinement: Confinement | None = None) -> PythonStacksSeen:
    """The stacks of these threads, within `STACKS_LIMIT_S`; those that could not be read are reported as such."""
    began_ns = procfs.boottime_ns()
    spies = Spies((lead.pid for lead in leads), confinement)
    try:
        numbers: dict[int, dict[int, int]] = {
            lead.pid: thread_reader.thread_numbers(lead.pid, [lead.tid]) for lead in leads
        }
        spied = spies.collect(STACKS_LIMIT_S, numbers)
    finally:
        spies.close()
    stacks = tuple(
        PythonStack(lead.pid, innermost(thread.frames))
        for lead in leads
        if (thread := spied.threads.get((lead.pid, lead.tid))) is not None and thread.frames
    )
    unread = tuple(spied.blind)
    if not unread and len(stacks) < len(leads):
        unread = (_NO_FRAMES.format(len(leads) - len(stacks)),)
    return PythonStacksSeen(began_ns, stacks, unread)
