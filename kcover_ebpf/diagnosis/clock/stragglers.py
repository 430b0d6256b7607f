"""Stragglers: the rank that all others wait for, step after step. Pure (docs/decisions/0025).

A pass that finds all ranks but one waiting shows who is last, and for how long the others have waited for it. A rank
that is last in several steps is slow where chance does not explain that: neither that it is the same one, nor that they
wait for it longer than the job was ever seen to wait before.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.tunables.stragglers import (
    CHANCE,
    LATE_LEAST_S,
    LATE_SHARE,
    LATE_STEPS,
    LEARNED_S,
    OBSERVED_SHARE,
    OTHERS_PART,
    SUSPECT_S,
    WINDOWS_S,
)

Rank = TypeVar("Rank", bound=Hashable)


class Place(Enum):
    """What a rank does outside of its waits; the value is what a Lease carries, `text` is for people."""

    COMPUTES = "C"
    STORES = "S"
    SLEEPS = "Z"
    ON_DEVICE = "D"
    CHILDREN = "K"
    READS = "R"
    OTHER = "O"

    @property
    def text(self) -> str:
        """In a sentence that begins with the rank."""
        return _TEXTS[self]


_TEXTS = {
    Place.COMPUTES: "computes",
    Place.STORES: "is in calls to files",
    Place.SLEEPS: "sleeps",
    Place.ON_DEVICE: "is in its device's driver",
    Place.CHILDREN: "waits for a child",
    Place.READS: "reads from another program",
    Place.OTHER: "is in another call",
}


@dataclass(frozen=True, slots=True)
class Pass(Generic[Rank]):
    """Where one pass found the ranks; made by `seen`."""

    at_s: float
    lasts_s: float
    """The time that it stands for: since the pass before."""
    found: Mapping[Rank, float | Place]
    """Seconds for which a rank has waited for others, or what it does instead."""
    working: int
    """Ranks that do not wait."""
    last: Rank | None
    """The one rank that all others wait for; None where there is none, or more than one."""
    waited_s: float
    """For how long all ranks that wait have waited; 0 where none does."""


def seen(at_s: float, lasts_s: float, found: Mapping[Rank, float | Place]) -> Pass[Rank]:
    """One pass, on a clock that is the same for all ranks."""
    working = [rank for rank, where in found.items() if isinstance(where, Place)]
    waits_s = [where for where in found.values() if not isinstance(where, Place)]
    last = working[0] if len(working) == 1 and waits_s else None
    return Pass(at_s, lasts_s, found, len(working), last, min(waits_s, default=0.0))


@dataclass(frozen=True, slots=True)
class Straggler(Generic[Rank]):
    """A rank that all others wait for."""

    rank: Rank
    share: float
    """Of the time, in which all others wait for it alone."""
    steps: int
    """Seen steps in which it was last."""
    seconds: float
    """Over which that was counted."""
    place: Place
    """What it does while they wait, most of the time."""
    own_share: float
    """Of its time that it is there,"""
    others_share: float
    """and of theirs."""

    @property
    def factor(self) -> float:
        """Its step time over theirs, an estimate from shares of time."""
        return 1 / (1 - min(0.98, self.share))

    @property
    def text(self) -> str:
        """For people, without the name of the rank."""
        return (
            f"all others wait for it in {self.share:.0%} of the last {self.seconds:.0f} s, as the last of "
            f"{self.steps} steps: about {self.factor:.1f} times slower. It {self.place.text} then; that takes "
            f"{self.own_share:.0%} of its time and {self.others_share:.0%} of theirs"
        )


def straggler(
    passes: Sequence[Pass[Rank]], now_s: float, known: Rank | None = None
) -> Straggler[Rank] | None:
    """The slow rank by these passes, oldest first; None while there is none.

    `known`: one that was slow until now, which is for as long as the others wait for it, whatever chance may do.
    """
    found = (_in_window(passes, now_s - window_s, window_s, known) for window_s in WINDOWS_S)
    return next((slow for slow in found if slow is not None), None)


@dataclass(frozen=True, slots=True)
class Late(Generic[Rank]):
    """The rank that the others wait for longest, in some passes."""

    rank: Rank
    lasts_s: float
    """Time for which all others wait for it,"""
    count: int
    """and the passes that showed it."""
    waited_s: Sequence[float]
    """The longest wait that was seen in each step of which it was the last; seconds."""
    other_steps: int
    """Steps of which another rank was."""
    since_s: float
    """When it was last for the first time."""


def latest(passes: Iterable[Pass[Rank]]) -> Late[Rank] | None:
    """Who was last, and in how many steps; None where the others never waited for one rank alone."""
    late: dict[Rank, list[Pass[Rank]]] = defaultdict(list)
    for one_pass in passes:
        if one_pass.last is not None:
            late[one_pass.last].append(one_pass)
    if not late:
        return None
    slow = max(late, key=lambda rank: lasted_s(late[rank]))
    others = sum(len(_steps(found)) for rank, found in late.items() if rank != slow)
    return Late(
        rank=slow,
        lasts_s=lasted_s(late[slow]),
        count=len(late[slow]),
        waited_s=_steps(late[slow]),
        other_steps=others,
        since_s=late[slow][0].at_s,
    )


def _in_window(
    passes: Sequence[Pass[Rank]], since_s: float, window_s: float, known: Rank | None
) -> Straggler[Rank] | None:
    first = bisect_right(passes, since_s, key=lambda one_pass: one_pass.at_s)
    inside = passes[first:]
    observed_s, late = lasted_s(inside), latest(inside)
    if late is None or observed_s < OBSERVED_SHARE * window_s:
        return None
    # it may have become slow within the window
    since = [one_pass for one_pass in inside if one_pass.at_s >= late.since_s]
    count, others, slow_s = len(late.waited_s), late.other_steps, lasted_s(since)
    if late.lasts_s < LATE_SHARE * max(slow_s, SUSPECT_S) or count < LATE_STEPS:
        return None
    if others > OTHERS_PART * count or _turns_s(late.rank, since) > OTHERS_PART * late.lasts_s:
        return None
    if late.rank == known:
        return _described(late, since, slow_s)
    by_chance = _same_rank(count, others, len(inside[-1].found))
    if by_chance * _all_later(late, inside, passes[:first]) > CHANCE:
        return None
    return _described(late, since, slow_s)


def _turns_s(slow: Rank, passes: Iterable[Pass[Rank]]) -> float:
    """The time for which it waits while others work: a server and its workers do so in turn."""
    return lasted_s(
        one_pass
        for one_pass in passes
        if one_pass.working and not isinstance(one_pass.found[slow], Place)
    )


def lasted_s(passes: Iterable[Pass[Rank]]) -> float:
    """The time that these passes stand for, in seconds."""
    return sum(one_pass.lasts_s for one_pass in passes)


def _steps(late: Sequence[Pass[Rank]]) -> list[float]:
    found: list[float] = []
    seen_s = -math.inf
    for one_pass in late:
        if found and one_pass.waited_s >= one_pass.at_s - seen_s:
            # they have waited since before that pass
            found[-1] = max(found[-1], one_pass.waited_s)
        else:
            found.append(one_pass.waited_s)
        seen_s = one_pass.at_s
    return found


def _same_rank(count: int, other_count: int, world: int) -> float:
    """The chance that one of so many ranks, all of them alike, is the last in so many of these steps."""
    total, part = count + other_count, 1 / world
    tail = sum(
        math.comb(total, number) * part**number * (1 - part) ** (total - number)
        for number in range(count, total + 1)
    )
    return min(1.0, world * tail)


def _all_later(
    late: Late[Rank], inside: Sequence[Pass[Rank]], before: Sequence[Pass[Rank]]
) -> float:
    """The chance that all waits that are longer than those before lie in the window; 1 where they are few."""
    longest_s = max(
        (one_pass.waited_s for one_pass in before if one_pass.last is not None), default=0.0
    )
    longer = sum(seconds > max(LATE_LEAST_S, longest_s) for seconds in late.waited_s)
    if longer < LATE_STEPS or lasted_s(before) < LEARNED_S:
        return 1.0
    # passes that follow each other fast see more waits, or one and the same several times
    chances = len(inside) * len(late.waited_s) / late.count
    return float((chances / (chances + len(before))) ** longer)


def _described(late: Late[Rank], passes: Sequence[Pass[Rank]], slow_s: float) -> Straggler[Rank]:
    slow = late.rank
    then = [one_pass.found[slow] for one_pass in passes if one_pass.last == slow]
    place = Counter(where for where in then if isinstance(where, Place)).most_common(1)[0][0]
    at_place: Counter[bool] = Counter()
    found: Counter[bool] = Counter()
    for one_pass in passes:
        for rank, where in one_pass.found.items():
            at_place[rank == slow] += where is place
            found[rank == slow] += 1
    own, others = (at_place[is_own] / found[is_own] for is_own in (True, False))
    share, count = late.lasts_s / slow_s, len(late.waited_s)
    return Straggler(slow, share, count, slow_s, place, own, others)
