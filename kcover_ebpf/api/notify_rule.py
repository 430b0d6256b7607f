"""Who is notified of which incidents, as a FaultPolicy says it. Pure."""

from __future__ import annotations

from kcover_ebpf.api.incident import FailureClass, Phase, Status
from kcover_ebpf.dataclass import dataclass

ALL_ENDS = frozenset({Phase.RECOVERED, Phase.OBSERVED, Phase.REFUSED, Phase.FAILED})
"""The first of these is said where a rule names no phases."""


@dataclass(frozen=True, slots=True)
class NotifyRule:
    """One rule: a target by its name on the operator's list, and of what it is notified."""

    target: str
    phases: tuple[Phase, ...] = ()
    """Each is said once for an incident; empty: one message, at the first phase that ends it."""
    classes: tuple[FailureClass, ...] = ()
    """Only incidents whose cause lies there; empty: any."""

    def means(self, status: Status, ends: frozenset[Phase] = ALL_ENDS) -> bool:
        """True if the phase of this status is to be said; `ends`: those that end an incident for the target."""
        if self.classes and (status.failure or FailureClass.UNKNOWN) not in self.classes:
            return False
        if self.phases:
            return status.phase in self.phases
        # what was over by itself before anything was done or refused interrupts no person
        went_by = status.phase is Phase.OBSERVED and status.closed_s is not None
        return status.phase in ends and not went_by
