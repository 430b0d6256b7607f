"""What the logs of a pod's containers show, as an agent reports it: names of rules, hashes and places, never a line.

A log may hold secrets, so no text of it leaves the node: meaning and advice are those of the rule, a traceback is a
hash of its frames with the file and line of the innermost one.
"""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One rule that lines of a log matched."""

    rule: str
    domain: str
    """hardware, driver, network, storage, memory or program."""
    severity: str
    """fatal, error, warning or info."""
    count: int
    """Lines of this start of the container."""
    age_s: float
    """Seconds before the report's time of the last of them, by the node's clock."""
    meaning: str = ""
    advice: str = ""
    generic: bool = False
    """It shows that a program failed, and not why."""
    follows: bool = False
    """It says what followed from a failure elsewhere: whoever prints it is a victim."""
    first_age_s: float | None = None
    """As `age_s`, of the first of them; None from an agent that does not report it."""


@dataclass(frozen=True, slots=True)
class LoggedTraceback:
    """A Python traceback: what identifies it, and nothing of what it said."""

    fingerprint: str
    """Hash of its frames (file, line, function) and the class of its error."""
    rule: str
    """The rule that its last line matched."""
    domain: str
    age_s: float
    place: str | None = None
    """FILE:LINE of its innermost frame outside of installed packages; the file without its folder."""
    step: int | None = None
    """The last step that the training printed before it; None where none was printed."""
    epoch: int | None = None
    after_s: float | None = None
    """Seconds after the first line of this start; None where that was not read."""
    secondary: bool = False
    """It follows from another failure: a launcher's about a rank, or that of an interruption."""
    generic: bool = False
    """Its rule shows that a program failed, and not why."""
    follows: bool = False
    """Its rule says what followed from a failure elsewhere."""
    rank: int | None = None
    """Of the process that printed it; None where nothing in front of its lines says so."""


@dataclass(frozen=True, slots=True)
class JobRuleReading:
    """What one container's log shows of one rule of its job."""

    rule: str
    age_s: float | None = None
    """Seconds before the report's time of the last line that it matches; None where none came."""
    started_age_s: float | None = None
    """The same of the first line of this start; None where the log was not read from its beginning."""
    value: float | None = None
    """The last number; None where none is wanted, or it was not finite."""
    wrong_count: int = 0
    """Numbers outside of the limits in a row, up to the last."""
    broken: bool = False
    """By this log alone; another container of the job may print the line."""


@dataclass(frozen=True, slots=True)
class PrintedProgress:
    """How far a training has come, as it prints it."""

    step: int | None = None
    age_s: float | None = None
    """Seconds before the report's time at which a step, or a number of one within an epoch, changed last; None without
    one."""
    redone_steps: int | None = None
    """Steps of the start before that this one does again; None where that is not known."""
    checkpoint_step: int | None = None
    """Of the last checkpoint that was said to be complete."""
    checkpoint_age_s: float | None = None
    first_step: int | None = None
    """The first of this start that was read,"""
    first_age_s: float | None = None
    """and the seconds since it was printed."""
    step_s: float | None = None
    """Mean seconds of a step of this start, by the times of its lines; None before the second."""
    loss: float | None = None
    """The last; None where none was printed, or it was not finite."""
    tokens: int | None = None
    """That the training has taken so far, as it counts them."""
    saving_age_s: float | None = None
    """Since a checkpoint was said to be begun that was not said to be complete; None where none is being written."""

    @property
    def unsaved_steps(self) -> int | None:
        """Steps that are lost if the training ends now; None where no checkpoint is known."""
        if self.step is None or self.checkpoint_step is None:
            return None
        return max(0, self.step - self.checkpoint_step)


@dataclass(frozen=True, slots=True)
class AnnouncedPhase:
    """A long phase that a program says it is in."""

    name: str
    left_s: float
    """Seconds after the report's time until which it may take."""
    refused: bool = False
    """It asks for longer than the operator allows, and counts for nothing."""


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """The log of one start of a container."""

    pod_uid: str
    container: str
    start: int
    """Restarts of the container before it, as its file is named."""
    findings: tuple[LogFinding, ...] = ()
    """The most informative first."""
    tracebacks: tuple[LoggedTraceback, ...] = ()
    """The newest last."""
    skipped_bytes: int = 0
    """Not read, because the log was written faster than it may be read."""
    rules: tuple[JobRuleReading, ...] = ()
    """Of the rules of its job's policy."""
    progress: PrintedProgress | None = None
    """None where it prints no step and no checkpoint."""
    phase: AnnouncedPhase | None = None
    """None where its program announced none."""

    def later(self, seconds: float) -> ContainerLog:
        """The same as of so many seconds later."""
        late_s = max(0.0, seconds)
        progress, phase = self.progress, self.phase
        if progress is not None:
            progress = replace(
                progress,
                age_s=_older(progress.age_s, late_s),
                checkpoint_age_s=_older(progress.checkpoint_age_s, late_s),
                first_age_s=_older(progress.first_age_s, late_s),
                saving_age_s=_older(progress.saving_age_s, late_s),
            )
        if phase is not None:
            left_s = round(phase.left_s - late_s, 3)
            phase = replace(phase, left_s=left_s) if left_s > 0 else None
        return replace(
            self,
            findings=tuple(
                replace(
                    finding,
                    age_s=round(finding.age_s + late_s, 3),
                    first_age_s=_older(finding.first_age_s, late_s),
                )
                for finding in self.findings
            ),
            tracebacks=tuple(
                replace(found, age_s=round(found.age_s + late_s, 3)) for found in self.tracebacks
            ),
            rules=tuple(
                replace(
                    reading,
                    age_s=_older(reading.age_s, late_s),
                    started_age_s=_older(reading.started_age_s, late_s),
                )
                for reading in self.rules
            ),
            progress=progress,
            phase=phase,
        )


def _older(age_s: float | None, seconds: float) -> float | None:
    return None if age_s is None else round(age_s + seconds, 3)
