"""Checks that nvidia-smi answers and lists every GPU on the PCI bus."""

from __future__ import annotations

from collections.abc import Iterator

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown

_GET = "install NVIDIA's driver with its utilities on the node"


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """One finding about nvidia-smi and the GPUs that it lists."""
    ran = commands.run_tool(["nvidia-smi", "--list-gpus"], options.root, _GET)
    on_bus = len(pci.nvidia_gpus(options.root))
    if isinstance(ran, CheckFinding):
        yield ran
    elif ran.exit_code:
        text = f"nvidia-smi ended with code {ran.exit_code}: {ran.first_line}"
        if on_bus:
            yield failed(text, "see dmesg for Xids and a driver that failed; reboot the node")
        else:
            yield unknown(f"{text}; no NVIDIA GPU is on the PCI bus", _GET)
    else:
        listed = sum(line.startswith("GPU ") for line in ran.output.splitlines())
        if listed < on_bus:
            text = f"nvidia-smi lists {listed} GPU(s), {on_bus} are on the PCI bus"
            yield failed(
                text, "see dmesg for an Xid 79 or a failed initialisation; reboot the node"
            )
        else:
            yield passed(f"nvidia-smi lists {listed} GPU(s)")


CHECK = Check(
    "nvidia_smi",
    Cost.LIGHT,
    20.0,
    "it answers, without an error, and lists each GPU that is on the PCI bus",
    "`nvidia-smi --list-gpus`",
    find,
)
