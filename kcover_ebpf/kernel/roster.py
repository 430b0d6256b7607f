"""Which processes every pass should see, and which of them are gone although their exit was never announced."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Pid

_ABSENT_PASSES = 2
"""One pass may miss a process whose exit is announced a moment later; two in a row may not."""


class Absence(Enum):
    """Why a watched process is missing in the passes."""

    GONE = "gone"
    """It ended; its record was lost, or exits are not observed here."""
    UNWATCHED = "unwatched"
    """It lives, and the kernel half has no entry for it: the table was full."""


class Roster:
    """The processes that are watched, as user space knows them."""

    def __init__(self) -> None:
        self._known_ns: dict[Pid, int] = {}
        self._absent: dict[Pid, int] = {}

    def __contains__(self, pid: Pid) -> bool:
        """True while it is watched."""
        return pid in self._known_ns

    def add(self, pid: Pid, now_ns: int) -> None:
        """A process that lives at boottime `now_ns` is watched from now on."""
        self._known_ns.setdefault(pid, now_ns)

    def discard(self, pid: Pid) -> None:
        """It is not watched any more, or ended."""
        self._known_ns.pop(pid, None)
        self._absent.pop(pid, None)

    def missing(self, seen: Collection[Pid], now_ns: int) -> dict[Pid, Absence]:
        """After a whole pass that saw `seen`: those that were in neither this one nor the one before."""
        for pid in seen:
            self.add(pid, now_ns)
        absent = self._known_ns.keys() - seen
        self._absent = {pid: self._absent.get(pid, 0) + 1 for pid in absent}
        long = [pid for pid, count in self._absent.items() if count >= _ABSENT_PASSES]
        return {pid: self._why(pid) for pid in long}

    def _why(self, pid: Pid) -> Absence:
        start_ns = procfs.start_ns(pid)
        # a later start: the number was given to another process meanwhile
        is_there = start_ns is not None and start_ns <= self._known_ns[pid]
        return Absence.UNWATCHED if is_there else Absence.GONE
