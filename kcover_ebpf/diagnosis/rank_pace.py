"""How much a rank waits for the others, where these are on other hosts: each host says it, a controller compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kcover_ebpf.diagnosis.stragglers import Waiting, WaitShares, chance, repeated_share
from kcover_ebpf.diagnosis.verdict import Cause
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.diagnosis import PACE_PERIOD_NS, PACE_WINDOW


@dataclass(frozen=True, slots=True)
class RankPace:
    """The share of its time that one rank waited of late, seen pass by pass."""

    pid: int
    waits: float
    repeated: float
    """The same without its longest wait: one long phase of one rank is no slow rank."""
    passes: int
    """That the shares were counted over."""
    rank: int | None = None
    pod_uid: str = ""
    cause: Cause | None = None
    """What slows it, as far as that is seen; None where nothing is."""


@dataclass(frozen=True, slots=True)
class CountedWaits:
    """Both shares over one window."""

    waits: float
    repeated: float
    passes: int


class Paces:
    """The waits of each rank on this host, counted anew from time to time."""

    def __init__(self) -> None:
        self._known: Mapping[Pid, CountedWaits] = {}
        self._next_ns = 0

    def of(self, shares: WaitShares, now_ns: int) -> Mapping[Pid, CountedWaits]:
        """Those of ranks that were seen for long enough."""
        if now_ns >= self._next_ns:
            self._next_ns, windows = now_ns + PACE_PERIOD_NS, shares.windows
            self._known = {
                pid: found
                for pid, waiting in shares.seen.items()
                if (found := _counted(waiting, windows)) is not None
            }
        return self._known


def _counted(waiting: Waiting, windows: Sequence[int]) -> CountedWaits | None:
    # in a short window shows what began just now, and in a longer one more surely how much it is
    counted = [
        CountedWaits(
            round(waiting.count(each) / each, 3),
            round(repeated_share(waiting.last(each)), 3),
            each,
        )
        for each in windows
        if each <= len(waiting) and (each <= PACE_WINDOW or each == windows[0])
    ]
    return max(counted, key=lambda each: each.repeated - chance(each.passes), default=None)
