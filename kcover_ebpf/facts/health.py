"""Result of an inspection of a node, or of a part of it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Result(Enum):
    """Best first: a result is the worst of its parts.

    Unknown is worse than pass, because what was not observed may be broken; it is better than warn,
    because a warning was observed.
    """

    PASS = "pass"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"


SEVERITY = tuple(Result)


def worst(results: Iterable[Result]) -> Result:
    """fail, else warn, else unknown, else pass; unknown for none."""
    return max(results, key=SEVERITY.index, default=Result.UNKNOWN)
