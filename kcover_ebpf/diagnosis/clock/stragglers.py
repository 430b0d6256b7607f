"""Stragglers: the rank that never waits while all others wait for it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import islice

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.diagnosis import (
    STRAGGLER_APART,
    STRAGGLER_CHANCE,
    STRAGGLER_COMPARED_APART,
    STRAGGLER_COMPARED_NS,
    STRAGGLER_COMPARED_PASSES,
    STRAGGLER_COMPARED_PERIOD_NS,
    STRAGGLER_LEAST_KEPT,
    STRAGGLER_LEAST_NS,
    STRAGGLER_WAIT_SHARE,
    STRAGGLER_WINDOWS,
    THROTTLED_OTHERS_SHARE,
)

_Waits = Sequence[int | None]
_COUNTED = STRAGGLER_COMPARED_PASSES, *STRAGGLER_WINDOWS


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
        self.counts = dict.fromkeys(_COUNTED, 0)
        """Passes in which it waited, by the length of the window; counted on, for all are asked for every pass."""

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: int | None) -> None:
        """Take one pass."""
        waits, counts, seen = self._waits, self.counts, len(self._waits)
        for window in _COUNTED:
            if seen >= window and waits[seen - window] is not None:
                counts[window] -= 1
            if wait is not None:
                counts[window] += 1
        waits.append(wait)

    def count(self, window: int) -> int:
        """In how many of the last passes it waited."""
        known = self.counts.get(window)
        return sum(number is not None for number in self.last(window)) if known is None else known

    def last(self, window: int) -> _Waits:
        """The last passes, newest first."""
        return list(islice(reversed(self._waits), window))


class WaitShares:
    """Share of healthy passes in which each rank was seen waiting for its peers."""

    def __init__(self) -> None:
        self._seen: dict[Pid, Waiting] = {}
        self._times_ns: deque[int] = deque(maxlen=STRAGGLER_WINDOWS[-1])
        self._compares_until_ns = self._rests_until_ns = 0
        self._elsewhere = False

    def observe(
        self, waiting: Mapping[Pid, int | None], now_ns: int, *, elsewhere: bool = False
    ) -> None:
        """Take one pass over all living ranks: what distinguishes a wait of each from its next, None if it works.

        `elsewhere`: others are on other hosts, and those here may all wait for one of them.
        """
        self._elsewhere = elsewhere
        self._times_ns.append(now_ns)
        for pid in self._seen.keys() - waiting.keys():
            del self._seen[pid]
        for pid, wait in waiting.items():
            seen_waiting = self._seen.get(pid)
            if seen_waiting is None:
                seen_waiting = self._seen[pid] = Waiting()
            seen_waiting.add(wait)

        if now_ns >= self._rests_until_ns and self._may_lag(elsewhere=elsewhere):
            self._compares_until_ns = now_ns + STRAGGLER_COMPARED_NS
            self._rests_until_ns = now_ns + STRAGGLER_COMPARED_PERIOD_NS

    def compares(self, now_ns: int) -> bool:
        """True while the ranks are to be sampled more often, to confirm that one of them lags."""
        return now_ns < self._compares_until_ns

    def _may_lag(self, *, elsewhere: bool) -> bool:
        """True if in the last few passes one rank hardly waited, and the others did, taken together."""
        window = STRAGGLER_COMPARED_PASSES
        if not self._seen or min(map(len, self._seen.values())) < window:
            return False
        counts = [waiting.counts[window] for waiting in self._seen.values()]
        if elsewhere and self._waits_more():
            return True
        if len(counts) < 2:
            return False
        own, others = min(counts), (sum(counts) - min(counts)) / (len(counts) - 1)
        return (
            own <= STRAGGLER_WAIT_SHARE * window
            and others - own >= STRAGGLER_COMPARED_APART * window
        )

    def _waits_more(self) -> bool:
        """True if all ranks here, taken together, waited in more of the last few passes than they did before."""
        recent, longest = STRAGGLER_COMPARED_PASSES, STRAGGLER_WINDOWS[-1]
        ranks = self._seen.values()
        before = sum(map(len, ranks)) - recent * len(ranks)
        if before < STRAGGLER_WINDOWS[0] * len(ranks):
            return False
        now = sum(rank.counts[recent] for rank in ranks)
        share = (sum(rank.counts[longest] for rank in ranks) - now) / before
        return now / (recent * len(ranks)) - share >= STRAGGLER_COMPARED_APART

    @property
    def seen(self) -> Mapping[Pid, Waiting]:
        """The waits of each rank."""
        return self._seen

    @property
    def windows(self) -> list[int]:
        """Passes over which shares are counted, shortest first; there may be fewer passes."""
        shortest = self._shortest_window()
        return [shortest, *(window for window in STRAGGLER_WINDOWS if window > shortest)]

    def straggler(self) -> Straggler | None:
        """The one rank that the others wait for; None while too few passes were seen or no rank is apart.

        Nor while ranks are elsewhere: who waits differently here, as a server does, may keep no other waiting.
        """
        if len(self._seen) < 2 or self._elsewhere:
            return None
        seen = min(map(len, self._seen.values()))
        found = (self._is_apart(window) for window in self.windows if window <= seen)
        return next((straggler for straggler in found if straggler is not None), None)

    def others_wait(self, pid: Pid) -> bool:
        """True if in the last few passes all other ranks, taken together, waited for a good part of the time."""
        window = STRAGGLER_COMPARED_PASSES
        others = [waiting for other, waiting in self._seen.items() if other != pid]
        if not others or min(map(len, others)) < window:
            return False
        waited = sum(waiting.counts[window] for waiting in others)
        return waited >= THROTTLED_OTHERS_SHARE * window * len(others)

    def _shortest_window(self) -> int:
        """Passes that last long enough, more than there are if none do: fast ones see one and the same step."""
        times_ns, count = self._times_ns, STRAGGLER_WINDOWS[0]
        while count <= len(times_ns) and times_ns[-1] - times_ns[-count] < STRAGGLER_LEAST_NS:
            count += 1
        return count

    def _is_apart(self, window: int) -> Straggler | None:
        counts = {pid: waiting.count(window) for pid, waiting in self._seen.items()}
        slow = min(counts, key=counts.__getitem__)
        own = counts.pop(slow) / window
        apart = max(STRAGGLER_APART, chance(window))
        # without its longest wait a rank waits no larger share: nearly every pass ends here
        if own > STRAGGLER_WAIT_SHARE or min(counts.values()) / window - own < apart:
            return None
        others = [repeated_share(self._seen[pid].last(window)) for pid in counts]
        if min(others) - own < apart:
            return None
        mean = min(0.98, sum(others) / len(others))
        return Straggler(slow, (1 - own) / (1 - mean), own, mean)


def chance(passes: float) -> float:
    """By how much two shares of so many passes may differ by chance."""
    return STRAGGLER_CHANCE / math.sqrt(passes)


def repeated_share(waits: _Waits) -> float:
    """Share of waiting without the longest wait: one long phase of one rank is no slow rank."""
    longest = max(Counter(wait for wait in waits if wait is not None).values(), default=0)
    kept = len(waits) - longest
    if kept < STRAGGLER_LEAST_KEPT * len(waits):
        return 0.0
    return (len(waits) - waits.count(None) - longest) / kept
