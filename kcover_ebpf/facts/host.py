"""Answers of /proc and of a job's own libraries, as facts.

The rules of `facts` apply: immutable, CLOCK_BOOTTIME nanoseconds, an observation and never its meaning.
"""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Inode, Pid, Tid


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """Identity of a process, read once from /proc when it appears or execs."""

    boottime_ns: int
    pid: Pid
    ppid: Pid
    comm: str
    argv: tuple[str, ...]
    """At most the first 16 words."""
    rank_environ: dict[str, str] = field(default_factory=dict)
    """Only the variables that name a rank, a world or a rendezvous; never the whole environment."""
    start_ns: int = 0
    """Boottime at which it began, early by at most a tick; distinguishes it from a later process with the same pid."""
    pid_inside: int = 0
    """Pid in its own pid namespace; 0 if that could not be read."""


STREAM_KINDS = frozenset({"pipe", "unix"})
"""Kinds of files whose other end may belong to the process that waits, or to one of its children."""
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
    process: Pid | None = None
    """The process whose end it waits for through a pidfd; None for other files, and once that has ended."""


@dataclass(frozen=True, slots=True)
class StorageState:
    """What the block device or server behind a file reports. Callers compare two readings."""

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
    """The call it was last seen in (/proc may show restart_syscall in its place); -1 if none."""
    burning_sp: int | None = None
    """User stack pointer of a thread that burns a CPU, which /proc does not show; None for one that waits."""
    wants_modules: bool = False
    """The executable mappings of its process are to be read again as well."""


@dataclass(frozen=True, slots=True)
class Module:
    """One executable mapping of a process: [start, end) of the file with this base name."""

    start: int
    end: int
    name: str
    """Base name of the file, [vdso] and the like; empty for anonymous memory."""


@dataclass(frozen=True, slots=True)
class CodeSeen:
    """Callers of the code in which a thread burns a CPU. Empty if it could not be read."""

    boottime_ns: int
    pid: Pid
    tid: Tid
    stack: tuple[str, ...]
    """Words of its stack, as in `ThreadReading`; the thread ran meanwhile, so single words may be
    wrong."""
    modules: tuple[Module, ...] = ()
    """Executable mappings of the process; empty if not asked for."""
    devices: frozenset[str] | None = None
    """Device files that its process has open, as in `ThreadReading`; None if unknown."""


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
    """Words of the user stack that point into code, innermost first: as module+offset, or module~build+offset."""
    storage: StorageState | None = None
    lock_holders: tuple[Pid, ...] = ()
    """Processes that own the lock it waits for, of a file or in shared memory; empty if none is known."""
    lock_thread: Tid | None = None
    """The thread of its own process that owns the lock it waits for, or that it joins; None if unknown."""
    devices: frozenset[str] | None = None
    """Files of GPUs, accelerators and RDMA devices that its process has open, like /dev/nvidia0; None if unknown."""
    lock_memory: bytes = b""
    """Memory from the futex word it waits for on; read for `trace` only."""

    @property
    def sleeps(self) -> bool:
        """It is in a sleep (kernel/time/hrtimer.c: hrtimer_nanosleep, do_nanosleep)."""
        return "nanosleep" in self.wait_channel


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request to check whether the file system that a thread waits for answers at all."""

    pid: Pid
    tid: Tid
    since_ns: int
    """Boottime at which the thread's wait began."""
    fd: int
    """Descriptor of the file in that process; -1: `path` instead."""
    path: str = ""
    """The path that it opens or looks up, as the thread passed it; absolute, or relative to its working directory."""


@dataclass(frozen=True, slots=True)
class FileSystemProbe:
    """The file system that a thread waits for was probed by statfs(2), in a separate process.

    A server that answers others is slow for one call; one that leaves a probe unanswered answers none.
    """

    boottime_ns: int
    pid: Pid
    tid: Tid
    asked_ns: int
    answered: bool
    """False: no answer so far. An error is an answer."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A read of a process's state has not returned for a second: something in the kernel owns the locks that it needs.

    Usually a driver or a file system that does not answer: a healthy process is read in microseconds.
    """

    boottime_ns: int
    pid: Pid
    since_ns: int
    """Boottime at which the read began."""


@dataclass(frozen=True, slots=True)
class CollectivesLaunched:
    """A process launched further NCCL operations, of any kind."""

    boottime_ns: int
    pid: Pid
    count: int
    """Number of operations since the previous pass."""


@dataclass(frozen=True, slots=True)
class CollectiveRank:
    """A rank that differs from others of its communicator, as NCCL reports it."""

    rank: int
    """Number in its communicator, which need not contain the whole job."""
    size: int
    """Number of ranks in that communicator."""
    host: str
    pid: Pid | None = None
    """None for a process of another host, or if it cannot be identified."""
    launched: int = 0
    """Operations it launched; 0 when it gave no answer."""
    most_launched: int = 0
    """Operations that the furthest rank launched."""
    comm: str = ""
    """Communicator hash; with `rank` it identifies the same process across nodes."""
    trouble: str = ""
    """Error of its communicator; empty if it has none."""
    pid_inside: int = 0
    """Pid in its own pid namespace, by which other nodes recognise it; 0 if NCCL did not report it."""


@dataclass(frozen=True, slots=True)
class CollectiveSide:
    """Ranks of one communicator that called the same operations, where others called different ones."""

    operations: str
    """Operations that differ, and how often each was launched, as "AllGather 51, AllReduce 100"."""
    rank_count: int
    ranks: tuple[int, ...]
    """Numbers in the communicator; the first few."""


@dataclass(frozen=True, slots=True)
class LaggingHost:
    """Ranks of one host that are behind by the same number of operations."""

    host: str
    rank_count: int
    slots: tuple[int, ...] = ()
    """Their devices on it, which equal local ranks if each rank has one device; the first few."""


@dataclass(frozen=True, slots=True)
class CollectiveLag:
    """Ranks of one communicator that are `behind` operations behind the furthest ones."""

    behind: int
    rank_count: int
    size: int
    """Number of ranks in the communicator."""
    kind: str = ""
    """NCCL's name of the operations, if all missing ones are of one kind; else empty."""
    places: tuple[LaggingHost, ...] = ()
    """The first few hosts, sorted by address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAnswer:
    """NCCL's answer about the operations of a job's ranks."""

    moving: bool = False
    """Counts grew from one answer to the next."""
    behind: tuple[CollectiveRank, ...] = ()
    missing: tuple[CollectiveRank, ...] = ()
    """Ranks whose processes gave no answer to the others."""
    failed: tuple[CollectiveRank, ...] = ()
    """Ranks at which a communicator failed, as close to the origin of the failure as NCCL reports."""
    odd: tuple[CollectiveRank, ...] = ()
    """Ranks that called another operation than the majority; empty if there is no majority."""
    sides: tuple[CollectiveSide, ...] = ()
    """Groups of ranks by what they called, if ranks called different operations; the largest group first."""
    lags: tuple[CollectiveLag, ...] = ()
    """How far ranks are behind, in the communicator with most of them; the furthest behind first."""


@dataclass(frozen=True, slots=True)
class CollectivesSeen(CollectiveAnswer):
    """Several consecutive answers of the job's own NCCL while the job had stalled.

    If nothing moves, no rank is named and all are equal, every rank has joined, and the operation itself does not
    end.
    """

    boottime_ns: int
    since_ns: int
    """Boottime at which the first of these answers was requested."""
    answer_count: int = 0
    equal: bool = True
    """All ranks launched the same operations. False with no rank named: each rank behind waits in another
    communicator."""
    trouble: str = ""
    """Why there is no answer; if set, nothing else is known."""
    unseen: str = ""
    """Which part of the counts is unknown although there is an answer; empty if all are known."""
