"""What an incident keeps of its job beside the verdict: its size, its work, its crashes, its stuck pods. Pure."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from kcover_ebpf.api.codec import wire
from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JobSize:
    """What a job occupied when its incident began, so that the cost outlives job and pods."""

    gpus: int = 0
    """Whole GPUs that the limits of its pods name; those that are allocated by DRA are not among them."""
    product: str | None = None
    """Model of most of them, as a label of their nodes says; None where none does."""
    hour_price: float | None = None
    """Of one GPU for an hour, from the operator's list; None where the list does not have it."""
    currency: str | None = None
    created_s: float | None = field(default=None, metadata=wire("jobCreatedAt", time=True))
    """Unix seconds, by the API server's clock."""

    def gpu_hours(self, seconds: float) -> float:
        """What so many seconds of the whole job are."""
        return self.gpus * seconds / 3600.0

    def price_of(self, seconds: float) -> float | None:
        """What these cost; None where the price is not known."""
        return None if self.hour_price is None else self.gpu_hours(seconds) * self.hour_price


@dataclass(frozen=True, slots=True)
class LoggedWork:
    """How far the job had come at the fault, by its logs, and what was done again after it: what a restart costs."""

    step: int | None = None
    """The last that was printed before the fault."""
    unsaved_steps: int | None = None
    """Steps since the last checkpoint that was said to be complete; None where none is known."""
    redone_steps: int | None = None
    """Steps that the start after the restart did again; None while it has printed none, or where it cannot be known."""
    step_s: float | None = None
    """Mean seconds of a step, by the times of the lines."""
    loss: float | None = None
    tokens: int | None = None
    """That the training had taken, as it counts them."""

    @property
    def lost_steps(self) -> int | None:
        """Those that a restart does again: as they were seen to be, else since the last checkpoint."""
        return self.unsaved_steps if self.redone_steps is None else self.redone_steps

    @property
    def lost_s(self) -> float | None:
        """Seconds of training that they had taken; None where either is not known."""
        if self.lost_steps is None or self.step_s is None:
            return None
        return self.lost_steps * self.step_s


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """What identifies one crash, to be compared with the next one of the same job; nothing of what a log said."""

    fingerprint: str
    """Those of all tracebacks that the program wrote when it failed."""
    pod_uid: str
    start: int
    """Of the container, see `ContainerLog`: another crash is another start, or another pod."""
    time_s: float = field(metadata=wire("time", time=True))
    rules: tuple[str, ...] = ()
    """That their last lines matched."""
    node: str | None = None
    place: str | None = None
    step: int | None = None
    epoch: int | None = None
    after_s: float | None = None
    """Seconds from its first line in the log."""


class StuckState(Enum):
    """What is known of a pod that was deleted and does not go."""

    UNKNOWN = "Unknown"
    """Whether its processes run: its kubelet does not answer."""
    UNKILLABLE = "Unkillable"
    """Its kubelet answers and cannot end it."""
    PROVEN = "Proven"
    """That none of its processes computes any more."""
    KEPT = "Kept"
    """Its containers have ended, and a finalizer keeps its object."""


@dataclass(frozen=True, slots=True)
class StuckPod:
    """A pod that was deleted and does not go."""

    pod: str
    node: str
    state: StuckState
    known: tuple[str, ...] = ()
    """What that rests on, as sentences."""
    next: str = ""
    """What comes next, or what a person can do."""
