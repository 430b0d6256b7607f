"""When ranks that were stopped or frozen went on. Pure.

Whoever stops a whole job goes from rank to rank, and resumes it so. So each rank that goes on says that those which are
still stopped, on this host or another, may be next: how long they have been stopped counts anew from then.
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
        """Take the ranks as of one pass; True if one went on since the last pass while others here are still held."""
        held = frozenset(pid for pid, rank in ranks.items() if rank.is_held)
        is_resumed = any(pid in ranks and pid not in held for pid in self._held)
        self._held = held
        if is_resumed:
            self._latest_ns = now_ns
        return is_resumed and bool(held)

    def age_s(self, now_ns: int) -> float | None:
        """Seconds since one went on last; None if none ever did."""
        return None if self._latest_ns is None else (now_ns - self._latest_ns) / NS
