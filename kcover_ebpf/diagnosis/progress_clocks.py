"""Bytes as a clock of progress: of whatever carries the data of a job. Pure.

A job needs one clock that moves while it is healthy and stands while it hangs. Which one that is depends on the
job: TCP between its ranks, RDMA ports, the code that its lead threads are found in. All of them
report to `Pace.progress`, and the cadence is learned from whichever moves.
"""

from __future__ import annotations

from dataclasses import dataclass

_TYPICAL_SHARE = 0.1


@dataclass(slots=True)
class ByteClock:
    """The bytes that one process moves over one kind of path."""

    floor_bytes: int
    """Fewer in one pass are never more than heartbeats."""
    moved_ns: int = 0
    """Boottime of the last pass that moved more than heartbeats; 0 before the first."""
    _typical_bytes: float = 0.0

    def observe(self, moved_bytes: int, now_ns: int) -> bool:
        """Take the bytes of one pass; True if they are more than heartbeats."""
        if moved_bytes < max(self.floor_bytes, _TYPICAL_SHARE * self._typical_bytes):
            return False
        # a slow average over the passes that carried payload: a heartbeat alone never becomes typical
        weight = 0.1 if self._typical_bytes else 1.0
        self._typical_bytes += weight * (moved_bytes - self._typical_bytes)
        self.moved_ns = now_ns
        return True
