"""Options of an inspection, and the host's root folder."""

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
    """(host, port) of HOST:PORT; `UsageError` for anything else."""
    found = host_and_port(text)
    if found is None or not all(found):
        raise UsageError(f"the peer {text[:80]!r} is not HOST:PORT")
    return found


@dataclass(frozen=True, slots=True)
class InspectionOptions:
    """Options that every check receives."""

    root: Path = field(default_factory=host_root)
    """Folder that contains the host's proc, sys and dev; tests use another one."""
    peers: tuple[tuple[str, int], ...] = ()
    """(host, port) of the nodes to connect to."""
    write_to: tuple[Path, ...] = ()
    """Folders in which a temporary file may be written to measure the latency of their storage."""
    log_rules: Path | None = None
    """File with an operator's rules for kernel log lines, tried before the shipped ones."""
    answered: frozenset[str] = frozenset()
    """Names of the checks of the same round that observed something, for checks with `by_others`.
    Set by the runner."""
    pause: Callable[[float], None] = time.sleep
    """Waits the given seconds between two readings of a counter."""
