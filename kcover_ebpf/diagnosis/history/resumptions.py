"""When ranks that were stopped or frozen were resumed. Pure.

Whoever stops a whole job goes from rank to rank, and resumes it so. Each rank that is resumed says that those which
are still stopped, on this host or another, may be next: how long they have been stopped counts anew from then.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.ids import NS, Pid


class Resumptions:
    """Of the ranks of one job on this host."""

    def __init__(self) -> None:
        self._held: frozenset[Pid] = frozenset()
        self._latest_ns: int | None = None

    def observe(self, ranks: Mapping[Pid, ProcessHistory], now_ns: int) -> bool:
        """Take the ranks as of one pass; True if one was resumed since the last pass while others here are held."""
        held = frozenset(pid for pid, rank in ranks.items() if rank.is_held)
        is_resumed = any(pid in ranks and pid not in held for pid in self._held)
        self._held = held
        if is_resumed:
            self._latest_ns = now_ns
        return is_resumed and bool(held)

    def age_s(self, now_ns: int) -> float | None:
        """Seconds since one was resumed last; None if none ever was."""
        return None if self._latest_ns is None else (now_ns - self._latest_ns) / NS
