"""Makes one call per place in parallel threads, and waits for all of them together."""

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
    """The result of `do` for each place; None: no result within `patience_s`. Raises what `do` raised.

    A thread that hangs stays in this process, which the runner of the checks abandons in turn.
    """
    answers: list[_Answer | None] = [None] * len(places)
    errors: list[Exception] = []

    def ask(index: int) -> None:
        try:
            answers[index] = do(places[index])
        except Exception as error:  # noqa: BLE001 - that a check of ours is broken must not look like a silent place
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(len(places))]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    if errors:
        raise errors[0]
    return answers
