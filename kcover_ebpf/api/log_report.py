"""Findings in the logs of a pod's containers, as an agent reports them: names of rules, hashes and places, no text.

A log may contain secrets, so none of its text leaves the node: meaning and advice are those of the rule, a
traceback is a hash of its frames with the file and line of the innermost one.
"""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One rule that lines of a log matched."""

    rule: str
    domain: str
    """One of hardware, driver, network, storage, memory, program."""
    severity: str
    """One of fatal, error, warning, info."""
    count: int
    """Number of matching lines in this start of the container."""
    age_s: float
    """Age of the last matching line: seconds before the report's time, by the node's clock."""
    meaning: str = ""
    advice: str = ""
    generic: bool = False
    """True if it shows that a program failed, but not why."""
    follows: bool = False
    """True if it shows the consequence of a failure elsewhere: a rank that prints it is a victim."""
    first_age_s: float | None = None
    """As `age_s`, for the first matching line; None from an agent that does not report it."""


@dataclass(frozen=True, slots=True)
class LoggedTraceback:
    """Identity of a Python traceback, without its text."""

    fingerprint: str
    """Hash of its frames (file, line, function) and the class of its error."""
    rule: str
    """Name of the rule that its last line matched."""
    domain: str
    age_s: float
    place: str | None = None
    """FILE:LINE of its innermost frame outside of installed packages; the file without its folder."""
    step: int | None = None
    """The last step printed before it; None if none was."""
    epoch: int | None = None
    after_s: float | None = None
    """Seconds after the first line of this start; None if that was not read."""
    secondary: bool = False
    """True if it follows from another failure: a launcher's about a rank, or that of an interruption."""
    generic: bool = False
    """True if its rule shows that a program failed, but not why."""
    follows: bool = False
    """True if its rule describes the consequence of a failure elsewhere."""
    rank: int | None = None
    """Rank of the process that printed it; None if no prefix of its lines states it."""


@dataclass(frozen=True, slots=True)
class JobRuleReading:
    """State of one rule of the job, from one container's log."""

    rule: str
    age_s: float | None = None
    """Age of the last matching line, in seconds before the report's time; None if there was none."""
    started_age_s: float | None = None
    """Age of the first line of this start; None if the log was not read from its beginning."""
    value: float | None = None
    """The last number; None if the rule has no limits, or it was not finite."""
    wrong_count: int = 0
    """Number of consecutive numbers outside the limits, up to the last."""
    broken: bool = False
    """True if this log alone breaks the rule; another container of the job may print the line."""


@dataclass(frozen=True, slots=True)
class PrintedProgress:
    """Progress of a training, from the lines that it prints."""

    step: int | None = None
    age_s: float | None = None
    """Seconds before the report's time at which the step (also within an epoch) last changed; None without one."""
    redone_steps: int | None = None
    """Steps of the previous start that this start repeats; None if unknown."""
    checkpoint_step: int | None = None
    """Step of the last checkpoint reported complete."""
    checkpoint_age_s: float | None = None
    first_step: int | None = None
    """The first step of this start that was read."""
    first_age_s: float | None = None
    """Seconds since `first_step` was printed."""
    step_s: float | None = None
    """Mean seconds per step of this start, from the times of its lines; None before the second."""
    loss: float | None = None
    """The last loss; None if none was printed, or it was not finite."""
    tokens: int | None = None
    """Tokens processed, as the training counts them."""
    saving_age_s: float | None = None
    """Seconds since the start of a checkpoint that was not reported complete; None if none is being written."""

    @property
    def unsaved_steps(self) -> int | None:
        """Steps lost if the training ends now; None if no checkpoint is known."""
        if self.step is None or self.checkpoint_step is None:
            return None
        return max(0, self.step - self.checkpoint_step)


@dataclass(frozen=True, slots=True)
class AnnouncedPhase:
    """A long phase that a program announces."""

    name: str
    left_s: float
    """Seconds after the report's time that the phase may still take."""
    refused: bool = False
    """True if it asks for longer than the operator allows, and is ignored."""


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """Findings in the log of one start of a container."""

    pod_uid: str
    container: str
    start: int
    """Number of restarts of the container before it, as in the file's name."""
    findings: tuple[LogFinding, ...] = ()
    """Matched rules, most informative first."""
    tracebacks: tuple[LoggedTraceback, ...] = ()
    """Tracebacks in the log, newest last."""
    skipped_bytes: int = 0
    """Bytes not read, because the log grew faster than it may be read."""
    rules: tuple[JobRuleReading, ...] = ()
    """State of the rules in its job's policy."""
    progress: PrintedProgress | None = None
    """Printed progress; None if it prints no step and no checkpoint."""
    phase: AnnouncedPhase | None = None
    """Announced phase; None if its program announced none."""

    def later(self, seconds: float) -> ContainerLog:
        """A copy with all ages increased by this many seconds."""
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
