"""Whether a GPU of this node is in use: a heavy check must not disturb a job."""

from __future__ import annotations

from pathlib import Path

from kcover_ebpf.devices.nvml_library import initialise
from kcover_ebpf.tunables.inspection import GPU_BUSY_BYTES


def reason_not_to_run(root: Path) -> str:
    """Why a heavy check must not run now; empty if it may. Asks NVML, and so may hang."""
    try:
        import pynvml
    except ImportError:
        return "whether a GPU is busy is not known: the package nvidia-ml-py is not installed"
    try:
        initialise(pynvml, root)
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if processes := pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                return f"GPU {index} is busy: process {processes[0].pid} computes on it"
            if percent := pynvml.nvmlDeviceGetUtilizationRates(handle).gpu:
                return f"GPU {index} is busy: its utilisation is {percent}%"
            used_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used
            if used_bytes > GPU_BUSY_BYTES:
                return f"GPU {index} is busy: {used_bytes >> 20} MiB of its memory are in use"
    except pynvml.NVMLError as error:
        return f"whether a GPU is busy is not known: NVML: {error}"
    return ""
