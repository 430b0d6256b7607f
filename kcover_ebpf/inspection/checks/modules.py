"""Kernel modules and services that a node with NVIDIA GPUs needs; without GPUs nothing is required."""

from __future__ import annotations

from collections.abc import Iterator

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host import host_programs, sysfs
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned

_FABRIC_MANAGER = "nv-fabricmanager"[:15]
"""Process name, which the kernel truncates to 15 characters."""


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each required module and service."""
    gpus = pci.nvidia_gpus(options.root)
    if not gpus:
        yield passed("no NVIDIA GPU is on the PCI bus: no module is expected")
        return
    try:
        lines = (options.root / "proc/modules").read_text().splitlines()
    except OSError as error:
        yield unknown(f"/proc/modules: {error.strerror}", "run on the node itself")
        return
    # A module that is being loaded or unloaded is not usable; the fifth word is its state.
    loaded = {words[0] for words in map(str.split, lines) if len(words) > 4 and words[4] == "Live"}
    yield from _driver(loaded, len(gpus))
    if any((options.root / "sys/class/infiniband").glob("*")):
        yield from _peer_memory(loaded)
    if any(function.is_nvswitch for function in pci.functions(options.root)):
        yield _fabric_manager(options)


def _driver(loaded: set[str], count: int) -> Iterator[CheckFinding]:
    if "nvidia" not in loaded:
        yield failed(f"nvidia is not loaded, with {count} GPU(s) on the bus", "modprobe nvidia")
        return
    yield passed("nvidia is loaded")
    if "nvidia_uvm" in loaded:
        yield passed("nvidia_uvm is loaded")
    else:
        yield warned(
            "nvidia_uvm is not loaded: CUDA fails in a container until it is loaded",
            "modprobe nvidia_uvm, or run nvidia-persistenced",
        )


def _peer_memory(loaded: set[str]) -> Iterator[CheckFinding]:
    if "nvidia_peermem" in loaded:
        yield passed("nvidia_peermem is loaded")
    else:
        yield warned(
            "nvidia_peermem is not loaded: GPUDirect RDMA works only through DMA-BUF",
            "modprobe nvidia_peermem, unless every library here uses DMA-BUF",
        )
    words = "is loaded" if "gdrdrv" in loaded else "is not loaded: GDRCopy is not used"
    yield passed(f"gdrdrv {words}")


def _fabric_manager(options: InspectionOptions) -> CheckFinding:
    names = map(sysfs.text, (options.root / "proc").glob("[0-9]*/comm"))
    if _FABRIC_MANAGER in names:
        return passed("the fabric manager runs")
    if not host_programs.shows_processes(options.root):
        text = "whether the fabric manager runs is not known: the host's processes are not visible"
        return unknown(text, "run in its PID namespace (hostPID)")
    return failed(
        "NVSwitches are on the bus, but the fabric manager does not run",
        "systemctl start nvidia-fabricmanager; its version must be the driver's",
    )


CHECK = Check(
    "modules",
    Cost.LIGHT,
    10.0,
    "where NVIDIA's GPUs are on the bus: nvidia, nvidia_uvm; with RDMA devices nvidia_peermem, gdrdrv; with "
    "NVSwitches the fabric manager's process",
    "`/proc/modules`, `/proc/*/comm`",
    find,
)
