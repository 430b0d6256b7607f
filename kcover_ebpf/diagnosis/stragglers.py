"""Stragglers: the rank that never waits while all others wait for it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.diagnosis import (
    STRAGGLER_APART,
    STRAGGLER_CHANCE,
    STRAGGLER_LEAST_KEPT,
    STRAGGLER_WAIT_SHARE,
    STRAGGLER_WINDOWS,
)

_Waits = Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others wait for; `factor` is its step time over theirs, an estimate from shares of time."""

    pid: Pid
    factor: float
    own_wait_share: float
    others_wait_share: float


class Waiting:
    """The waits of one rank, pass by pass, and in how many of the last passes of each window it waited."""

    __slots__ = ("_waits", "counts")

    def __init__(self) -> None:
        self._waits: deque[int | None] = deque(maxlen=STRAGGLER_WINDOWS[-1])
        self.counts = dict.fromkeys(STRAGGLER_WINDOWS, 0)
        """Passes in which it waited, by the length of the window; counted on, for all are asked for every pass."""

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: int | None) -> None:
        """Take one pass."""
        waits, counts, seen = self._waits, self.counts, len(self._waits)
        for window in STRAGGLER_WINDOWS:
            if seen >= window and waits[seen - window] is not None:
                counts[window] -= 1
            if wait is not None:
                counts[window] += 1
        waits.append(wait)

    def last(self, window: int) -> _Waits:
        """The last passes, newest first."""
        return list(islice(reversed(self._waits), window))


class WaitShares:
    """Share of healthy passes in which each rank was seen waiting for its peers."""

    def __init__(self) -> None:
        self._seen: dict[Pid, Waiting] = {}

    def observe(self, waiting: Mapping[Pid, int | None]) -> None:
        """Take one pass over all living ranks: what distinguishes a wait of each from its next, None if it works."""
        for pid in self._seen.keys() - waiting.keys():
            del self._seen[pid]
        for pid, wait in waiting.items():
            seen = self._seen.get(pid)
            if seen is None:
                seen = self._seen[pid] = Waiting()
            seen.add(wait)

    def straggler(self) -> Straggler | None:
        """The one rank that the others wait for; None while too few passes were seen or no rank is apart."""
        if len(self._seen) < 2:
            return None
        seen = min(map(len, self._seen.values()))
        windows = (window for window in STRAGGLER_WINDOWS if window <= seen)
        return next((found for each in windows if (found := self._is_apart(each))), None)

    def _is_apart(self, window: int) -> Straggler | None:
        counts = {pid: waiting.counts[window] for pid, waiting in self._seen.items()}
        slow = min(counts, key=counts.__getitem__)
        own = counts.pop(slow) / window
        apart = max(STRAGGLER_APART, STRAGGLER_CHANCE / math.sqrt(window))
        # without its longest wait a rank waits no larger share: nearly every pass ends here
        if own > STRAGGLER_WAIT_SHARE or min(counts.values()) / window - own < apart:
            return None
        others = [_repeated_share(self._seen[pid].last(window)) for pid in counts]
        if min(others) - own < apart:
            return None
        mean = min(0.98, sum(others) / len(others))
        return Straggler(slow, (1 - own) / (1 - mean), own, mean)


def _repeated_share(waits: _Waits) -> float:
    """Share of waiting without the longest wait: one long phase of one rank is no slow rank."""
    longest = max(Counter(wait for wait in waits if wait is not None).values(), default=0)
    kept = len(waits) - longest
    if kept < STRAGGLER_LEAST_KEPT * len(waits):
        return 0.0
    return (len(waits) - waits.count(None) - longest) / kept
