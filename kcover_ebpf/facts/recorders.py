"""Content of the flight recorders of a job's PyTorch, as facts.

The rules of `facts` apply. A recorder is a ring of the collective calls of one rank, for any backend. Sources:
torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp, versions 2.4 to 2.10 of the dump.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Pid


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One collective or point-to-point operation that a rank enqueued."""

    sequence: int
    """Sequence number in its group, counted by each rank for itself. All operations of one coalesced call have the
    same."""
    operation: str
    """Operation without the backend, as "all_reduce" or "send 0->1" (ranks of the group)."""
    group: str = ""
    state: str = ""
    """scheduled, started or completed; PyTorch knows `started` only where it measures times."""
    input_count: int = 0
    """Number of elements of its inputs."""
    shape: str = ""
    """Shape and type of its inputs, as text."""
    place: str = ""
    """FILE:LINE (FUNCTION) of the innermost frame that belongs to no installed library; empty if not recorded."""
    peer: int | None = None
    """Rank in the job at the other end; None for a collective, and if the members of the group are unknown."""


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One process group as one of its ranks describes it."""

    name: str
    """Name, the same on all its ranks."""
    purpose: str = ""
    """Description such as "default_pg"; empty if the program gave none."""
    ranks: tuple[int, ...] = ()
    """Members, as rank numbers of the job; empty if unknown, or too many to be listed."""
    enqueued: int | None = None
    """Sequence number of the last collective that the rank called; 0 if none, None if unknown."""
    pending: tuple[RecordedCall, ...] = ()
    """Collectives that were called and have not completed; the first few, oldest first."""
    messages: tuple[RecordedCall, ...] = ()
    """Sends and receives that have not completed; the first few, oldest first."""
    last: RecordedCall | None = None
    """The last collective that it called; None if the ring no longer contains it."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The end of the recording of one rank."""

    pid: Pid
    rank: int
    groups: tuple[RecordedGroup, ...] = ()
    last: RecordedCall | None = None
    """Its last call, in any group."""


@dataclass(frozen=True, slots=True)
class UnreadRecorder:
    """A rank that has a recorder whose dump could not be read."""

    pid: Pid
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordersSeen:
    """Content of the recorders of the ranks on this host; requested once per stall."""

    boottime_ns: int
    """Boottime at which they were asked: later calls are not included."""
    records: tuple[RankRecord, ...] = ()
    unread: tuple[UnreadRecorder, ...] = ()
