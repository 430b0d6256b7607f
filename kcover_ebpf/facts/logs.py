"""Progress of a job as its log shows it.

The rules of `facts` apply. A line is only the program's own claim: it may delay the end of a job and never hastens it,
except for a rule that the job's owner wrote for that purpose.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BrokenLogRule:
    """A rule of the job's policy that its log breaks."""

    text: str
    """The violation in a sentence that contains no text of the log."""
    since_ns: int
    """Boottime since which it is broken."""
    restarts: bool = False
    """True if the policy restarts the job for it; else it is only observed."""


@dataclass(frozen=True, slots=True)
class LogSeen:
    """Findings so far in the log of this start of the job."""

    boottime_ns: int
    """Boottime at which the log was read."""
    moved_ns: int | None = None
    """Boottime at which a step, or a line that a rule expects in time, was last printed; None if never."""
    phase_until_ns: int | None = None
    """Boottime at which the long phase ends that the program announced; None if it announced none."""
    broken: tuple[BrokenLogRule, ...] = ()
    step: int | None = None
    """Number of the last step that was printed; None if there was none."""
    unsaved_steps: int | None = None
    """Steps since the last checkpoint that was reported complete; None if there is none."""
    redone_steps: int | None = None
    """Steps of the previous start that this one repeats; None if unknown."""
