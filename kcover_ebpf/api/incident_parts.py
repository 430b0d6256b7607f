"""Parts of an incident besides the verdict: the job's size, its work, its crashes, its stuck pods. Pure."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from kcover_ebpf.api.codec import wire
from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JobSize:
    """Size of a job when its incident began, recorded so that the cost survives job and pods."""

    gpus: int = 0
    """Whole GPUs in the limits of its pods; GPUs allocated by DRA are not counted."""
    product: str | None = None
    """Product name of most of them, from a node label; None if no label states it."""
    hour_price: float | None = None
    """Price of one GPU per hour, from the operator's list; None if the list lacks the product."""
    currency: str | None = None
    created_s: float | None = field(default=None, metadata=wire("jobCreatedAt", time=True))
    """When the job was created (unix seconds, clock of the API server)."""

    def gpu_hours(self, seconds: float) -> float:
        """GPU hours of the whole job during this many seconds."""
        return self.gpus * seconds / 3600.0

    def price_of(self, seconds: float) -> float | None:
        """Price of this many GPU hours; None if unknown."""
        return None if self.hour_price is None else self.gpu_hours(seconds) * self.hour_price


@dataclass(frozen=True, slots=True)
class LoggedWork:
    """Progress of the job at the fault, from its logs, and steps repeated afterwards: the cost of a restart."""

    step: int | None = None
    """Last step printed before the fault."""
    unsaved_steps: int | None = None
    """Steps since the last checkpoint reported complete; None if none is known."""
    redone_steps: int | None = None
    """Steps that the restarted job repeated; None while it has printed none, or if unknown."""
    step_s: float | None = None
    """Mean seconds per step, from the times of the log lines."""
    loss: float | None = None
    tokens: int | None = None
    """Tokens processed before the fault, as the training counts them."""

    @property
    def lost_steps(self) -> int | None:
        """Steps that a restart repeats: as observed, otherwise those since the last checkpoint."""
        return self.unsaved_steps if self.redone_steps is None else self.redone_steps

    @property
    def lost_s(self) -> float | None:
        """Seconds of training that those steps took; None if either is unknown."""
        if self.lost_steps is None or self.step_s is None:
            return None
        return self.lost_steps * self.step_s


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """Identity of one crash, for comparison with the next crash of the same job; contains no text of a log."""

    fingerprint: str
    """Hash of all tracebacks that the program wrote when it failed."""
    pod_uid: str
    start: int
    """Start number of the container, see `ContainerLog`: another crash has another start, or another pod."""
    time_s: float = field(metadata=wire("time", time=True))
    rules: tuple[str, ...] = ()
    """Names of the log rules that the last lines of the tracebacks matched."""
    node: str | None = None
    place: str | None = None
    step: int | None = None
    epoch: int | None = None
    after_s: float | None = None
    """Seconds from the first line of the log to the crash."""


class StuckState(Enum):
    """What is known about a pod that is stuck in deletion."""

    UNKNOWN = "Unknown"
    """Its kubelet does not answer, so its processes may run."""
    UNKILLABLE = "Unkillable"
    """Its kubelet answers and cannot end it."""
    PROVEN = "Proven"
    """None of its processes can run any more."""
    KEPT = "Kept"
    """Its containers have ended, and a finalizer keeps its object."""


@dataclass(frozen=True, slots=True)
class StuckPod:
    """A pod that is stuck in deletion."""

    pod: str
    node: str
    state: StuckState
    known: tuple[str, ...] = ()
    """Reasons for the state, as sentences."""
    next: str = ""
    """What comes next, or what a person can do."""
