"""Tracks which processes every pass should visit, and which disappeared without a reported exit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum

from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.owners import SHARES

_MOST_CHECKS = 32
"""Most lookups in /proc per pass (20 us each): a process that forks endlessly must not delay the passes."""
_MOST_CHILDREN = 2 * SHARES["processes"]
"""Most remembered children of a pod. BPF has room for half of them. The exits of the others are
found only by lookups in /proc, so without a bound a fork bomb would make us remember all processes
that have ended."""


class Absence(Enum):
    """Why the passes miss a watched process."""

    GONE = "gone"
    """It ended; its exit record was lost, or exits are not observed on this kernel."""
    UNWATCHED = "unwatched"
    """It is alive, but BPF has no entry for it because the table was full."""


class WatchedProcesses:
    """The watched processes, as user space knows them."""

    def __init__(self) -> None:
        self._known_ns: dict[Pid, int] = {}
        self._born: dict[Pid, int] = {}
        """Children created by watched processes -> their owner id."""
        self._children: Counter[int] = Counter()
        """Owner id -> number of its children."""
        self._pid_sum = 0
        self._difference = 0, 0
        self.in_doubt = False
        """True if the passes and this roster disagree. Only a pass that reports every process shows
        where."""

    def __contains__(self, pid: Pid) -> bool:
        """True if the process is watched now."""
        return pid in self._known_ns

    def add(self, pid: Pid, now_ns: int) -> None:
        """Start to watch a process that is alive at boottime `now_ns`."""
        if pid not in self._known_ns:
            self._known_ns[pid] = now_ns
            self._pid_sum += pid

    def add_child(self, pid: Pid, now_ns: int, owner_id: int = 0) -> bool:
        """Record a child of a watched process; whether it gets an entry is decided in BPF alone.

        `owner_id`: the pod's, 0 for none. False if its pod has too many children for this one to be recorded.
        """
        if owner_id and pid not in self._known_ns and self._children[owner_id] >= _MOST_CHILDREN:
            return False
        self.add(pid, now_ns)
        if pid not in self._born:
            self._born[pid] = owner_id
            self._children[owner_id] += 1
        return True

    def discard(self, pid: Pid) -> None:
        """Remove a process that ended or is no longer watched."""
        if self._known_ns.pop(pid, None) is not None:
            self._pid_sum -= pid
        owner_id = self._born.pop(pid, None)
        if owner_id is not None:
            self._children[owner_id] -= 1

    def compare(self, process_count: int, pid_sum: int) -> None:
        """Compare with a pass: how many processes it visited, and the sum of their pids.

        A single pass may differ by exits that are reported a moment later; two consecutive passes do not differ by
        the same amount unless something was lost.
        """
        difference = process_count - len(self._known_ns), pid_sum - self._pid_sum
        self.in_doubt = difference == self._difference != (0, 0)
        self._difference = difference

    def missing(self, seen: Collection[Pid], now_ns: int) -> dict[Pid, Absence]:
        """The watched processes that a pass which reported every process (`seen`) did not visit."""
        for pid in seen:
            self.add(pid, now_ns)
        absent = [pid for pid in self._known_ns if pid not in seen]
        found = {pid: self._why(pid) for pid in absent[:_MOST_CHECKS]}
        for pid in found:
            # moved to the end, so that each is looked up in turn
            self._known_ns[pid] = self._known_ns.pop(pid)
        # the child was refused permanently, as one too many of its control group
        return {
            pid: why for pid, why in found.items() if why is Absence.GONE or pid not in self._born
        }

    def _why(self, pid: Pid) -> Absence:
        start_ns = procfs.start_ns(pid)
        # a later start: the pid was reused meanwhile
        is_there = start_ns is not None and start_ns <= self._known_ns[pid]
        return Absence.UNWATCHED if is_there else Absence.GONE
