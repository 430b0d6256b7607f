"""Stragglers: the rank that all others wait for, step after step. Pure (docs/decisions/0025).

A pass that finds all ranks but one waiting shows which rank is last, and how long the others have waited for it.
Consecutive passes of one wait are one step. The rank that is last most is slow if all of this is true in a window:

- The others wait for it for at least `LATE_SHARE` of the time, in at least `LATE_STEPS` steps.
- Few steps have another last rank, and it hardly ever waits while others work (as a server and its workers do in turn).
- Chance does not explain that the same rank is last in all these steps, and that the waits are longer than before.

Several windows are tried, because steps last from tenths of a second to a minute.
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
    """What a rank does while it does not wait. The value is what a Lease contains."""

    COMPUTES = "C"
    STORES = "S"
    SLEEPS = "Z"
    ON_DEVICE = "D"
    CHILDREN = "K"
    READS = "R"
    OTHER = "O"

    @property
    def text(self) -> str:
        """The verb phrase of a sentence whose subject is the rank."""
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
    """Positions of the ranks in one pass; created by `seen`."""

    at_s: float
    lasts_s: float
    """Seconds that the pass stands for: the time since the pass before, with a limit."""
    found: Mapping[Rank, float | Place]
    """Seconds for which a rank has waited for others, or what it does instead."""
    working: int
    """Number of ranks that do not wait."""
    last: Rank | None
    """The one rank that all others wait for; None if there is none, or more than one."""
    waited_s: float
    """Seconds for which all waiting ranks have waited, the shortest of their waits; 0 if none waits."""


def seen(at_s: float, lasts_s: float, found: Mapping[Rank, float | Place]) -> Pass[Rank]:
    """One pass; `at_s` is on a clock that is the same for all ranks."""
    working = [rank for rank, where in found.items() if isinstance(where, Place)]
    waits_s = [where for where in found.values() if not isinstance(where, Place)]
    last = working[0] if len(working) == 1 and waits_s else None
    return Pass(at_s, lasts_s, found, len(working), last, min(waits_s, default=0.0))


@dataclass(frozen=True, slots=True)
class Straggler(Generic[Rank]):
    """A rank that all others wait for, with the numbers that show it."""

    rank: Rank
    share: float
    """Share of the time in which all others wait for it alone, 0 to 1."""
    steps: int
    """Observed steps in which it was last."""
    seconds: float
    """Seconds over which share and steps were counted."""
    place: Place
    """What it does most often while they wait."""
    own_share: float
    """Share of its own time in which it does that."""
    others_share: float
    """Share of the other ranks' time in which they do that."""

    @property
    def factor(self) -> float:
        """Estimated ratio of its step time to that of the others, from shares of time."""
        return 1 / (1 - min(0.98, self.share))

    @property
    def text(self) -> str:
        """Evidence text, without the name of the rank."""
        return (
            f"all others wait for it in {self.share:.0%} of the last {self.seconds:.0f} s, as the last of "
            f"{self.steps} steps: about {self.factor:.1f} times slower. It {self.place.text} then, which takes "
            f"{self.own_share:.0%} of its time and {self.others_share:.0%} of theirs"
        )


def straggler(
    passes: Sequence[Pass[Rank]], now_s: float, known: Rank | None = None
) -> Straggler[Rank] | None:
    """The slow rank in these passes, oldest first; None if there is none.

    `known`: the rank that was slow until now. It stays slow while the others wait for it, without a test for chance.
    """
    found = (_in_window(passes, now_s - window_s, window_s, known) for window_s in WINDOWS_S)
    return next((slow for slow in found if slow is not None), None)


@dataclass(frozen=True, slots=True)
class Late(Generic[Rank]):
    """The rank that the others wait for longest, in some passes."""

    rank: Rank
    lasts_s: float
    """Seconds for which all others wait for it."""
    count: int
    """Number of passes that showed this."""
    waited_s: Sequence[float]
    """Longest observed wait of the others, in seconds, for each step in which it was last."""
    other_steps: int
    """Number of steps in which another rank was last."""
    since_s: float
    """Time of the first pass in which it was last."""


def latest(passes: Iterable[Pass[Rank]]) -> Late[Rank] | None:
    """The rank that is last for longest, with its steps; None if the others never waited for one rank alone."""
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
    """Seconds for which it waits while others work: a server and its workers do so in turn."""
    return lasted_s(
        one_pass
        for one_pass in passes
        if one_pass.working and not isinstance(one_pass.found[slow], Place)
    )


def lasted_s(passes: Iterable[Pass[Rank]]) -> float:
    """Seconds that these passes stand for."""
    return sum(one_pass.lasts_s for one_pass in passes)


def _steps(late: Sequence[Pass[Rank]]) -> list[float]:
    found: list[float] = []
    seen_s = -math.inf
    for one_pass in late:
        if found and one_pass.waited_s >= one_pass.at_s - seen_s:
            # the same wait as in the pass before
            found[-1] = max(found[-1], one_pass.waited_s)
        else:
            found.append(one_pass.waited_s)
        seen_s = one_pass.at_s
    return found


def _same_rank(count: int, other_count: int, world: int) -> float:
    """Probability that one of `world` equal ranks is last in at least `count` of these steps."""
    total, part = count + other_count, 1 / world
    tail = sum(
        math.comb(total, number) * part**number * (1 - part) ** (total - number)
        for number in range(count, total + 1)
    )
    return min(1.0, world * tail)


def _all_later(
    late: Late[Rank], inside: Sequence[Pass[Rank]], before: Sequence[Pass[Rank]]
) -> float:
    """Probability that all waits longer than any before lie in the window by chance; 1 if there are too few of them."""
    longest_s = max(
        (one_pass.waited_s for one_pass in before if one_pass.last is not None), default=0.0
    )
    longer = sum(seconds > max(LATE_LEAST_S, longest_s) for seconds in late.waited_s)
    if longer < LATE_STEPS or lasted_s(before) < LEARNED_S:
        return 1.0
    # frequent passes see more waits, or one and the same wait several times
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
