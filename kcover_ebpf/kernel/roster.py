"""Which processes every pass should visit, and which of them are gone although their exit was never announced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum

from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.owners import SHARES

_MOST_CHECKS = 32
"""Questions to /proc in one pass (20 us each): who forks without end must not make the passes late."""
_MOST_CHILDREN = 2 * SHARES["processes"]
"""Of a pod. The kernel half has no room for half of them: their ends are found only by those questions, so that without
a bound whoever forks without end has us remember all that ended."""


class Absence(Enum):
    """Why a watched process is missing in the passes."""

    GONE = "gone"
    """It ended; its record was lost, or exits are not observed here."""
    UNWATCHED = "unwatched"
    """It lives, and the kernel half has no entry for it: the table was full."""


class WatchedProcesses:
    """The processes that are watched, as user space knows them."""

    def __init__(self) -> None:
        self._known_ns: dict[Pid, int] = {}
        self._born: dict[Pid, int] = {}
        """Children that watched processes made, and whose they are."""
        self._children: Counter[int] = Counter()
        """How many those are, by whose."""
        self._pid_sum = 0
        self._difference = 0, 0
        self.in_doubt = False
        """The passes and this roster disagree: only one that reports every process shows about whom."""

    def __contains__(self, pid: Pid) -> bool:
        """True while it is watched."""
        return pid in self._known_ns

    def add(self, pid: Pid, now_ns: int) -> None:
        """A process that lives at boottime `now_ns` is watched from now on."""
        if pid not in self._known_ns:
            self._known_ns[pid] = now_ns
            self._pid_sum += pid

    def add_child(self, pid: Pid, now_ns: int, owner_id: int = 0) -> bool:
        """A watched process made it; the kernel half alone decides whether there is room for it.

        `owner_id`: of the pod, 0 for none. False where that has so many that one more is not kept here either.
        """
        if owner_id and pid not in self._known_ns and self._children[owner_id] >= _MOST_CHILDREN:
            return False
        self.add(pid, now_ns)
        if pid not in self._born:
            self._born[pid] = owner_id
            self._children[owner_id] += 1
        return True

    def discard(self, pid: Pid) -> None:
        """It is not watched any more, or ended."""
        if self._known_ns.pop(pid, None) is not None:
            self._pid_sum -= pid
        owner_id = self._born.pop(pid, None)
        if owner_id is not None:
            self._children[owner_id] -= 1

    def compare(self, process_count: int, pid_sum: int) -> None:
        """Take how many processes a pass visited, and the sum of their numbers.

        One pass may differ by what is announced a moment later; two in a row do not differ by the same.
        """
        difference = process_count - len(self._known_ns), pid_sum - self._pid_sum
        self.in_doubt = difference == self._difference != (0, 0)
        self._difference = difference

    def missing(self, seen: Collection[Pid], now_ns: int) -> dict[Pid, Absence]:
        """After a pass that reported every process, `seen`: those that it did not visit."""
        for pid in seen:
            self.add(pid, now_ns)
        absent = [pid for pid in self._known_ns if pid not in seen]
        found = {pid: self._why(pid) for pid in absent[:_MOST_CHECKS]}
        for pid in found:
            # to the end, so that each is asked about in its turn
            self._known_ns[pid] = self._known_ns.pop(pid)
        # a child was refused for good, as one too many of its control group
        return {
            pid: why for pid, why in found.items() if why is Absence.GONE or pid not in self._born
        }

    def _why(self, pid: Pid) -> Absence:
        start_ns = procfs.start_ns(pid)
        # a later start: the number was given to another process meanwhile
        is_there = start_ns is not None and start_ns <= self._known_ns[pid]
        return Absence.UNWATCHED if is_there else Absence.GONE
