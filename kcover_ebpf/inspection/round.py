"""One scheduled round as a program: `python -m kcover_ebpf.inspection.round OPTIONS`; prints results by device.

It is a separate program because checks are forked while the agent has threads, and because it may have to be
abandoned. It imports little, because it runs again and again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from kcover_ebpf.api.codec import decode, encode
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.host.host_programs import host_root
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.options import InspectionOptions, peer_of
from kcover_ebpf.inspection.result import (
    Check,
    CheckFinding,
    CheckResult,
    PartResult,
    joined,
    unknown,
)
from kcover_ebpf.inspection.schedule import scheduled

_PATH = "PYTHONPATH"
_VGA = 0x0300
"""PCI class of a VGA controller; one that is not NVIDIA's belongs to the board management."""
_NVML = "nvml"


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """Options of one round, passed on the command line."""

    checks: tuple[str, ...] = ()
    """Names of checks; empty: those for which the node has hardware."""
    plugins: str = ""
    """Folder with an operator's executables; empty: no plug-ins."""
    left_out: tuple[str, ...] = ()
    """Names of checks that still hang from an earlier round."""
    peers: tuple[str, ...] = ()
    """HOST:PORT of nodes to connect to; at least two, or none."""
    write_to: tuple[str, ...] = ()
    """Absolute paths of host folders in which 1 MiB is written and read."""
    log_rules: str = ""
    """File with an operator's rules for kernel log lines; empty: none."""

    def argv(self) -> list[str]:
        """The command line, to be run with `environment()`."""
        words = ["-S", "-m", "kcover_ebpf.inspection.round", json.dumps(encode(self))]
        return [sys.executable, *words]


@dataclass(frozen=True, slots=True)
class RoundAnswer:
    """Result of the round, printed as one JSON object on standard output."""

    checks: tuple[CheckResult, ...] = ()
    devices: tuple[PartResult, ...] = ()
    cpu_s: float = 0.0
    """CPU seconds of the round and everything that it started."""


def environment() -> dict[str, str]:
    """Environment of the command, with our own module path: searching for modules again would double the start time."""
    return os.environ | {_PATH: os.pathsep.join(filter(None, sys.path))}


def answer_of(wanted_options: RoundOptions) -> RoundAnswer:
    """Run the round. Raises `UsageError` as `scheduled` and `plugins.load` do."""
    root = host_root()
    options = InspectionOptions(
        root=root,
        peers=tuple(map(peer_of, wanted_options.peers)),
        write_to=tuple(root / text.lstrip("/") for text in wanted_options.write_to),
        log_rules=Path(wanted_options.log_rules) if wanted_options.log_rules else None,
    )
    own = _plugins(Path(wanted_options.plugins)) if wanted_options.plugins else ()
    found = runner.inspect(
        scheduled(wanted_options.checks, own, options, wanted_options.left_out), options
    )
    usage = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return RoundAnswer(
        tuple(found),
        tuple(results_by_device(options.root, found)),
        sum(used.ru_utime + used.ru_stime for used in usage),
    )


def results_by_device(root: Path, checks: Iterable[CheckResult]) -> list[PartResult]:
    """The GPUs and network adapters of the node, sorted by address, each with the findings about it.

    An NVIDIA GPU without an answer from NVML is unknown, whatever its link state. A GPU that only NVML lists,
    because it has left the bus, is included.
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


def _plugins(folder: Path) -> tuple[Check, ...]:
    from kcover_ebpf.inspection import plugins

    return plugins.load(folder)


def main(arguments: list[str]) -> int:
    """Print the answer, or the error; returns the exit code."""
    os.environ.pop(_PATH, None)  # plug-ins have their own
    try:
        wanted_options = decode(RoundOptions, json.loads(arguments[0]))
        sys.stdout.write(json.dumps(encode(answer_of(wanted_options))))
    except (KcoverError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
