"""What a process does beside the wait of its lead thread, and how much of that is more than it always does. Pure.

Threads that wake for nothing, log lines and telemetry continue while a job hangs, so they explain no wait. What a
process does in healthy times is learned here, what its peers do meanwhile is compared by `control_group`. Neither
discounts work that burns a good part of a CPU, or moves files: that is what a step, an evaluation or a checkpoint looks
like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from statistics import median

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.process_state import Effort
from kcover_ebpf.tunables.certainty import (
    BACKGROUND_CPUS,
    BACKGROUND_FILE_BYTES_S,
    BACKGROUND_INTERVALS,
    BACKGROUND_NEEDED,
    EFFORT_FACTOR,
)
from kcover_ebpf.tunables.diagnosis import COMPUTE_SHARE, STORAGE_CALLS_RATE, STORAGE_RATE


@dataclass(frozen=True, slots=True)
class Used:
    """What one process used between two totals."""

    side_cpus: float = 0.0
    """CPUs of all threads but the lead, and but those that burn a CPU in waiting."""
    file_bytes_s: float = 0.0
    """From and to storage."""
    call_bytes_s: float = 0.0
    """In read and write calls of any kind of file."""


@dataclass(slots=True)
class Background:
    """What one process used in healthy times."""

    _healthy: deque[Used] = field(default_factory=lambda: deque(maxlen=BACKGROUND_INTERVALS))
    _usually_used: Used | None = None
    """What is no more than usual; None until it is asked for after something was learned."""

    @property
    def is_known(self) -> bool:
        """True once enough healthy intervals were seen."""
        return len(self._healthy) >= BACKGROUND_NEEDED

    def learn(self, used: Used) -> None:
        """Take what was used in a healthy interval."""
        self._healthy.append(used)
        self._usually_used = None

    def beyond(self, used: Used) -> Mapping[Effort, float]:
        """How much more was used than in healthy times: by kind of effort, in the smallest one that counts."""
        usual = self._usually_used = self._usually_used or self._usual()
        storage = max(
            (used.file_bytes_s - usual.file_bytes_s) / STORAGE_RATE,
            (used.call_bytes_s - usual.call_bytes_s) / STORAGE_CALLS_RATE,
        )
        cpus = used.side_cpus - usual.side_cpus
        return {Effort.COMPUTE: cpus / COMPUTE_SHARE, Effort.STORAGE: storage}

    def _usual(self) -> Used:
        if not self.is_known:
            return Used()
        healthy = self._healthy
        return Used(
            _capped([past.side_cpus for past in healthy], BACKGROUND_CPUS),
            _capped([past.file_bytes_s for past in healthy], BACKGROUND_FILE_BYTES_S),
            _capped([past.call_bytes_s for past in healthy], BACKGROUND_FILE_BYTES_S),
        )


def _capped(past: list[float], most: float) -> float:
    return min(EFFORT_FACTOR * median(past), most)
