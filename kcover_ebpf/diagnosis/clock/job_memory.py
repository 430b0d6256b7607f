"""What is remembered of a job across restarts of the agent, and of the job itself. Pure.

It contains the silences that ended by themselves, the longest silences of its start and of its steps, and the places
where its ranks waited while they were healthy: module, build id and offset. The waits of a rebuilt library are learned
again.
"""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.clock.silences import Silences, bounded_s
from kcover_ebpf.diagnosis.history.stacks import KnownWaits
from kcover_ebpf.model.silence_summary import SilenceSummary


@dataclass(slots=True)
class JobMemory:
    """The record of one job, keyed by its name: each of its starts continues it."""

    silences: Silences = field(default_factory=Silences)
    waits: KnownWaits = field(default_factory=KnownWaits)
    start_s: float = 0.0
    """Longest silence in seconds of a rank before the job trained, in its last start; 0 before the first."""
    step_s: float = 0.0
    """Longest remembered silence in seconds of a healthy rank while the job trained; 0 before any."""

    @property
    def is_empty(self) -> bool:
        """True if nothing was learned yet: the job has not trained while this memory was kept."""
        return not (self.silences.observed_s or self.silences.kept or self.step_s)

    def inherit(self, summary: SilenceSummary) -> None:
        """Begin with what other nodes reported of earlier starts; known waits are learned again."""
        self.silences = Silences.of(summary)
        self.start_s, self.step_s = bounded_s(summary.start_s), bounded_s(summary.step_s)
