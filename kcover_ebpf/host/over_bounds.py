"""How often something that a tenant made was over its bound, for the metrics of this process. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping

_LOCK = threading.Lock()
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


def counts() -> Mapping[str, int]:
    """Since this process began, by what it was."""
    with _LOCK:
        return dict(_COUNTS)
