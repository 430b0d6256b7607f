"""The program that a process runs, and the role of the process in its job."""

from __future__ import annotations

from enum import Enum
from posixpath import basename

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid


class Role(Enum):
    """The purpose of a process in its job."""

    RANK = "rank"
    LOADER = "loader"
    """A child of a rank that runs the rank's own program: data loader worker, checkpoint writer."""
    COMPILER = "compiler"
    LAUNCHER = "launcher"
    HELPER = "helper"
    """Any other process of the job, for example a monitor or a shell."""
    UNKNOWN = HELPER
    """Value read for a role that a newer agent reports and this version does not know."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The role of one process.

    `rank` is the number of the rank that it belongs to, or that it wraps (a shell around it). None if it belongs to
    none, or if ranks have no numbers.
    """

    role: Role
    rank: int | None
    world_size: int | None
    owner: Pid | None
    """The rank process it belongs to: itself for a rank, None if it belongs to no rank."""
    by_pod: bool = False
    """`rank` is the index of its pod: no process of the job was given a rank number."""
    wraps: bool = False
    """It is a shell around a rank, or around a possible rank if ranks have no numbers."""
    joined: bool = False
    """Recognised as a rank by parent or behaviour, so it counts even without a rank number."""


def program(process: ProcessSeen) -> tuple[str, ...]:
    """The program of a process as base names: interpreter and script, or interpreter, -m and module."""
    words = process.argv[:3] if process.argv[1:2] == ("-m",) else process.argv[:2]
    return tuple(basename(word) for word in words)
