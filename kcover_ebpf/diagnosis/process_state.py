"""Where one process stands at one moment: does it work, wait, or can it not go on by itself.

The states fall into groups: *effort* (it works, others may wait), *patience* (it waits for
something outside the job that may well come), *waiting* (for other ranks or its own children) and
*stuck* (nothing the job can do ends this).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from kcover_ebpf.diagnosis.process import Effort, ProcessHistory
from kcover_ebpf.diagnosis.roles import Role
from kcover_ebpf.diagnosis.tcp_links import EndpointIndex
from kcover_ebpf.facts.host import Inspection, WaitedFile
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Pid
from kcover_ebpf.settings import Policy


class State(Enum):
    """Where the lead thread of a process stands; the value is the text for people."""

    MOVING = "moving"
    COMPUTING = "computing"
    STORING = "moving bytes to or from storage"
    CHILDREN = "waiting for children at work"
    SLEEPING = "sleeping"
    USER = "waiting for a user"
    TRACED = "held by a debugger"
    PEERS = "waiting for peers"
    FUTEX = "waiting for another thread"
    ON_DEVICE = "waiting for its device"
    NAPPING = "asking again every few milliseconds"
    CHILD = "waiting for a child"
    HELPED = "waiting for a thread that waits for somebody else"
    OUTSIDE = "waiting for a service outside the job"
    LEFT = "left"
    GONE = "gone"
    STOPPED = "stopped"
    FROZEN = "frozen"
    THROTTLED = "without a CPU"
    SLEEP_LONG = "sleeping without end"
    READ = "waiting for data that nobody sends"
    LOCK = "waiting for a file lock"
    STORAGE = "in a storage call"
    DEVICE = "in a driver call"
    FAULTING = "in a page fault"
    SPINNING = "spinning"
    OTHER = "in a wait of unknown kind"


EFFORT = frozenset(
    {State.MOVING, State.COMPUTING, State.STORING, State.CHILDREN, State.SLEEPING, State.USER}
)
"""Legitimate: these ranks explain why others wait."""
HELD = frozenset({State.STOPPED, State.FROZEN, State.TRACED})
STUCK = frozenset(
    {State.SLEEP_LONG, State.READ, State.LOCK, State.STORAGE, State.DEVICE, State.FAULTING}
    | {State.SPINNING, State.OTHER}
)
WAITING = frozenset({State.PEERS, State.FUTEX, State.ON_DEVICE, State.NAPPING})
"""For other ranks, or for a device that waits for theirs: these explain nothing, and are no fault of this rank."""
SOON_S = {State.FAULTING: 6.0, State.DEVICE: 8.0, State.OTHER: 4.0}
"""Seconds for which a wait that usually ends soon is believed, whatever this job's own steps last.
"""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Where a process stands; `since_ns` is the boottime when that began, as well as it is known."""

    pid: Pid
    tid: int
    rank: int | None
    role: Role
    state: State
    since_ns: int
    text: str
    """The call decoded for people."""
    inspection: Inspection | None = None
    proven: bool = False
    """The state itself proves that it will not end (a suspended device, a frozen file system)."""
    waits_for: tuple[Pid, ...] = ()
    """Processes of the job that it waits for by a pipe, socket, lock or wait()."""
    effort: Effort | None = None

    def floored(self, floor_ns: int) -> ProcessState:
        """The same, beginning no earlier than `floor_ns`: the time before it cannot be judged."""
        return replace(self, since_ns=max(self.since_ns, floor_ns))


@dataclass(frozen=True, slots=True)
class ClassifyContext:
    """What a process is judged with: the rest of its job, and the closer looks at its threads."""

    now_ns: int
    policy: Policy
    table: SyscallTable
    children: Callable[[Pid], Sequence[ProcessHistory]]
    holders: Callable[[Pid, WaitedFile], tuple[Pid, ...]]
    """Processes of the job that hold the other end of a file."""
    inspections: Callable[[Pid, int], Sequence[Inspection]]
    """Closer looks at a thread, oldest first."""
    kind: Callable[[Pid, WaitedFile], str]
    """What a file really is (a socket's protocol is not in its name)."""
    ends: EndpointIndex
    all_here: bool
    """Every rank of the job is on this host, so a connection to nobody known leads outside the job.
    """
