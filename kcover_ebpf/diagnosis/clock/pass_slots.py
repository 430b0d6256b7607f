"""When passes are made: at moments that are the same on every node, so that what they find can be compared. Pure.

A second has three slots, at irrational distances from those of other seconds: a job whose steps last as long as a pass,
or an even part of it, would be found at the same place of its step for minutes.
"""

from __future__ import annotations

from math import floor

from kcover_ebpf.tunables.stragglers import FASTER, GOLDEN_RATIO, SLOT_SPREAD_S

SLOT_S = 1 / FASTER
"""Mean distance of two slots."""


def moment_s(slot: int) -> float:
    """The moment of a slot; unix seconds."""
    second, part = divmod(slot, FASTER)
    begin_s, end_s = _begin_s(second), _begin_s(second + 1)
    return begin_s + part / FASTER * (end_s - begin_s)


def _begin_s(second: int) -> float:
    return second + SLOT_SPREAD_S * (second * GOLDEN_RATIO % 1.0)


def slot_of(at_s: float) -> int:
    """The slot that a pass at this unix time was made for: the nearest one."""
    about = floor(at_s * FASTER)
    return min(range(about - 2, about + 3), key=lambda slot: abs(moment_s(slot) - at_s))


def next_pause_s(now_s: float, period_s: float) -> float:
    """Seconds until the next slot, of those that are so far apart; `now_s`: unix seconds."""
    stride = max(1, round(period_s / SLOT_S))
    slot = slot_of(now_s) + 1
    slot += -slot % stride
    return moment_s(slot) - now_s
