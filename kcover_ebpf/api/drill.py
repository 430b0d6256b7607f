"""What a drill is: a fault that a person injects into a job that consents to it, and what is said about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from kcover_ebpf.dataclass import dataclass

CONSENT = "kcover.io/drill"
"""Label of a pod: "true" allows drills."""


class DrillFault(Enum):
    """What is done to one rank."""

    STOP = "stop"
    """SIGSTOP, taken back after a while."""
    KILL = "kill"
    """SIGKILL."""


class DrillEnd(Enum):
    """How an injected fault ended."""

    RESUMED = "resumed"
    """It was taken back."""
    GONE = "gone"
    """The process ended: by the fault itself, or by the restart of its job."""


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was injected."""

    fault: DrillFault
    pid: int
    """On the node."""
    time_s: float
    """Unix seconds, by the clock of the node."""
    rank: int | None = None
    """As the environment of the process says; None where it says nothing."""


@dataclass(frozen=True, slots=True)
class DrillOver:
    """The fault is over."""

    end: DrillEnd
    time_s: float
    """Unix seconds, by the clock of the node."""


def consents(labels: Mapping[str, str]) -> bool:
    """True for a pod that may be used for a drill."""
    return labels.get(CONSENT) == "true"
