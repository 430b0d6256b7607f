"""What the user of an inspection chooses, and where the host's files are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InspectionOptions:
    """Handed to every check."""

    root: Path = Path("/")
    """Where proc, sys and dev are found; another one in tests."""
    peers: tuple[tuple[str, int], ...] = ()
    """Host and port of the nodes to connect to."""
    write_to: Path | None = None
    """Folder in which a temporary file may be written, to measure the latency of its storage."""
    nccl_floor_gb_s: float | None = None
    """Gigabytes (10^9) a second of bus bandwidth below which nccl-tests fail; None: no floor."""
    pause: Callable[[float], None] = time.sleep
    """Waits so many seconds between two readings of a counter."""
