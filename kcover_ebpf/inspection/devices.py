"""The GPUs and network adapters of a node, each with what the checks found about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kcover_ebpf.facts.health import Result
from kcover_ebpf.hardware import pci
from kcover_ebpf.inspection.result import CheckFinding, CheckResult, joined, unknown

_VGA = 0x0300
"""A VGA controller that is not NVIDIA's is that of the board's management."""
_NVML = "nvml"


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One device."""

    device: str
    """PCI address."""
    kind: str
    """ "gpu" or "nic"."""
    result: Result
    evidence: str
    """Lines, worst first."""
    advice: str


def results_by_device(root: Path, found: Iterable[CheckResult]) -> list[DeviceResult]:
    """By address. A GPU of NVIDIA's that NVML gave no answer about is unknown, whatever its link says.

    A GPU that only NVML names, for it has left the bus, is a device like the others.
    """
    findings: dict[str, list[tuple[str, CheckFinding]]] = {}
    for check in found:
        for each in check.devices:
            findings.setdefault(each.device, []).append((check.name, each))
    on_the_bus = [
        _of_one(function, kind, findings.pop(function.address, []))
        for function in pci.functions(root)
        if (kind := _kind(function))
    ]
    elsewhere = [
        _joined(device, "gpu", [each for _, each in parts])
        for device, parts in findings.items()
        if _NVML in {check for check, _ in parts}
    ]
    return on_the_bus + elsewhere


def _kind(function: pci.PciFunction) -> str:
    if function.is_virtual:
        return ""
    if function.is_nvidia_gpu or (function.is_gpu and function.class_code >> 8 != _VGA):
        return "gpu"
    return "nic" if function.is_nic else ""


def _of_one(
    function: pci.PciFunction, kind: str, findings: list[tuple[str, CheckFinding]]
) -> DeviceResult:
    parts = [each for _, each in findings]
    if function.is_nvidia_gpu and _NVML not in {check for check, _ in findings}:
        parts.append(unknown("NVML gave no answer about it"))
    return _joined(function.address, kind, parts)


def _joined(device: str, kind: str, parts: list[CheckFinding]) -> DeviceResult:
    one = joined(parts) if parts else unknown("no check examined it")
    return DeviceResult(device, kind, one.result, one.evidence, one.advice)
