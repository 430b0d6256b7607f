"""What is said about a job: the vocabulary of verdicts, causes and evidence, and which evidence is independent."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from kcover_ebpf.dataclass import dataclass, replace
from kcover_ebpf.tunables.sampling import ACTS_MOVED_S


class VerdictKind(Enum):
    """The verdicts (docs/concepts.md explains each)."""

    HUNG = "HUNG"
    DEADLOCK = "DEADLOCK"
    LOST_LINK = "LOST_LINK"
    DEVICE_FAULT = "DEVICE_FAULT"
    CRASHED = "CRASHED"
    SLOW = "SLOW"
    WORKING = "WORKING"
    UNKNOWN = "UNKNOWN"

    @property
    def is_fault(self) -> bool:
        """True for the verdicts after which a job does not continue by itself."""
        return self in (
            VerdictKind.HUNG,
            VerdictKind.DEADLOCK,
            VerdictKind.LOST_LINK,
            VerdictKind.DEVICE_FAULT,
            VerdictKind.CRASHED,
        )


class FailureClass(Enum):
    """Where the cause of a fault lies, as far as known."""

    HARDWARE = "hardware"
    """A device, its driver, or the node."""
    NETWORK = "network"
    STORAGE = "storage"
    PROGRAM = "program"
    """The program, its input, or the memory that it was given."""
    UNKNOWN = "unknown"


class Certainty(Enum):
    """How sure a verdict is that the job does not continue by itself; it decides when an armed job may be ended.

    docs/decisions/0016 says what belongs where.
    """

    ANNOUNCED = "announced"
    """The kernel, a driver or the collective library said so: acts at once."""
    PROVEN = "proven"
    """No process of the job can end it: acts after a short confirmation."""
    INFERRED = "inferred"
    """One rank is the sink of all waits and nothing in its tree makes an effort: acts after the job's own patience."""
    SUSPECTED = "suspected"
    """Something else may end it: never acts, unless the policy has a hard limit."""
    UNKNOWN = SUSPECTED
    """A word that a newer agent reports and this version does not know."""


class Cause(Enum):
    """Why; a closed list, the value is the text used in JSON, metrics and CRDs."""

    # announced
    EXITED = "exited"
    KILLED = "killed"
    OOM_KILLED = "oom_killed"
    ABORTED = "aborted"
    SEGFAULT = "segfault"
    LEFT_EARLY = "left_early"
    TIMED_OUT = "timed_out"
    DEVICE = "device"
    PREFLIGHT = "preflight"
    # not judged
    REQUESTED = "requested"
    # a culprit that does nothing
    STOPPED = "stopped"
    FROZEN = "frozen"
    BLOCKED_LOCK = "blocked_lock"
    BLOCKED_SLEEP = "blocked_sleep"
    BLOCKED_READ = "blocked_read"
    BLOCKED_UNKNOWN = "blocked_unknown"
    SPINNING = "spinning"
    STORAGE = "storage"
    DRIVER_STUCK = "driver_stuck"
    LOADER_STUCK = "loader_stuck"
    LOADER_DIED = "loader_died"
    MISSING_RANK = "missing_rank"
    # between ranks
    LINK = "link"
    PEER_GONE = "peer_gone"
    COLLECTIVE_MISMATCH = "collective_mismatch"
    WAIT_CYCLE = "wait_cycle"
    NOT_IN_COLLECTIVE = "not_in_collective"
    COLLECTIVE_STUCK = "collective_stuck"
    COLLECTIVE_FAILED = "collective_failed"
    DEVICE_WAIT = "device_wait"
    # slow
    CPU_THROTTLED = "cpu_throttled"
    MEMORY_PRESSURE = "memory_pressure"
    SLOW_RANK = "slow_rank"
    SLOW_JOB = "slow_job"
    # legitimate quiet phases
    TRAINING = "training"
    CHECKPOINT = "checkpoint"
    COMPUTING = "computing"
    LOADING = "loading"
    STARTING = "starting"
    WAITING_FOR_USER = "waiting_for_user"
    SLEEPING = "sleeping"
    DEBUGGER = "debugger"
    SUSPENDED = "suspended"
    ENDING = "ending"
    UNKNOWN = "unknown"


_STUCK = frozenset(
    {
        Cause.STOPPED,
        Cause.FROZEN,
        Cause.BLOCKED_LOCK,
        Cause.BLOCKED_SLEEP,
        Cause.BLOCKED_READ,
        Cause.BLOCKED_UNKNOWN,
        Cause.SPINNING,
        Cause.STORAGE,
        Cause.DRIVER_STUCK,
        Cause.LOADER_STUCK,
        Cause.LOADER_DIED,
        Cause.LEFT_EARLY,
        Cause.MISSING_RANK,
        Cause.PEER_GONE,
        Cause.WAIT_CYCLE,
        Cause.NOT_IN_COLLECTIVE,
        Cause.COLLECTIVE_FAILED,
        Cause.COLLECTIVE_STUCK,
        Cause.DEVICE_WAIT,
        Cause.KILLED,
        Cause.UNKNOWN,
    }
)
_DIED = frozenset(
    {
        Cause.EXITED,
        Cause.KILLED,
        Cause.OOM_KILLED,
        Cause.ABORTED,
        Cause.SEGFAULT,
        Cause.LEFT_EARLY,
        Cause.TIMED_OUT,
        Cause.LOADER_DIED,
        Cause.COLLECTIVE_MISMATCH,
        Cause.UNKNOWN,
    }
)
RAISED = frozenset({Cause.EXITED, Cause.ABORTED})
"""Of those that died: a rank that ended itself, so that a traceback may explain it, or what another rank did."""
_SLOWED = frozenset(
    {
        Cause.SLOW_RANK,
        Cause.SLOW_JOB,
        Cause.CPU_THROTTLED,
        Cause.MEMORY_PRESSURE,
        Cause.LINK,
    }
)
_QUIET = frozenset(
    {
        Cause.TRAINING,
        Cause.CHECKPOINT,
        Cause.COMPUTING,
        Cause.LOADING,
        Cause.STARTING,
        Cause.WAITING_FOR_USER,
        Cause.SLEEPING,
        Cause.DEBUGGER,
        Cause.SUSPENDED,
        Cause.ENDING,
    }
)
CAUSES: Mapping[VerdictKind, frozenset[Cause]] = {
    VerdictKind.HUNG: _STUCK,
    VerdictKind.DEADLOCK: frozenset({Cause.COLLECTIVE_MISMATCH}),
    VerdictKind.LOST_LINK: frozenset({Cause.LINK}),
    VerdictKind.DEVICE_FAULT: frozenset({Cause.DEVICE, Cause.PREFLIGHT}),
    VerdictKind.CRASHED: _DIED,
    VerdictKind.SLOW: _SLOWED,
    VerdictKind.WORKING: _QUIET,
    VerdictKind.UNKNOWN: _STUCK
    | {Cause.COLLECTIVE_MISMATCH, Cause.CPU_THROTTLED}
    | {Cause.COMPUTING, Cause.LOADING, Cause.CHECKPOINT, Cause.SLEEPING, Cause.ENDING}
    | {Cause.REQUESTED},
}
"""Every pair of verdict and cause that there is: metrics have them from the start, and no judgement makes another.

What is UNKNOWN has the cause of what it may be (a process alone, or one of a job that was seen only once).
"""


class EvidenceKind(Enum):
    """Ways of knowing. How many there are says nothing: one new phase of a healthy job shows most of them at once."""

    EVENT = "event"
    """The kernel announced it: exit, signal, out of memory."""
    TIME = "time"
    """No progress for longer than this job ever was silent while healthy."""
    SINK = "sink"
    """Where the thread at the end of the wait chain is, and for how long."""
    STATE = "state"
    """A state that no process of the job can end: stopped or frozen alone, a sleep without end, a circle of
    locks, storage that answers no process.
    """
    EDGE = "edge"
    """Bytes, queues and times of connections between processes."""
    STACK = "stack"
    """Where code waits, compared with the other ranks and with healthy times."""
    PEERS = "peers"
    """All other ranks wait."""
    COLLECTIVE = "collective"
    """How many operations each rank launched, by the job's own NCCL."""
    GPU = "gpu"
    """What the GPUs of the ranks are used for: a GPU that does nothing is silent for as long as its rank."""
    LOG = "log"
    """What the job's own logs show: it classifies a fault."""
    OUTLIER = "outlier"
    """The one rank whose Python stack differs from that of all others: it explains a fault."""
    APART = "apart"
    """What is well, and would be ended with the job that is at fault: it waits for none of its ranks."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation that supports a verdict, as a sentence a human can check."""

    kind: EvidenceKind
    text: str
    node: str | None = None
    """The node that reports it; None outside a cluster."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Which rank, pod, node or device is at fault; every field is None where it is not known."""

    rank: int | None = None
    pid: int | None = None
    tid: int | None = None
    host: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    node: str | None = None
    device: str | None = None
    or_rank: int | None = None
    """The rank at the other end, where the fault lies between two and either may be it."""


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread in a table: of which process and rank it is."""

    rank: int | None
    pid: int
    tid: int
    comm: str
    role: str
    """rank, loader, launcher, compiler, helper."""


@dataclass(frozen=True, slots=True)
class WaitRow(ThreadRow):
    """One thread of interest in a verdict's table: what it waits for, since when."""

    wait: str
    """The call decoded for people, like "futex(untimed) in futex_wait_queue" or "running"."""
    since_s: float
    """Seconds in it."""
    note: str = ""
    """culprit, victim, or empty."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about one job at one moment. All its times are unix seconds of one clock, that of its host.

    A node's verdict has the node's clock. `ReceivedReport.verdict` has it by the clock of the receiver.
    """

    kind: VerdictKind
    cause: Cause
    time_s: float = 0.0
    """That moment."""
    since_s: float = 0.0
    """When the fault (or the quiet phase) began."""
    job: str = ""
    """Its name for people; empty in a report, which names the job itself."""
    incident: str = ""
    """Stable while the same fault lasts; empty for WORKING without an incident, and in a report."""
    culprit: Culprit | None = None
    evidence: tuple[Evidence, ...] = ()
    victims: tuple[int, ...] = ()
    deadline_s: float | None = None
    """When the framework itself would have given up; None when unknown."""
    unobserved: tuple[str, ...] = ()
    """What could not be seen and might change the verdict."""
    waits: tuple[WaitRow, ...] = ()
    factor: float | None = None
    """SLOW only: how many times slower than its peers."""
    graph: tuple[str, ...] = ()
    """Who waits for whom, and what does not count as work; lines for people."""
    certainty: Certainty | None = None
    """None where nothing is wrong, and for SLOW."""
    acts_at_s: float | None = None
    """When an armed job is ended if nothing moves until then; None: never for this verdict as it is."""
    acts_why: str = ""
    """Why then, and not earlier; a clause for people."""

    @property
    def opens_incident(self) -> bool:
        """True for what is reported as an incident: a fault, a slow rank, a stall with a suspect, a request."""
        named = self.kind is VerdictKind.UNKNOWN and self.culprit is not None
        requested = self.cause is Cause.REQUESTED
        return self.kind.is_fault or self.kind is VerdictKind.SLOW or named or requested

    @property
    def is_announced(self) -> bool:
        """The kernel, a driver or the control plane said it, so it need not hold for a while."""
        if self.certainty is None:
            # from an agent that does not say
            return any(evidence.kind is EvidenceKind.EVENT for evidence in self.evidence)
        return self.certainty is Certainty.ANNOUNCED

    def shifted(self, by_s: float) -> Verdict:
        """The same by a clock that is `by_s` seconds ahead."""
        deadline_s = None if self.deadline_s is None else self.deadline_s + by_s
        acts_at_s = None if self.acts_at_s is None else self.acts_at_s + by_s
        return replace(
            self, since_s=self.since_s + by_s, deadline_s=deadline_s, acts_at_s=acts_at_s
        )

    def same_as(self, other_verdict: Verdict | None) -> bool:
        """True when a reader would learn nothing new: verdict, certainty, culprit rank, process and cause are equal."""
        if other_verdict is None:
            return False
        return _said(self) == _said(other_verdict)

    def acts_otherwise(self, reported_verdict: Verdict | None) -> bool:
        """True if the moment of `reported_verdict`, the same verdict as reported before, must be corrected.

        One that moves later, as with each line of a log, is reported only when the moment that was reported is near.
        """
        if reported_verdict is None or self.acts_at_s == reported_verdict.acts_at_s:
            return False
        reported_s, now_s = reported_verdict.acts_at_s, self.acts_at_s
        if reported_s is None or now_s is None or now_s <= reported_s - ACTS_MOVED_S:
            return True
        return now_s >= reported_s + ACTS_MOVED_S and self.time_s >= reported_s - ACTS_MOVED_S

    def explains_more_than(self, other_verdict: Verdict | None) -> bool:
        """True where it names the rank that is elsewhere than the others, and `other_verdict`, reported before, does not."""  # noqa: E501
        return other_verdict is not None and _outliers(self) > _outliers(other_verdict)


def _said(verdict: Verdict) -> tuple[object, ...]:
    return verdict.kind, verdict.cause, verdict.certainty, verdict.incident, _who(verdict)


def _outliers(verdict: Verdict) -> int:
    return sum(evidence.kind is EvidenceKind.OUTLIER for evidence in verdict.evidence)


def _who(verdict: Verdict) -> tuple[int | None, int | None] | None:
    return None if verdict.culprit is None else (verdict.culprit.rank, verdict.culprit.pid)
