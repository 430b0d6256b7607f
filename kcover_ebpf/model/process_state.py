"""The state of one process at one moment: it works, it waits, or it cannot continue by itself.

The states fall into groups: *effort* (it works, and others may wait for it), *patience* (it waits for something outside
the job that may well arrive), *waiting* (for other ranks or its own children) and *stuck* (nothing that the job can do
ends this).
"""

from __future__ import annotations

from enum import Enum

from kcover_ebpf.tunables.diagnosis import DEVICE_BELIEVED_S, FAULTING_BELIEVED_S, OTHER_BELIEVED_S


class State(Enum):
    """The state of the lead thread of a process; the value is what reports carry, `text` is for people."""

    # members are compared by identity; Enum's own is a call of Python for each look-up
    __hash__ = object.__hash__

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
    HELPED = "waiting for a thread that waits for others"
    OUTSIDE = "waiting for a service outside the job"
    LEFT = "left"
    GONE = "gone"
    DUMPING = "dumping core"
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
    UNKNOWN = OTHER
    """A state that a newer agent reports and this version does not know."""

    @property
    def text(self) -> str:
        """The state in words. It differs from the value where only the wire format still needs the old value."""
        return _TEXTS.get(self, self.value)


_TEXTS = {
    State.TRACED: "stopped by a debugger",
    State.READ: "waiting for data that is never sent",
    State.CHILDREN: "waiting for children that are working",
    State.SLEEP_LONG: "sleeping without a time limit",
}
EFFORT = frozenset(
    {State.MOVING, State.COMPUTING, State.STORING, State.CHILDREN, State.SLEEPING, State.USER}
)
"""Legitimate work: ranks in these states explain why others wait."""
STOPPED = frozenset({State.STOPPED, State.FROZEN, State.TRACED})
STUCK = frozenset(
    {State.SLEEP_LONG, State.READ, State.LOCK, State.STORAGE, State.DEVICE, State.FAULTING}
    | {State.SPINNING, State.OTHER}
)
WAITING = frozenset({State.PEERS, State.FUTEX, State.ON_DEVICE, State.NAPPING})
"""Waiting for other ranks, or for a device that waits for theirs. These states explain nothing and are no fault of this
rank."""
SOON_S = {
    State.FAULTING: FAULTING_BELIEVED_S,
    State.DEVICE: DEVICE_BELIEVED_S,
    State.OTHER: OTHER_BELIEVED_S,
}
"""Seconds: how long a usually short wait is accepted, whatever this job's step time."""


class Effort(Enum):
    """Kinds of work that explain why others wait."""

    # members are compared by identity; Enum's own is a call of Python for each look-up
    __hash__ = object.__hash__

    COMPUTE = "compute"
    UNKNOWN = COMPUTE
    """Value read for a kind of effort that a newer agent reports and this version does not know."""
    STORAGE = "storage"
    CHILDREN = "children"
