"""What /healthz reports: a part of the agent that died or makes no progress, so that the kubelet restarts it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One thread; `turn_s`: monotonic start of its last turn, None if it may legitimately block for minutes."""

    name: str
    is_alive: Callable[[], bool]
    turn_s: Callable[[], float] | None = None
    limit_s: float = 0.0


def wrong(parts: Sequence[Part], clock: Callable[[], float] = time.monotonic) -> str:
    """One line that names the faulty part; empty if all parts are healthy."""
    now_s = clock()
    said = [text for part in parts if (text := _wrong(part, now_s))]
    return "; ".join(said)


def _wrong(part: Part, now_s: float) -> str:
    if not part.is_alive():
        return f"{part.name} ended"
    if part.turn_s is not None and now_s - part.turn_s() > part.limit_s:
        return f"{part.name}: no iteration for {part.limit_s:.0f} s"
    return ""
