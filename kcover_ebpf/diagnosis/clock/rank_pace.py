"""Where ranks were pass by pass, as a Lease carries it: each host says it, a controller compares. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.pass_slots import SLOT_S, slot_of
from kcover_ebpf.diagnosis.clock.step_watch import StepWatch
from kcover_ebpf.diagnosis.clock.stragglers import Pass, Place
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.stragglers import (
    FASTER,
    PACE_COMPARED_NS,
    PACE_PASSES,
    PACE_PERIOD_NS,
    PACE_WINDOW,
    SHORTEST_AGE_S,
    SLOTS,
)

_AGES = "0123456789abcdefghijklmnopqrstuvwxyz"
"""A wait of 1 ms, of 1.4 ms, and so on up to three minutes: two letters for each doubling."""
_PARTS = re.compile(r"<(\d{1,4})>|(.)", re.ASCII | re.DOTALL)
_MOST_LETTERS = 2 * SLOTS
_PLACES = {place.value: place for place in Place}


@dataclass(frozen=True, slots=True)
class SeenWaits:
    """How much one rank waited of late."""

    waits: float
    """Share of the passes."""
    passes: int
    places: str
    """As `encoded`; the last one is of `slot`."""
    slot: int


class Paces:
    """The waits of each rank on this host, counted anew from time to time."""

    def __init__(self) -> None:
        self._known: Mapping[Pid, SeenWaits] = {}
        self._next_ns = 0

    def of(self, watch: StepWatch, now_ns: int, unix_offset_s: float) -> Mapping[Pid, SeenWaits]:
        """Those of ranks that were seen for long enough; `unix_offset_s`: unix time less boottime."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + (
                PACE_COMPARED_NS if watch.compares(now_ns) else PACE_PERIOD_NS
            )
            self._known = _counted(watch.passes, unix_offset_s)
        return self._known


def _counted(passes: Sequence[Pass[Pid]], unix_offset_s: float) -> Mapping[Pid, SeenWaits]:
    if len(passes) < PACE_PASSES:
        return {}
    recent, last_s = list(passes)[-PACE_WINDOW:], passes[-1].at_s
    last_slot = slot_of(last_s + unix_offset_s)
    # a Lease says less than is kept: to find the slots of all passes took most of the time
    said = [one_pass for one_pass in passes if last_s - one_pass.at_s <= (SLOTS + FASTER) * SLOT_S]
    slots = [slot_of(one_pass.at_s + unix_offset_s) for one_pass in said]
    found = {}
    for pid in passes[-1].found:
        waits = sum(not isinstance(one_pass.found[pid], Place) for one_pass in recent)
        by_slot = {slot: one_pass.found[pid] for slot, one_pass in zip(slots, said, strict=True)}
        share = round(waits / len(recent), 3)
        found[pid] = SeenWaits(share, len(recent), encoded(by_slot, last_slot), last_slot)
    return found


def encoded(found: Mapping[int, float | Place], last_slot: int) -> str:
    """A letter for each slot with a pass up to the last one: for how long a rank had waited, or what it did instead.

    A number among the letters is how many slots each is after the one before it, from there on.
    """
    parts, gap, before = list[str](), 1, None
    for slot in range(last_slot - SLOTS + 1, last_slot + 1):
        if (where := found.get(slot)) is None:
            continue
        if before is not None and slot - before != gap:
            gap = slot - before
            parts.append(f"<{gap}>")
        parts.append(_letter(where))
        before = slot
    return "".join(parts)


def _letter(place: float | Place) -> str:
    if isinstance(place, Place):
        return place.value
    doubled = round(2 * math.log2(max(place, SHORTEST_AGE_S) / SHORTEST_AGE_S))
    return _AGES[min(doubled, len(_AGES) - 1)]


def decoded(places: str, last_slot: int) -> dict[int, float | Place]:
    """What `encoded` says, by slot; letters that are not known are left out."""
    letters, gap, offset = list[tuple[int, str]](), 1, 0
    for number, letter in _PARTS.findall(places[:_MOST_LETTERS]):
        if number:
            gap = int(number)
        else:
            offset += gap
            letters.append((offset, letter))
    found: dict[int, float | Place] = {}
    for at, letter in letters:
        slot = last_slot - offset + at
        if slot <= last_slot - SLOTS:
            continue
        if letter in _PLACES:
            found[slot] = _PLACES[letter]
        elif (doubled := _AGES.find(letter)) >= 0:
            found[slot] = SHORTEST_AGE_S * 2 ** (doubled / 2)
    return found
