"""Sets of rank numbers as short texts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

_MOST_RUNS = 8
"""The most runs of consecutive numbers in a text; more are not readable."""


def runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(ranks)):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def ranks_text(ranks: Iterable[int | None], most_runs: int | None = None) -> str:
    """Such as "0-2,5", or "-" if empty; with `most_runs` the rest is only counted.

    A negative number is the pid of a process without a rank: "pid 4711".
    """
    numbers = [rank for rank in ranks if rank is not None]
    nameless = [f"pid {-number}" for number in sorted(numbers, reverse=True) if number < 0]
    found = runs(number for number in numbers if number >= 0)
    if nameless:
        known = [number for number in numbers if number >= 0]
        named = ranks_text(known, most_runs) if known else ""
        others = nameless[:2] + ([f"{len(nameless) - 2} more"] if len(nameless) > 2 else [])
        return ",".join(filter(None, [named, *others]))
    if not found:
        return "-"
    shown = found if most_runs is None else found[:most_runs]
    text = ",".join(map(_run_text, shown))
    rest = sum(last - first + 1 for first, last in found[len(shown) :])
    return f"{text} and {rest} more" if rest else text


def _run_text(run: tuple[int, int]) -> str:
    first, last = run
    if last - first > 1:
        return f"{first}-{last}"
    return f"{first}" if first == last else f"{first},{last}"


def in_and_out(members: Collection[int], everyone: Collection[int]) -> str:
    """The ranks inside, and those outside if they are fewer: "0-6 (not 7)"."""
    out = set(everyone) - set(members)
    text = ranks_text(members, _MOST_RUNS)
    if not out:
        return f"all {len(members)}" if len(members) > 1 else text
    if len(out) < len(members):
        return f"{text} (not {ranks_text(out, _MOST_RUNS)})"
    return text
