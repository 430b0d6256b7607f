"""What the log of a job shows of its progress, in our words.

Same rules as `facts`. A line is a program's own word: it may put off the end of a job, and never hastens it, but for a
rule that whoever owns the job wrote for that.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BrokenLogRule:
    """A rule of the job's policy that its log breaks."""

    text: str
    """What is wrong, in a sentence without any text of the log."""
    since_ns: int
    """From when on it is broken."""
    restarts: bool = False
    """The policy restarts the job for it; else it is observed."""


@dataclass(frozen=True, slots=True)
class LogSeen:
    """What the log of this start of the job shows so far."""

    boottime_ns: int
    """When it was read."""
    moved_ns: int | None = None
    """When a step, or a line that a rule expects in time, was printed last; None where none was."""
    phase_until_ns: int | None = None
    """When the long phase is over that the program announced; None where it announced none."""
    broken: tuple[BrokenLogRule, ...] = ()
    step: int | None = None
    """The last that was printed."""
    unsaved_steps: int | None = None
    """Steps since the last checkpoint that was said to be complete; None where none is known."""
    redone_steps: int | None = None
    """Steps of the start before that this one does again; None where that is not known."""
