"""State of one process of a job at one moment: the judge reads it, a report carries it, and `trace` streams it.

Ages are seconds before that moment, so a snapshot means the same on every clock (docs/decisions/0010). Times of a
host's own clocks, threads and descriptors stay in `diagnosis.history.process`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause

_CLEAN = "code 0"
_UNKNOWN_EXIT = "unknown"


class Discounted(Enum):
    """Why something that ran in a rank during its wait did not count as work: said to people, and decides nothing.

    The value is what reports carry, `text` is for people.
    """

    LEAD_SPINS = "lead spins"
    SIDES_SPIN = "side threads spin"
    SIDES_NAP = "side threads nap"
    SIDES_WAKE = "side threads wake"
    CHILD_WAKES = "child wakes"
    CHILD_USUAL = "child as usual"
    CHILD_BRIEF = "brief child"
    CHILD_SPINS = "child spins"
    TELEMETRY = "telemetry"
    UNKNOWN = "unknown"
    """A kind that a newer agent reports and this version does not know."""

    @property
    def text(self) -> str:
        """The sentence about some ranks, whose names it has as `{who}`."""
        return _DISCOUNTED_TEXTS[self]


_DISCOUNTED_TEXTS = {
    Discounted.LEAD_SPINS: "the first thread of {who} spins, as this library waits",
    Discounted.SIDES_SPIN: "side threads of {who} spin, as their library waits",
    Discounted.SIDES_NAP: "side threads of {who} poll every few milliseconds, as before this wait",
    Discounted.SIDES_WAKE: "side threads of {who} wake for moments, as while the job trained",
    Discounted.CHILD_WAKES: "a child of {who} wakes for moments, as while the job trained",
    Discounted.CHILD_USUAL: "a child of {who} does not clearly more than while the job trained",
    Discounted.CHILD_BRIEF: "a child of {who}: those of this name ended within seconds while the job trained",
    Discounted.CHILD_SPINS: "a child of {who} is in a tight loop",
    Discounted.TELEMETRY: "messages of {who} to an address outside, as while the job trained",
    Discounted.UNKNOWN: "something of {who}, for a reason that a newer version knows",
}


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
    """Bytes that the peer can still receive."""
    backoff: int = 0
    """How often the retransmission time-out has doubled without an answer."""
    sent_age_s: float | None = None
    """Seconds since data was last sent; None if never."""
    payload: bool = False
    """It carries data of the training from rank to rank."""
    broken_age_s: float | None = None
    """Seconds since its retransmissions began to go unanswered; None while they are answered, and from agents that do
    not report it."""

    def later(self, by_s: float) -> SocketSnapshot:
        """The same snapshot `by_s` seconds later."""
        if self.sent_age_s is None and self.broken_age_s is None:
            return self
        sent_s, broken_s = _later(self.sent_age_s, by_s), _later(self.broken_age_s, by_s)
        return replace(self, sent_age_s=sent_s, broken_age_s=broken_s)


@dataclass(frozen=True, slots=True)
class StopSignal:
    """The stop signal in force for a process, and who sent it."""

    signal: int
    sender_pid: int = 0
    """Zero when the kernel itself sent it."""
    sender: str | None = None
    from_outside: bool = False
    """The sender was in another pid namespace: in another container, or on the host. False if that is unknown."""


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """The GPUs that a rank computes on, all together."""

    devices: tuple[str, ...]
    """PCI addresses of the GPUs."""
    use: GpuUse
    use_age_s: float = 0.0
    """Seconds since all of them have been in this use."""
    power_w: float | None = None

    def later(self, by_s: float) -> GpuSnapshot:
        """The same snapshot `by_s` seconds later."""
        return replace(self, use_age_s=self.use_age_s + by_s)


@dataclass(frozen=True, slots=True)
class EffortRates:
    """Recent maximum of each kind of effort during a wait, in units of the smallest effort that counts.

    The usual effort of the process is included. It is known of some ranks sooner than of others.
    """

    compute: float = 0.0
    storage: float = 0.0
    children: float = 0.0

    def of(self, effort: Effort) -> float:
        """Rate of one kind of effort, in units of the smallest effort that counts."""
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
    """Uid of its pod; empty outside a cluster."""
    tid: int | None = None
    """Thread that its state is read from; None for its first one."""
    rank: int | None = None
    pid_inside: int = 0
    """Pid in its own pid namespace, by which NCCL knows it; 0 if unknown, and for processes that are no rank."""
    world_size: int | None = None
    """Number of ranks in the whole job, as its own environment says; None if unknown."""
    text: str = ""
    """The system call it is in, in words."""
    age_s: float = 0.0
    """Seconds in this state, as far as known."""
    threshold_s: float | None = None
    """Learned silence in seconds from which on it has stalled; None for helpers and for ranks that have ended."""
    sent_age_s: float | None = None
    """Seconds since it sent payload to another rank; None if never, or unknown."""
    received_age_s: float | None = None
    """Seconds since more than heartbeats arrived over its connections; None if never, or unknown."""
    proven: bool = False
    """The state itself proves that it will not end (a suspended device, a frozen file system)."""
    effort: Effort | None = None
    """Kind of work during its wait that exceeds its usual work; None if there is none."""
    effort_rate: float = 0.0
    """Amount of this effort, in units of the smallest effort of its kind."""
    effort_rates: EffortRates | None = None
    """Rates of all kinds of effort, including those too small to count; None from agents that do not report them."""
    wait: State | None = None
    """The wait of its lead thread if `state` is an effort made during that wait. None if they are the same, and from
    agents that do not distinguish them."""
    awaits: Endpoint | None = None
    """Far end of the one TCP connection that it waits for; None if that is another process of the job."""
    beside: tuple[str, ...] = ()
    """What its side threads wait for since its own wait began: a timer, storage, a service, another program."""
    holder: int | None = None
    """Thread of this process that owns the lock that its lead thread waits for; None if unknown."""
    sides_read: bool = False
    """All its side threads were sampled during its wait, so it is known which of them it may wait for."""
    inert_s: float | None = None
    """Seconds in which it did nothing except use a CPU; None while unknown."""
    rests: bool = False
    """It sleeps as it did while the job was healthy: a monitor, which neither works nor waits for the others."""
    sends_alike: bool | None = None
    """While the job was healthy it sent at the same time as the other ranks here; None if unknown."""
    timed: bool = False
    """Its wait has a time-out, whether or not the time left is known."""
    retries: bool = False
    """It sleeps and has slept before in this wait, so no timer ends the wait; False from agents that do not report
    it."""
    ends_in_s: float | None = None
    """Seconds until its wait ends by itself; negative if it has slept again since. None where it does not, or that was
    not read."""
    discounted: tuple[Discounted, ...] = ()
    """What runs in it during its wait and explains none, each kind once; empty for processes that are no rank, and from
    agents that do not report it. No judgement reads it."""
    thread_read: bool = False
    """Its thread was read during this wait; threads that use a CPU are not read."""
    waits_for: tuple[Pid, ...] = ()
    """Processes of the job that it waits for, through a pipe, socket, lock or wait()."""
    writes: bool = False
    """It waits until its output into a pipe or Unix socket is read; False from agents that do not report it."""
    stack: tuple[str, ...] = ()
    python: tuple[PythonFrame, ...] = ()
    """Frames of its lead thread in its Python program, as `odd_stack.innermost` cuts them; empty if not read."""
    known_wait: bool = False
    """A wait with this stack ended by itself while the job was healthy."""
    joined: bool = False
    """Recognised as a rank by parent or behaviour, so it counts even without a rank number."""
    exit: str | None = None
    """"code N", "signal N" or "unknown", once it has ended."""
    stop_signal: StopSignal | None = None
    sockets: tuple[SocketSnapshot, ...] = ()
    network_busy: bool | None = None
    """Whether a network thread of NCCL burns a CPU; None if none was ever seen to do so."""
    gpu: GpuSnapshot | None = None
    """None if its GPUs are not read, or it has none."""

    @property
    def connections(self) -> Iterable[SocketSnapshot]:
        return self.sockets

    @property
    def has_failed(self) -> bool:
        """True if it ended by a signal or with an error."""
        return self.exit is not None and self.exit not in (_CLEAN, _UNKNOWN_EXIT)

    def capped(self, age_s: float) -> RankSnapshot:
        """The same snapshot with its age limited to `age_s`: the time before that cannot be judged."""
        return replace(self, age_s=min(self.age_s, age_s)) if age_s < self.age_s else self

    def later(self, by_s: float) -> RankSnapshot:
        """The same snapshot `by_s` seconds later."""
        return replace(
            self,
            age_s=max(self.age_s, 0.0) + by_s,
            sent_age_s=_later(self.sent_age_s, by_s),
            received_age_s=_later(self.received_age_s, by_s),
            inert_s=_later(self.inert_s, by_s),
            ends_in_s=None if self.ends_in_s is None else self.ends_in_s - by_s,
            sockets=tuple(socket.later(by_s) for socket in self.sockets),
            gpu=self.gpu and self.gpu.later(by_s),
        )


def exit_text(signal: int, code: int, *, known: bool) -> str:
    """Text of an exit, in the form of `RankSnapshot.exit`."""
    if not known:
        return _UNKNOWN_EXIT
    return f"signal {signal}" if signal else f"code {code}"


def _later(age_s: float | None, by_s: float) -> float | None:
    return None if age_s is None else max(age_s, 0.0) + by_s


@dataclass(frozen=True, slots=True)
class RankPace:
    """Recent positions of one rank, counted pass by pass."""

    pid: int
    waits: float
    """Share of the passes in which it waited for others, 0 to 1."""
    passes: int
    """Number of passes that the share was counted over."""
    rank: int | None = None
    pod_uid: str = ""
    cause: Cause | None = None
    """Known reason why it is slow; None if there is none."""
    places: str = ""
    """Where it was in the last slots of passes, as `diagnosis.clock.rank_pace` encodes it; empty if unknown."""
    slot: int = 0
    """Number of the slot that the last letter of `places` belongs to."""
