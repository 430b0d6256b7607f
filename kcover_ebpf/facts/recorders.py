"""What the flight recorders of a job's PyTorch hold, in our words.

Same rules as `facts`. A recorder is a ring of the collective calls of one rank, whatever the backend. Sources:
torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp, versions 2.4 to 2.10 of the dump.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Pid


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One collective or point-to-point operation that a rank enqueued."""

    sequence: int
    """Of its group, counted by each rank for itself. All calls that one coalesced call made have the same."""
    operation: str
    """Without the backend, as "all_reduce" or "send 0->1" (ranks of the group)."""
    group: str = ""
    state: str = ""
    """scheduled, started or completed; PyTorch knows `started` only where it measures times."""
    input_count: int = 0
    """Elements of its inputs."""
    shape: str = ""
    """Of its inputs with their type, for people."""
    place: str = ""
    """FILE:LINE (FUNCTION) of the innermost frame that belongs to no installed library; empty if not recorded."""
    peer: int | None = None
    """Rank in the job at the other end; None for a collective, and where the members of the group are not known."""


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One process group as one of its ranks sees it."""

    name: str
    """The same on all its ranks."""
    purpose: str = ""
    """As "default_pg"; empty where the program gave none."""
    ranks: tuple[int, ...] = ()
    """Its members, in the job's numbers; empty where they are not known, or too many to be listed."""
    enqueued: int | None = None
    """Sequence number of the last collective that the rank called; 0: none; None: not known."""
    pending: tuple[RecordedCall, ...] = ()
    """Collectives that were called and have not completed; the first few, oldest first."""
    messages: tuple[RecordedCall, ...] = ()
    """Sends and receives that have not completed; the first few, oldest first."""
    last: RecordedCall | None = None
    """The last collective that it called; None where the ring does not hold it any more."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The end of the recording of one rank."""

    pid: Pid
    rank: int
    groups: tuple[RecordedGroup, ...] = ()
    last: RecordedCall | None = None
    """Its last call in whatever group."""


@dataclass(frozen=True, slots=True)
class UnreadRecorder:
    """A rank that has a recorder, whose dump could not be had."""

    pid: Pid
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordersSeen:
    """What the recorders of the ranks on this host hold; asked for once in a stall."""

    boottime_ns: int
    """When they were asked: what a rank did later is not in it."""
    records: tuple[RankRecord, ...] = ()
    unread: tuple[UnreadRecorder, ...] = ()
