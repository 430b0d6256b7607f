"""Stragglers: the rank that never waits while all others wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from kcover_ebpf.facts import Pid

_WINDOW = 40
_ENOUGH = 16
_BUSY_SHARE = 0.15
_APART = 0.25


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others wait for; `factor` is its step time over theirs, an estimate from shares of time."""

    pid: Pid
    factor: float
    own_wait_share: float
    others_wait_share: float


class WaitShares:
    """Share of healthy passes in which each rank was seen waiting for its peers."""

    def __init__(self) -> None:
        self._seen: dict[Pid, deque[bool]] = {}

    def observe(self, waiting: Mapping[Pid, bool]) -> None:
        """Take one pass over all living ranks."""
        for pid in self._seen.keys() - waiting.keys():
            del self._seen[pid]
        for pid, waits in waiting.items():
            self._seen.setdefault(pid, deque(maxlen=_WINDOW)).append(waits)

    def straggler(self) -> Straggler | None:
        """The one rank that the others wait for; None while too few passes were seen or nobody stands out."""
        if len(self._seen) < 2 or min(map(len, self._seen.values())) < _ENOUGH:
            return None
        shares = {pid: sum(seen) / len(seen) for pid, seen in self._seen.items()}
        slow = min(shares, key=lambda pid: shares[pid])
        others = [share for pid, share in shares.items() if pid != slow]
        lowest = min(others)
        if shares[slow] > _BUSY_SHARE or lowest - shares[slow] < _APART:
            return None
        mean = min(0.98, sum(others) / len(others))
        return Straggler(slow, (1 - shares[slow]) / (1 - mean), shares[slow], mean)
