"""What is known of one process of a job at one moment: what the judge takes, a report carries and `trace` streams.

Ages are seconds before that moment, so a snapshot means the same on every clock (docs/decisions/0010). Times of a
host's own clocks, threads and descriptors stay behind in `diagnosis.history.process`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause

_CLEAN = "code 0"
_UNKNOWN_EXIT = "unknown"


@dataclass(frozen=True, slots=True)
class SocketSnapshot:
    """One connection of a rank; sizes in bytes."""

    local: Endpoint
    remote: Endpoint
    state: str
    unread: int = 0
    unsent: int = 0
    unacked: int = 0
    window: int = 0
    """What the peer has room for."""
    backoff: int = 0
    """Doublings of the retransmission time-out."""
    sent_age_s: float | None = None
    """Since data was sent last; None if never."""
    payload: bool = False
    """It carries data of the training from rank to rank."""
    broken_age_s: float | None = None
    """Since when it repeats itself without an answer; None while it does not, and from agents that do not report it."""

    def later(self, by_s: float) -> SocketSnapshot:
        """The same, so many seconds later."""
        if self.sent_age_s is None and self.broken_age_s is None:
            return self
        sent_s, broken_s = _later(self.sent_age_s, by_s), _later(self.broken_age_s, by_s)
        return replace(self, sent_age_s=sent_s, broken_age_s=broken_s)


@dataclass(frozen=True, slots=True)
class StopSignal:
    """The stop signal in force for a process, and who sent it."""

    signal: int
    sender_pid: int = 0
    """0 when the kernel itself sent it."""
    sender: str | None = None
    from_outside: bool = False
    """It was in another pid namespace: in another container, or of the host. False where that is not known."""


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """The GPUs that a rank computes on, all together."""

    devices: tuple[str, ...]
    """PCI addresses."""
    use: GpuUse
    use_age_s: float = 0.0
    """Since all of them are used so."""
    power_w: float | None = None

    def later(self, by_s: float) -> GpuSnapshot:
        """The same, so many seconds later."""
        return replace(self, use_age_s=self.use_age_s + by_s)


@dataclass(frozen=True, slots=True)
class EffortRates:
    """How much of each kind of effort is made beside a wait, at most of late, in the smallest one that counts.

    With what the process always does, which is known of some ranks sooner than of others.
    """

    compute: float = 0.0
    storage: float = 0.0
    children: float = 0.0

    def of(self, effort: Effort) -> float:
        """That of one kind."""
        if effort is Effort.STORAGE:
            return self.storage
        return self.children if effort is Effort.CHILDREN else self.compute


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """A rank, or a process that a rank may wait for."""

    pid: Pid
    role: Role
    state: State
    pod_uid: str = ""
    """Empty outside a cluster."""
    tid: int | None = None
    """The thread that its state is read from; None: its first one."""
    rank: int | None = None
    pid_inside: int = 0
    """Its number in its own pid namespace, by which NCCL knows it; 0 if unknown, and for what is no rank."""
    world_size: int | None = None
    """Ranks of the whole job, as far as a rank knows it."""
    text: str = ""
    """The call it is in, for people."""
    age_s: float = 0.0
    """Since it is in this state, as well as that is known."""
    threshold_s: float | None = None
    """A silence from here on is a stall, learned; None for helpers and for ranks that have ended."""
    sent_age_s: float | None = None
    """Since it sent data of the training to another rank; None if never, or not known."""
    received_age_s: float | None = None
    """Since more than heartbeats moved over its connections."""
    proven: bool = False
    """The state itself proves that it will not end (a suspended device, a frozen file system)."""
    effort: Effort | None = None
    """Work beside its wait that is more than it always does."""
    effort_rate: float = 0.0
    """How much, in the smallest effort of its kind."""
    effort_rates: EffortRates | None = None
    """Of all kinds, those that are too small to count as well; None from agents that do not tell."""
    wait: State | None = None
    """The wait of its lead thread, where `state` is the effort beside it; None where they are one, and from agents that
    do not tell them apart."""
    awaits: Endpoint | None = None
    """The far end of the one TCP connection that it waits for; None where it is another process of the job."""
    beside: tuple[str, ...] = ()
    """What its side threads began to wait for when it did, or since: a timer, storage, a service, another program."""
    holder: int | None = None
    """The thread of it that holds the lock that its lead thread waits for; None where that is not known."""
    sides_read: bool = False
    """Its side threads were all seen since it waits, so that it is known for which of them it may."""
    inert_s: float | None = None
    """Since it has done nothing but to burn a CPU; None while that is not known."""
    rests: bool = False
    """It sleeps as it did while the job was healthy: a monitor, which neither works nor waits for the others."""
    sends_alike: bool | None = None
    """While the job was healthy it sent when the other ranks here did; None where that is not known."""
    timed: bool = False
    """Its wait has a time-out."""
    retries: bool = False
    """It sleeps and has slept before in this wait, so that no timer ends it; False from agents that do not tell."""
    thread_read: bool = False
    """Its thread was read during this wait: what burns a CPU is not."""
    waits_for: tuple[Pid, ...] = ()
    """Processes of the job that it waits for by a pipe, socket, lock or wait()."""
    writes: bool = False
    """It waits until what it wrote into a pipe or Unix socket is read; False from agents that do not tell."""
    stack: tuple[str, ...] = ()
    python: tuple[PythonFrame, ...] = ()
    """Where its lead thread is in its Python program, as `odd_stack.innermost` cuts it; empty where it was not read."""
    known_wait: bool = False
    """A wait with this stack was seen to end while the job was healthy."""
    joined: bool = False
    """It is known as a rank for who started it or for what it does, also without a number."""
    exit: str | None = None
    """"code N", "signal N" or "unknown", once it has ended."""
    stop_signal: StopSignal | None = None
    sockets: tuple[SocketSnapshot, ...] = ()
    network_busy: bool | None = None
    """Whether a network thread of NCCL burns a CPU; None where none was ever seen to."""
    gpu: GpuSnapshot | None = None
    """None where its GPUs are not read, or it has none."""

    @property
    def connections(self) -> Iterable[SocketSnapshot]:
        return self.sockets

    @property
    def has_failed(self) -> bool:
        """True if it ended by a signal or with an error."""
        return self.exit is not None and self.exit not in (_CLEAN, _UNKNOWN_EXIT)

    def capped(self, age_s: float) -> RankSnapshot:
        """The same, in its state for no longer than this: the time before it cannot be judged."""
        return replace(self, age_s=min(self.age_s, age_s)) if age_s < self.age_s else self

    def later(self, by_s: float) -> RankSnapshot:
        """The same, so many seconds later."""
        return replace(
            self,
            age_s=max(self.age_s, 0.0) + by_s,
            sent_age_s=_later(self.sent_age_s, by_s),
            received_age_s=_later(self.received_age_s, by_s),
            inert_s=_later(self.inert_s, by_s),
            sockets=tuple(socket.later(by_s) for socket in self.sockets),
            gpu=self.gpu and self.gpu.later(by_s),
        )


def exit_text(signal: int, code: int, *, known: bool) -> str:
    """How a process ended, as `RankSnapshot.exit` has it."""
    if not known:
        return _UNKNOWN_EXIT
    return f"signal {signal}" if signal else f"code {code}"


def _later(age_s: float | None, by_s: float) -> float | None:
    return None if age_s is None else max(age_s, 0.0) + by_s


@dataclass(frozen=True, slots=True)
class RankPace:
    """Where one rank was of late, seen pass by pass."""

    pid: int
    waits: float
    """Share of the passes in which it waited for others."""
    passes: int
    """That this was counted over."""
    rank: int | None = None
    pod_uid: str = ""
    cause: Cause | None = None
    """What slows it, as far as that is seen; None where nothing is."""
    places: str = ""
    """Where it was in the last slots of passes, as `diagnosis.clock.rank_pace` encodes it; empty where not known."""
    slot: int = 0
    """The slot of its last letter."""
