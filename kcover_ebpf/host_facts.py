"""What /proc and a job's own library said when they were asked, in our words.

Same rules as `facts`: immutable, CLOCK_BOOTTIME nanoseconds, what was seen and never what it means.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kcover_ebpf.ids import Inode, Pid, Tid


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """Who a process is, read once from /proc when it appears or execs."""

    boottime_ns: int
    pid: Pid
    ppid: Pid
    start_ns: int
    comm: str
    argv: tuple[str, ...]
    """At most the first 16 words."""
    rank_environ: dict[str, str] = field(default_factory=dict)
    """Only the variables that name a rank, a world or a rendezvous; never the whole environment."""
    devices: frozenset[str] = frozenset()
    """Device nodes it held open when it was read, like /dev/nvidia0 or /dev/infiniband/uverbs0."""


@dataclass(frozen=True, slots=True)
class WaitedFile:
    """A file that a thread waits for, or sits in a call on."""

    fd: int
    kind: str
    """socket, tcp, unix, pipe, fifo, file, tty, null, device, other, or the name of an anonymous
    inode.
    """
    target: str
    """The link text of /proc/PID/fd/N, cut at 120 characters."""
    inode: Inode
    device: str
    """MAJOR:MINOR of the file system it is on (of the device itself for a device node)."""
    fs_type: str
    """nfs4, fuse, ext4, ...; empty when unknown."""


@dataclass(frozen=True, slots=True)
class StorageState:
    """What the block device or server behind a file says, read twice in a row by the caller's own schedule."""

    device: str
    inflight_count: int
    completed_count: int
    suspended: bool
    """A device-mapper device that was suspended."""


@dataclass(frozen=True, slots=True)
class Look:
    """A request for an `Inspection` of one thread."""

    pid: Pid
    tid: Tid
    since_ns: int
    """When its wait began: relative time-outs count from there."""
    syscall: int = -1
    """The call it was last seen in, for /proc may show the one that restarts it; -1 if none."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A closer look at one thread that does not move, made only while its job is suspicious.

    Each part is None or empty where it could not be read in time (a process that died, or one whose
    memory lock is held): the reader never waits for the target.
    """

    boottime_ns: int
    pid: Pid
    tid: Tid
    wait_channel: str
    """The kernel function it sleeps in (/proc/PID/task/TID/wchan); empty when it runs or is
    unknown.
    """
    deadline_ns: int | None
    """When its timed wait ends by itself; None for an untimed wait or an unreadable time-out."""
    timed: bool
    """The wait has a time-out, whether or not it could be read."""
    files: tuple[WaitedFile, ...]
    stack: tuple[str, ...]
    """module+offset words of the user stack that point into code, innermost first."""
    storage: StorageState | None
    lock_holders: tuple[Pid, ...]
    """Processes that hold the file lock it waits for; empty if it waits for none."""


@dataclass(frozen=True, slots=True)
class CollectiveRank:
    """A rank that stands out among those of its communicator, in NCCL's own words."""

    rank: int
    """In its communicator, which need not hold the whole job."""
    size: int
    """Ranks of that communicator."""
    host: str
    pid: Pid | None
    """None for a process of another host, or where it cannot be told which one is meant."""
    launched: int
    """Operations it launched; 0 when it gave no answer."""
    most_launched: int
    """Operations that the furthest rank launched."""


@dataclass(frozen=True, slots=True)
class CollectivesSeen:
    """What the job's own NCCL answered, several times in a row, while the job was suspicious.

    Nothing moving, nobody behind, nobody missing: every rank has joined, and the operation itself does
    not end.
    """

    boottime_ns: int
    since_ns: int
    """When the first of these answers was asked for."""
    answer_count: int = 0
    moving: bool = False
    """Counts grew from one answer to the next."""
    behind: tuple[CollectiveRank, ...] = ()
    missing: tuple[CollectiveRank, ...] = ()
    """Ranks whose processes gave no answer to the others."""
    trouble: str = ""
    """Why there is no answer; then nothing else is known."""
