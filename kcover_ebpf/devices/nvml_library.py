"""Loads NVML through its usual Python binding, also if only the host's files contain the library.

The dynamic linker finds a library again by SONAME once it was loaded by path, so the binding needs no change.
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
    """Call `nvmlInit` with our own library or the one below `root`; raises the binding's errors. May hang."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        if not _loaded(root):
            raise
        nvml.nvmlInit()


def address_of(nvml: Any, handle: Any) -> str:
    """PCI address of a GPU in the kernel's form; raises the binding's errors."""
    raw = nvml.nvmlDeviceGetPciInfo(handle).busId
    return kernel_address(raw.decode() if isinstance(raw, bytes) else str(raw))


def _loaded(root: Path) -> bool:
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(root / folder / _NAME))
            return True
    return False
