"""What is remembered of a job across restarts of the agent, and of the job itself. Pure.

The silences that ended by themselves, how long its start and its steps are silent, and the places where its ranks
waited while they were healthy (module and offset; a rebuilt library has other offsets, so that its waits are learned
anew).
"""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.silences import Silences
from kcover_ebpf.diagnosis.history.stacks import KnownWaits


@dataclass(slots=True)
class JobMemory:
    """The record of one job, by its name: each of its incarnations continues it."""

    silences: Silences = field(default_factory=Silences)
    waits: KnownWaits = field(default_factory=KnownWaits)
    start_s: float = 0.0
    """The longest silence of a rank before the job trained, in the last start; 0 before the first."""
    step_s: float = 0.0
    """The longest silence of a healthy rank while the job trained, of those that its pace remembers; 0 before any."""
