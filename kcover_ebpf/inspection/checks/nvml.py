"""GPUs by NVML: whether it can be used at all, then each GPU (`nvml_gpu`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.devices.nvml_library import address_of, initialise
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown

if TYPE_CHECKING:
    from kcover_ebpf.inspection.checks import nvml_gpu

_GET_BINDING = "pip install kcover-ebpf[gpu]"
_GET_LIBRARY = "install NVIDIA's driver, or run where the host's files are visible"
_MAY = (
    "set agent.privileged: true, and restart an agent that is older than the driver; or run kcover-ebpf inspect on the "
    "node itself"
)
_CONTROL = "dev/nvidiactl"
_PAUSE_S = 1.0
"""Seconds between two readings of a counter. NVIDIA's limit for PCIe replays is 8 a minute; one per
second exceeds it."""


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """Findings for all GPUs; one that is unknown if there is no NVML."""
    try:
        import pynvml
    except ImportError:
        yield unknown("the package nvidia-ml-py is not installed", _GET_BINDING)
        return
    try:
        initialise(pynvml, options.root)
    except pynvml.NVMLError_LibraryNotFound:
        yield unknown("libnvidia-ml.so.1 was not found", _GET_LIBRARY)
        return
    except pynvml.NVMLError as error:
        yield from _refused(options, str(error))
        return
    yield from _examine(pynvml, options)


def _refused(options: InspectionOptions, error: str) -> Iterator[CheckFinding]:
    if _is_out_of_reach(options.root):
        yield unknown(f"NVML: {error}; the GPUs' device files are on the host, not here", _MAY)
    elif gpus := pci.nvidia_gpus(options.root):
        text = f"NVML cannot be used, with {len(gpus)} GPU(s) on the PCI bus: {error}"
        yield failed(text, "load NVIDIA's driver, or see in dmesg why it failed")
    else:
        yield unknown(f"NVML: {error}", _GET_LIBRARY)


def _is_out_of_reach(root: Path) -> bool:
    """Whether the host has the driver's device file, but our container has not, or may not open it."""
    if not (root / _CONTROL).exists():
        return False
    try:
        os.close(os.open(f"/{_CONTROL}", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return isinstance(error, FileNotFoundError | PermissionError)
    return False


def _examine(nvml: Any, options: InspectionOptions) -> Iterator[CheckFinding]:
    from kcover_ebpf.inspection.checks import nvml_gpu

    count = nvml.nvmlDeviceGetCount()
    gpus, seen = [], set()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            address = address_of(nvml, handle)
        except nvml.NVMLError as error:
            yield failed(f"GPU {index} gives no answer: {error}", "drain the node and reboot it")
            continue
        seen.add(address)
        gpus.append(nvml_gpu.CheckedGpu(nvml, handle, f"GPU {index} ({address})", address))
    for function in pci.nvidia_gpus(options.root):
        if function.address not in seen:
            text = f"{function.address} is on the PCI bus, but NVML does not have it"
            advice = "see dmesg for an Xid 79 or a failed initialisation; reboot the node"
            yield failed(text, advice, function.address)
    if not gpus:
        yield unknown(f"NVML knows {count} GPUs, of which none answers", _GET_LIBRARY)
        return
    before = [gpu.counters() for gpu in gpus]
    options.pause(_PAUSE_S)
    most_links: dict[int | None, int] = {}
    for gpu in gpus:
        most_links[gpu.model] = max(most_links.get(gpu.model, 0), len(gpu.links()))
    for gpu, counters in zip(gpus, before, strict=True):
        yield from _of_one(gpu, counters, most_links[gpu.model])


def _of_one(
    gpu: nvml_gpu.CheckedGpu, previous_counters: nvml_gpu.Counters, most_links: int
) -> Iterator[CheckFinding]:
    findings = [*gpu.findings(), *gpu.growth(previous_counters), *gpu.missing_links(most_links)]
    if not findings:
        yield passed(f"{gpu.name}: healthy, {gpu.summary()}", gpu.address)
    for finding in findings:
        yield replace(finding, evidence=f"{gpu.name}: {finding.evidence}", device=gpu.address)


CHECK = Check(
    "nvml",
    Cost.LIGHT,
    20.0,
    "GPUs on the PCI bus that NVML does not have; per GPU: recovery action, uncorrected ECC errors, row "
    "remapping, retired pages, PCIe width and generation, PCIe replays, NVLinks fewer than other "
    "GPUs of the model have, NVLink errors, throttling by heat or power, a low SM clock without a reason, lowered "
    "power limit, temperature, state and health of the fabric, persistence and ECC mode",
    "NVML (`pynvml`)",
    find,
)
