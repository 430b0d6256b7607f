"""The GPUs and network adapters of a node, each with what the checks found about it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.inspection.result import CheckFinding, CheckResult, PartResult, joined, unknown

_VGA = 0x0300
"""A VGA controller that is not NVIDIA's is that of the board's management."""
_NVML = "nvml"


def results_by_device(root: Path, checks: Iterable[CheckResult]) -> list[PartResult]:
    """By address. A GPU of NVIDIA's that NVML gave no answer about is unknown, whatever its link says.

    A GPU that only NVML names, for it has left the bus, is a device like the others.
    """
    findings: dict[str, list[CheckFinding]] = {}
    by_nvml: dict[str, None] = {}
    for check in checks:
        for finding in check.findings:
            if finding.device:
                findings.setdefault(finding.device, []).append(finding)
                if check.name == _NVML:
                    by_nvml[finding.device] = None
    parts = []
    for function in pci.functions(root):
        if kind := _kind(function):
            about = findings.get(function.address, [])
            if function.is_nvidia_gpu and function.address not in by_nvml:
                about = [*about, unknown("NVML gave no answer about it")]
            about = about or [unknown("no check examined it")]
            parts.append(joined(function.address, about, kind))
    on_the_bus = {part.name for part in parts}
    elsewhere = (address for address in by_nvml if address not in on_the_bus)
    return [*parts, *(joined(address, findings[address], "gpu") for address in elsewhere)]


def _kind(function: pci.PciFunction) -> str:
    if function.is_virtual:
        return ""
    if function.is_nvidia_gpu or (function.is_gpu and function.class_code >> 8 != _VGA):
        return "gpu"
    return "nic" if function.is_nic else ""
