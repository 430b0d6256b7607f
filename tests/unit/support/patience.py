"""Waiting for what other threads do, for as long as it takes: pytest ends a wait in vain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def soon(answer: Callable[[], T]) -> T:
    """The first answer that is true."""
    while not (found := answer()):
        time.sleep(0.01)
    return found
