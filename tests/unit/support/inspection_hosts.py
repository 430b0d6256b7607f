"""Hosts that are not there: folders shaped like /proc and /sys, and tools that answer as a test says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, joined

GPU, NIC, SWITCH = "0x030200", "0x020000", "0x068000"


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def pci_device(
    root: Path, address: str, class_code: str = GPU, vendor: str = "0x10de", **files: object
) -> Path:
    """A function below its own port, as sysfs links it; returns its folder."""
    folder = root / "sys/devices/pci0000:00" / f"port-{address}" / address
    for name, value in {"class": class_code, "vendor": vendor, **files}.items():
        write(folder / name, value)
    link = root / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


def kernel_thread(root: Path) -> None:
    """The one that only the host's own pid namespace has."""
    write(root / "proc/2/stat", f"2 (kthreadd) S 0 0 0 0 -1 {0x00200000} {'0 ' * 10}1 0")


def tool(folder: Path, name: str, script: str) -> None:
    """A program of the shell."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@dataclass(frozen=True)
class Found:
    """What findings come to, with their evidence as one text."""

    result: Result
    evidence: str
    advice: str

    @classmethod
    def of(cls, findings: Iterable[CheckFinding]) -> Found:
        part = joined("it", findings)
        return cls(part.result, "\n".join(part.evidence), part.advice)


def found(check: Check, root: Path, **fields: object) -> Found:
    """What a check finds on a host, in this process and without waiting."""
    options = InspectionOptions(root=root, **{"pause": lambda _: None, **fields})  # type: ignore[arg-type]
    return Found.of(check.find(options))
