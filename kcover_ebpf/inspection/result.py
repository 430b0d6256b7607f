"""Findings of a check, and their summary for the check and for each device.

A finding's evidence is one sentence; a list of sentences is a tuple everywhere. Findings are encoded by
`api.codec`, both from a check's process to its runner and from a scheduled round to the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.health import SEVERITY, Result
from kcover_ebpf.inspection.options import InspectionOptions


class Cost(Enum):
    """The cost of a check for a job that runs on the node."""

    LIGHT = "light"
    """No effect that a job could measure."""
    HEAVY = "heavy"
    """It computes on the GPUs: runs only if requested by name, and never on a busy GPU."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One observation of a check."""

    result: Result
    evidence: str
    """One sentence that states what was observed."""
    advice: str = ""
    """What a person should do; empty if nothing."""
    device: str = ""
    """PCI address of the GPU or network adapter concerned, such as "0000:5d:00.0"; empty for other
    subjects."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of one round for a part of the node: for a check, or for a device."""

    name: str
    """Name of the check, or PCI address of the device."""
    result: Result
    evidence: tuple[str, ...] = ()
    """A sentence each, worst first; of any length, with any characters."""
    advice: str = ""
    kind: str | None = None
    """For a device: "gpu" or "nic"."""
    devices: tuple[str, ...] = ()
    """For a failed check: PCI addresses of the devices that explain it. Empty if anything else
    failed too."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of one check, and how long it took."""

    name: str
    cost: Cost
    seconds: float
    """Seconds from its start to its answer, or to its deadline (CLOCK_MONOTONIC)."""
    findings: tuple[CheckFinding, ...]
    """In the order in which the check yielded them."""
    left_behind: int | None = None
    """Pid of a process that could not be ended and is still blocked in the kernel; None if there is
    none."""

    @property
    def part(self) -> PartResult:
        """All findings combined into one result for the check."""
        part = joined(self.name, self.findings)
        if self.left_behind is None:
            return part
        text = f"process {self.left_behind} cannot be ended, and was left behind"
        return replace(part, evidence=(*part.evidence, text))

    @property
    def failing_devices(self) -> frozenset[str]:
        """PCI addresses of the devices that this check failed."""
        return frozenset(_failing(self.findings)) - {""}


@dataclass(frozen=True, slots=True)
class Check:
    """A check in the registry: its function, cost and documentation."""

    name: str
    cost: Cost
    deadline_s: float
    """Seconds after which its process is killed, or abandoned if it cannot be killed."""
    examines: str
    """For the documentation: what is judged, and how."""
    source: str
    """For the documentation: where the values are read."""
    find: Callable[[InspectionOptions], Iterator[CheckFinding]]
    by_others: bool = False
    """Run it after the other checks of the round, because its result depends on which of those
    observed something."""


def joined(name: str, findings: Iterable[CheckFinding], kind: str | None = None) -> PartResult:
    """The worst result, all evidence with the worst first, and each advice once; unknown if there are no findings."""
    ordered = sorted(findings, key=lambda finding: -SEVERITY.index(finding.result))
    if not ordered:
        return PartResult(name, Result.UNKNOWN, ("there was nothing to examine",), kind=kind)
    failing = tuple(dict.fromkeys(_failing(ordered)))
    return PartResult(
        name,
        ordered[0].result,
        tuple(finding.evidence for finding in ordered),
        "; ".join(dict.fromkeys(finding.advice for finding in ordered if finding.advice)),
        kind,
        failing if kind is None and "" not in failing else (),
    )


def _failing(findings: Sequence[CheckFinding]) -> list[str]:
    """The device of each failure; empty for a failure that concerns no device."""
    return [finding.device for finding in findings if finding.result is Result.FAIL]


def passed(evidence: str, device: str = "") -> CheckFinding:
    """A finding that everything is in order."""
    return CheckFinding(Result.PASS, evidence, "", device)


def warned(evidence: str, advice: str, device: str = "") -> CheckFinding:
    """A finding that needs attention but fails no job now."""
    return CheckFinding(Result.WARN, evidence, advice, device)


def failed(evidence: str, advice: str, device: str = "") -> CheckFinding:
    """A finding that makes the node unfit for training."""
    return CheckFinding(Result.FAIL, evidence, advice, device)


def unknown(evidence: str, advice: str = "") -> CheckFinding:
    """A finding that something could not be observed; the advice says how to make it observable."""
    return CheckFinding(Result.UNKNOWN, evidence, advice)
