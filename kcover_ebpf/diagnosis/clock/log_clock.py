"""Progress of a job according to its own log. Pure.

A program can print a line while no rank moves, so this clock never begins a fault and never shortens the time that a
job is given. It delays the end of a job for an inference or a suspicion. If a step was printed after the last sign of
the ranks, the silence is younger than they show. A phase that the program announced may take its time, within the
operator's limit. Announced and proven faults need no clock.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogClock:
    """Findings of the log, on the clock of the verdict's times. The default knows nothing and changes nothing."""

    moved_s: float | None = None
    """Unix seconds at which a step or an expected line was last printed; None if never."""
    phase_until_s: float | None = None
    """Unix seconds at which the last announced phase ends; None if there is none."""

    def silent_since_s(self, silent_since_s: float, now_s: float) -> float:
        """When the job fell silent, by the ranks and the log together; never before the given `silent_since_s`."""
        if self.moved_s is None:
            return silent_since_s
        return max(silent_since_s, min(self.moved_s, now_s))

    def ends_s(self, ends_s: float) -> tuple[float, str]:
        """When to end a job that would be ended at `ends_s`, and why later; the same time and no reason if no later."""
        if self.phase_until_s is None or self.phase_until_s <= ends_s:
            return ends_s, ""
        return self.phase_until_s, "its program announced a phase that may take until then"


UNKNOWN = LogClock()
"""Clock of a job whose log is not read; it changes nothing."""
