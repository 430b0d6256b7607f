"""What a check finds, and what its findings come to: for the check, and for each device.

A finding is one sentence; a list of sentences is a tuple wherever it goes. Findings travel by `api.codec`: from the
process of a check to its runner, and from a round of a schedule to the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.health import SEVERITY, Result
from kcover_ebpf.inspection.options import InspectionOptions


class Cost(Enum):
    """What a check costs a job that runs on the node."""

    LIGHT = "light"
    """Nothing that a job could measure."""
    HEAVY = "heavy"
    """It computes on the GPUs: run only when asked for by name, and never on a busy GPU."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that a check observed."""

    result: Result
    evidence: str
    """One sentence."""
    advice: str = ""
    """What a person should do; empty where nothing is to be done."""
    device: str = ""
    """PCI address of the GPU or network adapter that it is about, such as "0000:5d:00.0"; empty for others."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """What one round found about a part of the node: what a check examines, or one device."""

    name: str
    """Of the check, or the PCI address of the device."""
    result: Result
    evidence: tuple[str, ...] = ()
    """A sentence each, worst first; of any length, with any characters."""
    advice: str = ""
    kind: str | None = None
    """Of a device: "gpu" or "nic"."""
    devices: tuple[str, ...] = ()
    """Of a check that failed: PCI addresses of the devices that explain it. Empty where anything else failed, too."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check came to."""

    name: str
    cost: Cost
    seconds: float
    """From its start to its answer, or to its deadline (CLOCK_MONOTONIC)."""
    findings: tuple[CheckFinding, ...]
    """In the order found."""
    left_behind: int | None = None
    """The process that could not be ended, and still waits in the kernel."""

    @property
    def part(self) -> PartResult:
        """All findings joined."""
        part = joined(self.name, self.findings)
        if self.left_behind is None:
            return part
        text = f"process {self.left_behind} cannot be ended, and was left behind"
        return replace(part, evidence=(*part.evidence, text))

    @property
    def failing_devices(self) -> frozenset[str]:
        """PCI addresses of the devices that it failed."""
        return frozenset(_failing(self.findings)) - {""}


@dataclass(frozen=True, slots=True)
class Check:
    """An entry of the registry."""

    name: str
    cost: Cost
    deadline_s: float
    """After so many seconds its process is killed, or left behind if it cannot be."""
    examines: str
    """For the documentation: what is judged, and how."""
    source: str
    """For the documentation: where it is read."""
    find: Callable[[InspectionOptions], Iterator[CheckFinding]]
    by_others: bool = False
    """True: run after the others of its round, because it is judged by which of them have answered."""


def joined(name: str, findings: Iterable[CheckFinding], kind: str | None = None) -> PartResult:
    """The worst result with all evidence, worst first, and each advice once; unknown for no findings."""
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
    """The device of each failure; empty for what is about none."""
    return [finding.device for finding in findings if finding.result is Result.FAIL]


def passed(evidence: str, device: str = "") -> CheckFinding:
    """A finding that all is well."""
    return CheckFinding(Result.PASS, evidence, "", device)


def warned(evidence: str, advice: str, device: str = "") -> CheckFinding:
    """A finding that needs attention, but no job fails by it now."""
    return CheckFinding(Result.WARN, evidence, advice, device)


def failed(evidence: str, advice: str, device: str = "") -> CheckFinding:
    """A finding by which the node is unfit for training."""
    return CheckFinding(Result.FAIL, evidence, advice, device)


def unknown(evidence: str, advice: str = "") -> CheckFinding:
    """A finding that something could not be observed; the advice says how it could be."""
    return CheckFinding(Result.UNKNOWN, evidence, advice)
