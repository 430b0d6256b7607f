"""What an Event asks for, and until when that holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.api.incident import Incident
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.recovery.restart.demand import RestartDemand, is_spent
from kcover_ebpf.tunables.controller import TRIGGER_S


@dataclass(frozen=True, slots=True)
class Trigger:
    """An Event that asks for a recovery, or for a restart."""

    at_s: float
    """Unix seconds: when it was written."""
    gang_verdict: GangVerdict
    demand: RestartDemand | None = None
    """What a person asks for; None where a program reports a fault."""

    def is_over(self, now_s: float, incidents: Iterable[Incident]) -> bool:
        """True once it is too old, or the restart that it asks for has begun; `incidents`: those of the gang."""
        if now_s - self.at_s >= TRIGGER_S:
            return True
        return self.demand is not None and is_spent(self.demand, incidents)
