"""Vocabulary of drills: faults that a person injects into a job that consents to them, and their results. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from kcover_ebpf.dataclass import dataclass

CONSENT = "kcover.io/drill"
"""Label of a pod: "true" allows drills."""


class DrillFault(Enum):
    """Kinds of injected faults; each affects one rank."""

    STOP = "stop"
    """SIGSTOP to the rank; undone after a while."""
    KILL = "kill"
    """SIGKILL to the rank."""
    PARTITION = "partition"
    """No packet leaves or reaches the containers of its pod; undone after a while."""
    SLOW = "slow"
    """Its containers get a third of the CPU time that they use; undone after a while."""
    LOG = "log"
    """An error of a broken GPU in its log, and SIGKILL: the incident's class should be hardware."""
    LOCK = "lock"
    """Its main thread waits for a lock that the drill owns; released after a while."""
    XID_NOTE = "xid-note"
    """The agent judges as if the driver had reported an Xid 94 (contained memory error) for the rank."""


FAULTS_HELP = (
    "stop: SIGSTOP to a rank; lock: its main thread waits for a lock (x86-64); partition: no packet of its pod passes; "
    "slow: a third of its CPU time; these faults are undone at the end. kill: SIGKILL; log: an error of a GPU in its "
    "log, and SIGKILL; xid-note: the agent judges as if the driver had reported an Xid 94."
)
"""Explanation of the faults, for `--help`."""


class DrillEnd(Enum):
    """How an injected fault ended."""

    RESUMED = "resumed"
    """The fault was undone."""
    GONE = "gone"
    """The process ended: by the fault itself, or by the restart of its job."""


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was injected into a process."""

    fault: DrillFault
    pid: int
    """Pid in the node's pid namespace."""
    time_s: float
    """Time of the injection (unix seconds, clock of the node)."""
    rank: int | None = None
    """Rank number in the environment of the process; None if it has none."""


@dataclass(frozen=True, slots=True)
class DrillOver:
    """The end of an injected fault."""

    end: DrillEnd
    time_s: float
    """Time of the end (unix seconds, clock of the node)."""


def consents(labels: Mapping[str, str]) -> bool:
    """True for a pod that may be used for a drill."""
    return labels.get(CONSENT) == "true"
