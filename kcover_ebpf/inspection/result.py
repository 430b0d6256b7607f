"""What a check finds, and how findings are joined to one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

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
    advice: str = ""
    """What a person should do; empty where nothing is to be done."""
    device: str = ""
    """PCI address of the GPU or network adapter that it is about, such as "0000:5d:00.0"; empty for others."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check came to."""

    name: str
    result: Result
    cost: Cost
    seconds: float
    """From its start to its answer, or to the end of the patience with it (CLOCK_MONOTONIC)."""
    evidence: tuple[str, ...]
    """Worst first."""
    advice: str
    devices: tuple[CheckFinding, ...] = ()
    """Of each finding about one device, in the order found."""
    left_behind: int | None = None
    """The process that could not be ended, and still waits in the kernel."""


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


def joined(findings: Iterable[CheckFinding]) -> CheckFinding:
    """The worst result with all evidence, a line each, worst first, and each advice once."""
    ordered = sorted(findings, key=lambda each: -SEVERITY.index(each.result))
    if not ordered:
        return CheckFinding(Result.UNKNOWN, "there was nothing to examine")
    advice = dict.fromkeys(each.advice for each in ordered if each.advice)
    return CheckFinding(
        ordered[0].result, "\n".join(each.evidence for each in ordered), "; ".join(advice)
    )


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
