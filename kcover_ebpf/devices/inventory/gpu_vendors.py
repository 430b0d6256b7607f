"""Finds the GPUs of each vendor: where the driver lists them, and which files a process opens to use one.

NVIDIA: /proc/driver/nvidia/gpus/ADDRESS/information and /dev/nvidiaN. AMD: PCI functions of the driver amdgpu, and
/sys/class/kfd/kfd/topology/nodes/N/properties (linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c). Its
`drm_render_minor` is the device file of a GPU or of one of its partitions; /dev/kfd is shared by all GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host.sysfs import text

AMD_DRIVER = "amdgpu"
_PARTITION_BITS = 16
"""Low bits of `location_id`: bus, device and function. The bits above hold the partition number."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that a loaded driver lists."""

    device: str
    minor: int
    """N of /dev/nvidiaN; -1 if the driver did not report it, and for other vendors."""
    uuid: str
    """UUID as NVML writes it; empty if unknown, and for other vendors."""
    path: tuple[str, ...]
    """PCI addresses from the root port down to the device itself."""
    nodes: frozenset[str] = frozenset()
    """Device files that a process opens to use this GPU and no other; empty if unknown."""


@dataclass(frozen=True, slots=True)
class GpuVendor:
    """How the GPUs of one vendor are found, and which device files they have."""

    name: str
    gpus: Callable[[Path], Iterator[Gpu]]


def _nvidia(root: Path) -> Iterator[Gpu]:
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        fields = _fields(folder / "information", ":")
        number = fields.get("Device Minor", "")
        minor = int(number) if number.isdecimal() else -1
        device = folder.name.lower()
        yield Gpu(
            device,
            minor,
            fields.get("GPU UUID", ""),
            pci.path_of(root, device),
            frozenset({f"/dev/nvidia{minor}"}) if minor >= 0 else frozenset(),
        )


def _amd(root: Path) -> Iterator[Gpu]:
    files = dict(_kfd_files(root))
    for function in pci.functions(root):
        if function.driver != AMD_DRIVER or not function.is_gpu:
            continue
        own = {f"/dev/dri/{folder.name}" for folder in (function.folder / "drm").glob("renderD*")}
        nodes = frozenset(own | files.get(function.address, set()))
        yield Gpu(function.address, -1, "", pci.path_of(root, function.address), nodes)


def _kfd_files(root: Path) -> Iterator[tuple[str, set[str]]]:
    """PCI address and device files of each compute GPU, including those of its partitions."""
    found: dict[str, set[str]] = {}
    for file in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        fields = _fields(file, " ")
        try:
            minor, location, domain = (
                int(fields[key]) for key in ("drm_render_minor", "location_id", "domain")
            )
        except (KeyError, ValueError):
            continue
        if minor > 0:  # the node is a CPU and has no render device
            location %= 1 << _PARTITION_BITS
            address = f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
            found.setdefault(address, set()).add(f"/dev/dri/renderD{minor}")
    yield from found.items()


def _fields(path: Path, separator: str) -> dict[str, str]:
    pairs = (line.partition(separator) for line in text(path).splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


VENDORS = (GpuVendor("nvidia", _nvidia), GpuVendor("amd", _amd))
