"""What the logs of a pod's containers show, as an agent reports it: names of rules, hashes and places, never a line.

A log may hold secrets, so no text of it leaves the node: meaning and advice are those of the rule, a traceback is a
hash of its frames with the file and line of the innermost one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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

    def later(self, seconds: float) -> ContainerLog:
        """The same as of so many seconds later."""
        late_s = max(0.0, seconds)
        return replace(
            self,
            findings=tuple(
                replace(
                    finding,
                    age_s=round(finding.age_s + late_s, 3),
                    first_age_s=None
                    if finding.first_age_s is None
                    else round(finding.first_age_s + late_s, 3),
                )
                for finding in self.findings
            ),
            tracebacks=tuple(
                replace(each, age_s=round(each.age_s + late_s, 3)) for each in self.tracebacks
            ),
        )
