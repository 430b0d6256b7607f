"""How often something that a tenant made was over its bound, for the metrics of this process. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping

_LOCK = threading.Lock()
_MOST_ADDED = 1 << 20
_COUNTS = dict.fromkeys(
    ("pod", "pods", "policies", "incident", "incidents", "descriptors", "mappings", "file"), 0
)


def count(what: str) -> None:
    """An object, process or file was over its bound, and is not kept or not whole.

    `what`: `pod` and `incident` (one that is too large), `pods`, `policies` and `incidents` (of a namespace),
    `descriptors` and `mappings` (of a process), `file` (under /proc). Raises `KeyError` for any other word.
    """
    with _LOCK:
        _COUNTS[what] += 1


def drained() -> Mapping[str, int]:
    """What was counted since the last call, for a process that is asked and serves no metrics."""
    with _LOCK:
        found = {what: number for what, number in _COUNTS.items() if number}
        _COUNTS.update(dict.fromkeys(found, 0))
    return found


def add(found: object) -> None:
    """What another process has drained; it may have been taken over: whatever is no such count is passed over."""
    if not isinstance(found, dict):
        return
    with _LOCK:
        for what, number in found.items():
            if what in _COUNTS and type(number) is int and 0 < number <= _MOST_ADDED:
                _COUNTS[what] += number


def counts() -> Mapping[str, int]:
    """Since this process began, by what it was."""
    with _LOCK:
        return dict(_COUNTS)
