"""What a process runs, and what it is to its job."""

from __future__ import annotations

from enum import Enum
from posixpath import basename

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid


class Role(Enum):
    """What a process is for in its job."""

    RANK = "rank"
    LOADER = "loader"
    """A child of a rank that runs the rank's own program: data loader worker, checkpoint writer."""
    COMPILER = "compiler"
    LAUNCHER = "launcher"
    HELPER = "helper"
    """Anything else."""
    UNKNOWN = HELPER
    """What a newer agent reports of which this version does not know the word."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The role of one process.

    `rank` is that of the rank it belongs to, or of the one it wraps (a shell around it); None if it belongs to
    none, or if ranks have no numbers.
    """

    role: Role
    rank: int | None
    world_size: int | None
    owner: Pid | None
    """The rank process it belongs to: itself for a rank, None outside any rank."""
    by_pod: bool = False
    """`rank` is the place of its pod: no process of the job was given its own number."""
    wraps: bool = False
    """It is a shell around a rank, or around what may be one where ranks have no numbers."""
    joined: bool = False
    """It is a rank for who started it or for what it does, so it is known as one without a number, too."""


def program(process: ProcessSeen) -> tuple[str, ...]:
    """What a process runs: interpreter and script, or module."""
    words = process.argv[:3] if process.argv[1:2] == ("-m",) else process.argv[:2]
    return tuple(basename(word) for word in words)
