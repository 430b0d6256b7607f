"""What the user of an inspection chooses, and where the host's files are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host.host_programs import host_root
from kcover_ebpf.ids import host_and_port


def peer_of(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; `UsageError` for anything else."""
    found = host_and_port(text)
    if found is None or not all(found):
        raise UsageError(f"the peer {text[:80]!r} is not HOST:PORT")
    return found


@dataclass(frozen=True, slots=True)
class InspectionOptions:
    """Handed to every check."""

    root: Path = field(default_factory=host_root)
    """Where proc, sys and dev are found; another one in tests."""
    peers: tuple[tuple[str, int], ...] = ()
    """Host and port of the nodes to connect to."""
    write_to: tuple[Path, ...] = ()
    """Folders in which a temporary file may be written, to measure the latency of their storage."""
    log_rules: Path | None = None
    """An operator's rules for lines of the kernel's log, tried before those that are shipped."""
    answered: frozenset[str] = frozenset()
    """For a check by others: names of those of the same round that observed something. The runner sets them."""
    pause: Callable[[float], None] = time.sleep
    """Waits so many seconds between two readings of a counter."""
