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
    PARTITION = "partition"
    """No packet leaves or reaches the containers of its pod; let through again after a while."""
    SLOW = "slow"
    """Its containers get a third of the CPU time that they use; given back after a while."""
    LOG = "log"
    """An error of a broken GPU in its log, and SIGKILL: the incident should say hardware."""
    LOCK = "lock"
    """Its main thread waits for a lock that the drill holds; released after a while."""
    XID_NOTE = "xid-note"
    """The agent judges as if the driver had named it with an Xid 94, a contained memory error of its GPU."""


FAULTS_HELP = (
    "stop: SIGSTOP to a rank; lock: its main thread waits for a lock (x86-64); partition: no packet of its pod passes; "
    "slow: a third of its CPU time; these are taken back. kill: SIGKILL; log: an error of a GPU in its log, and "
    "SIGKILL; xid-note: the agent judges as if the driver had reported an Xid 94."
)
"""What each fault does, for people."""


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
