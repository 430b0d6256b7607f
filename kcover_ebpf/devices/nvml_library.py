"""NVML through the real binding, also where the library lies in the files of the host and not in our own.

A library that is loaded by its path is found again by its SONAME, so the binding need not know.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import Any

from kcover_ebpf.devices.inventory.pci import kernel_address

_NAME = "libnvidia-ml.so.1"
_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",  # the driver container of NVIDIA's GPU operator
    "run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "home/kubernetes/bin/nvidia/lib64",  # GKE
)


def initialise(nvml: Any, root: Path) -> None:
    """`nvmlInit`, by our own library or that below `root`; raises what the binding raises. May hang."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        if not _loaded(root):
            raise
        nvml.nvmlInit()


def address_of(nvml: Any, handle: Any) -> str:
    """The PCI address of a GPU as the kernel writes it; raises what the binding raises."""
    raw = nvml.nvmlDeviceGetPciInfo(handle).busId
    return kernel_address(raw.decode() if isinstance(raw, bytes) else str(raw))


def _loaded(root: Path) -> bool:
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(root / folder / _NAME))
            return True
    return False
