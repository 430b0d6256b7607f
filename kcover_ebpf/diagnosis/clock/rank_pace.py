"""Encodes where ranks were in each pass, for a Lease: each host reports its ranks, a controller compares. Pure."""

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
"""Letters for the length of a wait: 1 ms, 1.4 ms, and so on up to three minutes; two letters for each doubling."""
_PARTS = re.compile(r"<(\d{1,4})>|(.)", re.ASCII | re.DOTALL)
_MOST_LETTERS = 2 * SLOTS
_PLACES = {place.value: place for place in Place}


@dataclass(frozen=True, slots=True)
class SeenWaits:
    """Recent waits of one rank."""

    waits: float
    """Share of the passes in which it waited, 0 to 1."""
    passes: int
    places: str
    """Its positions as written by `encoded`; the last letter belongs to `slot`."""
    slot: int


class Paces:
    """The waits of each rank on this host, counted periodically."""

    def __init__(self) -> None:
        self._known: Mapping[Pid, SeenWaits] = {}
        self._next_ns = 0

    def of(self, watch: StepWatch, now_ns: int, unix_offset_s: float) -> Mapping[Pid, SeenWaits]:
        """The waits of ranks that were observed for long enough. `unix_offset_s`: unix time minus boottime."""
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
    # a Lease contains fewer passes than are kept: finding the slots of all of them took most of the
    # time
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
    """One letter for each slot with a pass: the length of the rank's wait, or what it did instead.

    A number in angle brackets gives the distance in slots of the following letters from each other.
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
    """Slot to the decoded position; unknown letters are ignored."""
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
