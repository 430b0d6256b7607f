"""What /proc and a job's own library said when they were asked, in our words.

Same rules as `facts`: immutable, CLOCK_BOOTTIME nanoseconds, what was seen and never what it means.
"""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Inode, Pid, Tid


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """Who a process is, read once from /proc when it appears or execs."""

    boottime_ns: int
    pid: Pid
    ppid: Pid
    comm: str
    argv: tuple[str, ...]
    """At most the first 16 words."""
    rank_environ: dict[str, str] = field(default_factory=dict)
    """Only the variables that name a rank, a world or a rendezvous; never the whole environment."""
    start_ns: int = 0
    """Boottime at which it began, early by at most a tick; distinguishes it from a later one of its number."""
    pid_inside: int = 0
    """Its number in its own pid namespace; 0 where that could not be read."""


STREAM_KINDS = frozenset({"pipe", "unix"})
"""Kinds of files of which the process that waits, or one of its children, may have the other end."""
WAKING_KINDS = STREAM_KINDS | {"eventfd"}
"""Kinds of files by which one thread of a process may wake another."""


@dataclass(frozen=True, slots=True)
class WaitedFile:
    """A file that a thread waits for, or sits in a call on."""

    fd: int
    kind: str
    """socket, tcp, udp, unix, pipe, stream (one of these, by a ring of io_uring), fifo, file, tty, null, device, other,
    or the name of an anonymous inode.
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
class ReadingRequest:
    """A request for a `ThreadReading` of one thread, or for a `CodeSeen` of one that burns a CPU."""

    pid: Pid
    tid: Tid
    since_ns: int
    """When its wait began: relative time-outs count from there."""
    syscall: int = -1
    """The call it was last seen in, for /proc may show the one that restarts it; -1 if none."""
    burning_sp: int | None = None
    """User stack pointer of a thread that burns a CPU, which /proc does not show; None for one that waits."""
    wants_modules: bool = False
    """The executable mappings of its process are wanted as well, read anew."""


@dataclass(frozen=True, slots=True)
class Module:
    """One executable mapping of a process: [start, end) of the file with this base name."""

    start: int
    end: int
    name: str
    """Base name of the file, [vdso] and the like; empty for anonymous memory."""


@dataclass(frozen=True, slots=True)
class CodeSeen:
    """Where a thread that burns a CPU was called from. Empty where it could not be read."""

    boottime_ns: int
    pid: Pid
    tid: Tid
    stack: tuple[str, ...]
    """module+offset words as in `ThreadReading`; the thread ran meanwhile, so single words may be wrong."""
    modules: tuple[Module, ...] = ()
    """Executable mappings of the process; empty if not asked for."""
    devices: frozenset[str] | None = None
    """As in `ThreadReading`."""


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """A reading of one thread that does not move, made while its job is suspicious, or for `trace`.

    Each part is None or empty where it could not be read in time (a process that died, or one whose
    memory lock is taken): the reader never waits for the target.
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
    stack: tuple[str, ...] = ()
    """module+offset words of the user stack that point into code, innermost first."""
    storage: StorageState | None = None
    lock_holders: tuple[Pid, ...] = ()
    """Processes that hold the lock it waits for, of a file or in memory that they share; empty if none is known."""
    lock_thread: Tid | None = None
    """The thread of its own process that holds the lock it waits for, or that it joins; None where none is known."""
    devices: frozenset[str] | None = None
    """Files of GPUs, accelerators and RDMA devices that its process has open, like /dev/nvidia0; None where unknown."""
    lock_memory: bytes = b""
    """From the futex word it waits for on; read for `trace` alone."""

    @property
    def sleeps(self) -> bool:
        """It is in a sleep (kernel/time/hrtimer.c: hrtimer_nanosleep, do_nanosleep)."""
        return "nanosleep" in self.wait_channel


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request to ask the file system that a thread waits for whether it answers at all."""

    pid: Pid
    tid: Tid
    since_ns: int
    """When its wait began."""
    fd: int
    """Descriptor of the file in that process; -1: `path` instead."""
    path: str = ""
    """The path that it opens or looks up, as it gave it; absolute, or from its current folder."""


@dataclass(frozen=True, slots=True)
class FileSystemProbe:
    """The file system that a thread waits for was asked by statfs(2), in a separate process.

    A server that answers others is slow for one call; one that leaves a probe unanswered answers none.
    """

    boottime_ns: int
    pid: Pid
    tid: Tid
    asked_ns: int
    answered: bool
    """False: not until now. An error is an answer."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Reading what a process is or does has not returned for a second: something in the kernel holds its locks.

    A driver or a file system that does not answer, mostly: a healthy process is read in microseconds.
    """

    boottime_ns: int
    pid: Pid
    since_ns: int
    """When the read began."""


@dataclass(frozen=True, slots=True)
class CollectivesLaunched:
    """A process asked its NCCL for further operations, of whatever kind."""

    boottime_ns: int
    pid: Pid
    count: int
    """Since the pass before."""


@dataclass(frozen=True, slots=True)
class CollectiveRank:
    """A rank that differs among those of its communicator, in NCCL's own words."""

    rank: int
    """In its communicator, which need not hold the whole job."""
    size: int
    """Ranks of that communicator."""
    host: str
    pid: Pid | None = None
    """None for a process of another host, or where it cannot be determined which one is meant."""
    launched: int = 0
    """Operations it launched; 0 when it gave no answer."""
    most_launched: int = 0
    """Operations that the furthest rank launched."""
    comm: str = ""
    """Name of the communicator: with `rank` it says who is meant, to whoever else asked."""
    trouble: str = ""
    """What its communicator failed of."""
    pid_inside: int = 0
    """Its number in its own pid namespace, by which other nodes recognise it; 0 where NCCL did not say it."""


@dataclass(frozen=True, slots=True)
class CollectiveSide:
    """Ranks of one communicator that called the same operations, where others called different ones."""

    operations: str
    """Those that differ and how often each was launched, as "AllGather 51, AllReduce 100"."""
    rank_count: int
    ranks: tuple[int, ...]
    """In the communicator; the first few."""


@dataclass(frozen=True, slots=True)
class LaggingHost:
    """Ranks of one host that are behind by the same."""

    host: str
    rank_count: int
    slots: tuple[int, ...] = ()
    """Their devices on it, which are local ranks where each rank has one; the first few."""


@dataclass(frozen=True, slots=True)
class CollectiveLag:
    """Ranks of one communicator that are so many operations behind those that are furthest."""

    behind: int
    rank_count: int
    size: int
    """Ranks of the communicator."""
    kind: str = ""
    """NCCL's name of the operations, where all that they are behind by are of one; else empty."""
    places: tuple[LaggingHost, ...] = ()
    """The first hosts, by address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAnswer:
    """What NCCL answers about the operations of a job's ranks."""

    moving: bool = False
    """Counts grew from one answer to the next."""
    behind: tuple[CollectiveRank, ...] = ()
    missing: tuple[CollectiveRank, ...] = ()
    """Ranks whose processes gave no answer to the others."""
    failed: tuple[CollectiveRank, ...] = ()
    """Ranks at which a communicator failed, as near to where it began as NCCL says."""
    odd: tuple[CollectiveRank, ...] = ()
    """Ranks that called another operation than most; none where there is no majority."""
    sides: tuple[CollectiveSide, ...] = ()
    """Who called what, where ranks called different operations; the largest side first."""
    lags: tuple[CollectiveLag, ...] = ()
    """How far those behind are, in the communicator with most of them; the furthest behind first."""


@dataclass(frozen=True, slots=True)
class CollectivesSeen(CollectiveAnswer):
    """What the job's own NCCL answered, several times in a row, while the job had stalled.

    Nothing moving, no rank named, all equal: every rank has joined, and the operation itself does not end.
    """

    boottime_ns: int
    since_ns: int
    """When the first of these answers was asked for."""
    answer_count: int = 0
    equal: bool = True
    """All ranks launched the same. False with no rank named: each of those behind waits in another communicator."""
    trouble: str = ""
    """Why there is no answer; then nothing else is known."""
    unseen: str = ""
    """What of the counts is not known although there is an answer."""
