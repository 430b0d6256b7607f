"""The clock of progress that a job's own log is. Pure.

A program can print a line while no rank moves, so this clock never begins a fault and never shortens the time that a
job is given. It puts off the end of a job for an inference or a suspicion: where a step was printed after the last
sign of the ranks, the silence is younger than they show; a phase that the program announced may take its time, which
the operator bounds. What was announced, or is proven, needs no clock.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogClock:
    """What the log says, on the clock of the verdict's times; the default knows nothing, and changes nothing."""

    moved_s: float | None = None
    """Unix seconds at which a step or an expected line was printed last."""
    phase_until_s: float | None = None
    """Unix seconds at which the last announced phase is over."""

    def silent_since_s(self, silent_since_s: float, now_s: float) -> float:
        """When the job fell silent, by the ranks and the log together; never before `silent_since_s`."""
        if self.moved_s is None:
            return silent_since_s
        return max(silent_since_s, min(self.moved_s, now_s))

    def ends_s(self, ends_s: float) -> tuple[float, str]:
        """When a job is ended that would be ended then, and why so late; never earlier."""
        if self.phase_until_s is None or self.phase_until_s <= ends_s:
            return ends_s, ""
        return self.phase_until_s, "its program announced a phase that may take until then"


UNKNOWN = LogClock()
"""No log is read."""
