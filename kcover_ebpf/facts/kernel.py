"""Reports of the kernel as facts.

Every value here is immutable and self-contained. All `*_ns` times are CLOCK_BOOTTIME nanoseconds (it runs while a node
is suspended and never jumps) unless the name says otherwise. `pid` is the process (the kernel's tgid), `tid` the
thread. A fact is an observation without a meaning: `diagnosis` decides what it means.
"""

from __future__ import annotations

import signal
from enum import Enum

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.devices import DeviceFact
from kcover_ebpf.facts.host import (
    CodeSeen,
    CollectivesLaunched,
    CollectivesSeen,
    FileSystemProbe,
    ProcessSeen,
    ThreadReading,
    Unreadable,
)
from kcover_ebpf.facts.inspector import InspectorSeen
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.facts.python_stacks import PythonStacksSeen
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.ids import Inode, Pid, Tid

NO_SYSCALL = -1
"""`ThreadSample.syscall` of a thread that is not in a system call (it runs in user space or
faults).
"""


CORE_SIGNALS = frozenset(
    {signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE}
    | {signal.SIGSEGV, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS}
)
"""Signals whose default action is to dump core (kernel: include/linux/signal.h, SIG_KERNEL_COREDUMP_MASK)."""


class TaskState(Enum):
    """State of a thread, reduced to what a verdict can use (kernel: include/linux/sched.h, TASK_*)."""

    # members are compared by identity; Enum's own is a call of Python for each look-up
    __hash__ = object.__hash__

    RUNNING = "R"
    SLEEPING = "S"
    UNINTERRUPTIBLE = "D"
    STOPPED = "T"
    TRACED = "t"
    FROZEN = "F"
    ZOMBIE = "Z"
    OTHER = "?"


class Detail(Enum):
    """Which threads are sent even if they did not move. Unless it is OFF, every pass sends all descriptors as well."""

    OFF = 0
    ON = 1
    """The threads that are judged: lead threads, those that do not sleep, and those that may wait for a device (asleep
    at a futex in a frame of their own stack)."""
    ALL = 2
    """Every thread, for output to people."""


CALM_EVERY = 20
"""Passes between two samples of all threads of a process that needs no closer observation (bpf/pass.bpf.h)."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """How closely one process is sampled from the next pass on."""

    detail: Detail = Detail.OFF
    every: int = CALM_EVERY
    """Passes between two samples of all its threads."""
    lead: Tid | None = None
    """A thread that is sampled in every pass, as the first one always is; None for no further one."""


@dataclass(frozen=True, slots=True)
class ThreadSample:
    """One thread at one pass of the sampler, sent when it moved and once more when it came to rest.

    Lead threads are sampled in each pass, others once in `SampleRequest.every`. Also sent are, at first sight
    and when detail begins, those that are judged (`Detail.ON`); in detail, those of them that ran at all.

    A thread *moved* when its site (system call, first argument, user stack pointer) differs from
    the sample before, or when it used more than 2% of the interval on a CPU. A thread that was not
    sent did not move.
    """

    boottime_ns: int
    pid: Pid
    tid: Tid
    start_ns: int
    """Start of the thread; with `tid` it is its identity."""
    state: TaskState
    syscall: int
    """Number of the system call it sits in, on the machine's own architecture; `NO_SYSCALL` if
    none.
    """
    args: tuple[int, int, int, int, int, int]
    """Arguments of the call; outside a call, the argument registers when they were last read."""
    user_sp: int
    user_ip: int
    site_since_ns: int
    """First sample (or, at first sight, the last time on a CPU) at this site without a move."""
    idle_since_ns: int
    """When it was last seen to leave a CPU: early by at most the length of its last CPU burst."""
    cpu_ns: int
    run_delay_ns: int
    """Time spent runnable, waiting for a CPU, since its start."""
    voluntary_count: int
    comm: str
    previous_ns: int = 0
    """Boottime of the previous pass, whether or not it was sent; 0 if there was none, or it is unknown (old tapes)."""
    minor_faults: int = 0
    """Page faults since its start that needed no storage: the first use of memory, and of pages that were moved. 0 in
    old tapes."""
    call_chars: int = 0
    """Bytes that it passed through read and write calls of any kind of file since its start; 0 in old tapes."""

    @property
    def wanted_ns(self) -> int:
        """Time on a CPU and spent waiting for one, since its start."""
        return self.cpu_ns + self.run_delay_ns


@dataclass(frozen=True, slots=True)
class ProcessTotals:
    """Sums over the threads of one process, counted from the moment at which it was first watched.

    Sent when all its threads were sampled: each pass in detail, else once in `SampleRequest.every`.
    """

    boottime_ns: int
    pid: Pid
    ppid: Pid
    cpu_ns: int
    read_bytes: int
    write_bytes: int
    """Bytes fetched from, and sent (at dirtying) to, storage (kernel: task_io_accounting)."""
    read_chars: int
    write_chars: int
    """Bytes passed through read and write calls of any kind of file."""
    major_faults: int
    thread_count: int
    unseen_count: int = 0
    """Threads that the sampler had no room for: the sums do not include them."""
    forsaken_count: int = 0
    """Threads that sleep, without a time-out, at a futex that no other process can reach."""
    throttled_ns: int = 0
    """Nanoseconds for which its control groups have been throttled by CPU quotas since they exist (kernel:
    cfs_bandwidth), summed over the processors that they needed. Throttling caused by other processes in the groups is
    included."""
    asleep_bytes: int = 0
    """Of `read_bytes` and `write_bytes`, those of threads found in a timed sleep (nanosleep, clock_nanosleep) by the
    sample before or after; 0 in old tapes."""
    asleep_chars: int = 0
    """The same of `read_chars` and `write_chars`."""


@dataclass(frozen=True, slots=True)
class SocketSample:
    """One TCP socket open in a watched process; sent when a counter moved, or always in detail mode.

    Addresses are numeric text ("10.0.0.1", "::1"); IPv4-mapped ones are written as IPv4.
    """

    boottime_ns: int
    pid: Pid
    fd: int
    inode: Inode
    state: str
    """ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, ..., LISTEN, CLOSE (kernel:
    include/net/tcp_states.h).
    """
    local: tuple[str, int]
    remote: tuple[str, int]
    unread_bytes: int
    unsent_bytes: int
    unacked_bytes: int
    acked_bytes: int
    """Bytes that the peer acknowledged (tcpi_bytes_acked): data that was only sent, or sent again, is no progress.

    The SYN of the side that connected counts as one."""
    received_bytes: int
    backoff: int
    """Doublings of the time-out of what is unacknowledged, or of zero-window probes (icsk_backoff)."""
    send_window_bytes: int
    last_send_ns: int
    """Boottime of the last data sent, from the kernel's own clock ticks: exact to one tick (1-10
    ms).
    """
    last_receive_ns: int


@dataclass(frozen=True, slots=True)
class DescriptorSample:
    """A pipe, FIFO or Unix socket open in a watched process; sent in detail mode only."""

    boottime_ns: int
    pid: Pid
    fd: int
    kind: str
    """One of pipe, fifo or unix."""
    inode: Inode
    peer_inode: Inode | None
    """The other end of a connected Unix socket; None for pipes (both ends share the inode)."""
    drain_mark: int = 0
    """Changes when the other end reads, and not while a writer waits for room that no reader makes: the buffers of a
    pipe that were read; the memory that a Unix socket has in the queue of its peer (kernel: pipe_inode_info.tail,
    sk_wmem_alloc). 0 in old tapes."""


@dataclass(frozen=True, slots=True)
class ProcessFork:
    """A watched process created a child process, which is watched from now on."""

    boottime_ns: int
    pid: Pid
    """Process that called fork."""
    child_pid: Pid
    comm: str


@dataclass(frozen=True, slots=True)
class ProcessExec:
    """A watched process became another program."""

    boottime_ns: int
    pid: Pid
    comm: str


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The last thread of a watched process ended."""

    boottime_ns: int
    pid: Pid
    exit_code: int
    """0 to 255; 0 if it died by a signal."""
    signal: int
    """The signal it died by; 0 if it exited by itself."""
    core_dumped: bool
    """The kernel wrote a core file of it."""
    comm: str
    known: bool = True
    """False: only its absence is known. Code and signal are 0 and mean nothing; the time is when it was missed."""


@dataclass(frozen=True, slots=True)
class OomKill:
    """The kernel chose a watched process as victim of the out-of-memory killer."""

    boottime_ns: int
    pid: Pid
    comm: str


@dataclass(frozen=True, slots=True)
class SignalSent:
    """A stopping, continuing or fatal signal was sent to a watched process."""

    boottime_ns: int
    pid: Pid
    tid: Tid
    signal: int
    sender_pid: Pid
    """0 when the kernel itself sent it."""
    sender_comm: str
    from_outside: bool = False
    """The sender is in another pid namespace than the process, such as another container or the host. False if it is
    not, or if that is unknown."""


@dataclass(frozen=True, slots=True)
class FatalSignal:
    """A signal that ends a watched process was delivered to it: it runs none of its code from now on.

    `ProcessExit` follows once its core is written and its memory freed; the time that this takes grows with its
    memory.
    """

    boottime_ns: int
    pid: Pid
    signal: int
    """Signal it dies of, the same as `ProcessExit` reports later."""
    comm: str


@dataclass(frozen=True, slots=True)
class TcpRetransmit:
    """A known socket of a watched process retransmitted a segment."""

    boottime_ns: int
    pid: Pid
    local: tuple[str, int]
    remote: tuple[str, int]


@dataclass(frozen=True, slots=True)
class TcpStateChange:
    """A socket of a watched process changed its TCP state: the process has connections to be sampled."""

    boottime_ns: int
    pid: Pid


@dataclass(frozen=True, slots=True)
class Tick:
    """End of one pass of the sampler."""

    boottime_ns: int
    period_ns: int
    """Nanoseconds since the previous pass."""
    lost_count: int
    """Ring-buffer records and sampler entries lost since the previous pass, of any process.

    The processes concerned are not known here: `ProcessTotals.unseen_count` names them."""
    late: bool
    """The pass came so late (node suspended, sensor starved) that the time between cannot be
    judged.
    """


Fact = (
    ThreadSample
    | ProcessTotals
    | SocketSample
    | DescriptorSample
    | ProcessFork
    | ProcessExec
    | ProcessExit
    | OomKill
    | SignalSent
    | FatalSignal
    | TcpRetransmit
    | TcpStateChange
    | ProcessSeen
    | ThreadReading
    | Unreadable
    | FileSystemProbe
    | CodeSeen
    | CollectivesSeen
    | CollectivesLaunched
    | RecordersSeen
    | PythonStacksSeen
    | InspectorSeen
    | LogSeen
    | Tick
    | DeviceFact
)
"""Every fact that `diagnosis` takes."""
