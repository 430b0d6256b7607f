"""Times at which stopped or frozen ranks were resumed. Pure.

A tool that stops or resumes a whole job does so rank by rank. Each resumed rank shows that those still stopped, on this
host or another, may be next: the age of their stop counts again from then.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.ids import NS, Pid


class Resumptions:
    """Resumptions of the ranks of one job on this host."""

    def __init__(self) -> None:
        self._held: frozenset[Pid] = frozenset()
        self._latest_ns: int | None = None

    def observe(self, ranks: Mapping[Pid, ProcessHistory], now_ns: int) -> bool:
        """Take the ranks of one pass; True if one was resumed since the last while others are still stopped."""
        held = frozenset(pid for pid, rank in ranks.items() if rank.is_held)
        is_resumed = any(pid in ranks and pid not in held for pid in self._held)
        self._held = held
        if is_resumed:
            self._latest_ns = now_ns
        return is_resumed and bool(held)

    def age_s(self, now_ns: int) -> float | None:
        """Seconds since the last resumption; None if there was none."""
        return None if self._latest_ns is None else (now_ns - self._latest_ns) / NS
