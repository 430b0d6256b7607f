"""How much a rank waits for the others, where these are on other hosts: each host says it, a controller compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.stragglers import Waiting, WaitShares, chance, repeated_share
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.diagnosis import PACE_PERIOD_NS, PACE_WINDOW


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
                pid: waits
                for pid, waiting in shares.seen.items()
                if (waits := _counted(waiting, windows)) is not None
            }
        return self._known


def _counted(waiting: Waiting, windows: Sequence[int]) -> CountedWaits | None:
    # in a short window shows what began just now, and in a longer one more surely how much it is
    counted = [
        CountedWaits(
            round(waiting.count(window) / window, 3),
            round(repeated_share(waiting.last(window)), 3),
            window,
        )
        for window in windows
        if window <= len(waiting) and (window <= PACE_WINDOW or window == windows[0])
    ]
    return max(counted, key=lambda waits: waits.repeated - chance(waits.passes), default=None)
