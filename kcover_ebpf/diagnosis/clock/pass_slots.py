"""Times of passes: the same moments on every node, so that their findings can be compared. Pure.

A second has three slots, at irrational distances from those of other seconds. With even distances, a job whose steps
last as long as a pass, or an even part of it, would be found at the same place of its step for minutes.
"""

from __future__ import annotations

from math import floor

from kcover_ebpf.tunables.stragglers import FASTER, GOLDEN_RATIO, SLOT_SPREAD_S

SLOT_S = 1 / FASTER
"""Mean distance of two slots in seconds."""


def moment_s(slot: int) -> float:
    """Time of a slot in unix seconds."""
    second, part = divmod(slot, FASTER)
    begin_s, end_s = _begin_s(second), _begin_s(second + 1)
    return begin_s + part / FASTER * (end_s - begin_s)


def _begin_s(second: int) -> float:
    return second + SLOT_SPREAD_S * (second * GOLDEN_RATIO % 1.0)


def slot_of(at_s: float) -> int:
    """The slot that is nearest to a pass at this unix time."""
    about = floor(at_s * FASTER)
    return min(range(about - 2, about + 3), key=lambda slot: abs(moment_s(slot) - at_s))


def next_pause_s(now_s: float, period_s: float) -> float:
    """Seconds until the next slot to be used for this period. `now_s`: unix seconds."""
    stride = max(1, round(period_s / SLOT_S))
    slot = slot_of(now_s) + 1
    slot += -slot % stride
    return moment_s(slot) - now_s
