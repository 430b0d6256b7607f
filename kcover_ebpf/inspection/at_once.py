"""Asks many places at the same time, each in a thread, and waits for all together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

_Place = TypeVar("_Place")
_Answer = TypeVar("_Answer")


def at_once(
    do: Callable[[_Place], _Answer], places: Sequence[_Place], patience_s: float
) -> list[_Answer | None]:
    """What it answered for each place; None: nothing within the patience.

    A thread that hangs is left in this process, which the runner of the checks leaves behind.
    """
    answers: list[_Answer | None] = [None] * len(places)

    def ask(index: int) -> None:
        answers[index] = do(places[index])

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(len(places))]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return answers
