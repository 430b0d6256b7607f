"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PATIENCE_S = 60.0
"""Far longer than any of it takes, as a machine may be busy."""


def until(
    reached: Callable[[], T], what: str = "what was to happen", timeout_s: float = _PATIENCE_S
) -> T:
    """What `reached` finds once that is true, asked again and again; fails when time is up."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := reached()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.02)
    return found
