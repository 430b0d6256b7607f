"""The GPUs of each vendor, a row a vendor: where its driver lists them, and which files a process opens to use one.

NVIDIA: /proc/driver/nvidia/gpus/ADDRESS/information; /dev/nvidiaN. AMD: the functions of the driver amdgpu, and
/sys/class/kfd/kfd/topology/nodes/N/properties (linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c), whose
`drm_render_minor` is the file of a GPU, or of each of its partitions; /dev/kfd is one file for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host.sysfs import text

AMD_DRIVER = "amdgpu"
_PARTITION_BITS = 16
"""Of `location_id`: bus, device and function; above them is the number of a partition."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that a driver knows."""

    device: str
    minor: int
    """N of /dev/nvidiaN; -1 when the driver did not say, and of other vendors."""
    uuid: str
    """As NVML writes it; empty where that is not known, and of other vendors."""
    path: tuple[str, ...]
    """PCI addresses from the root port down to the device itself."""
    nodes: frozenset[str] = frozenset()
    """The files that a process opens to use this GPU and no other; empty where they are not known."""


@dataclass(frozen=True, slots=True)
class GpuVendor:
    """How one vendor's GPUs are found."""

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
    """PCI address and files of each GPU that can compute, its partitions' included."""
    found: dict[str, set[str]] = {}
    for file in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        fields = _fields(file, " ")
        try:
            minor, location, domain = (
                int(fields[key]) for key in ("drm_render_minor", "location_id", "domain")
            )
        except (KeyError, ValueError):
            continue
        if minor > 0:  # a node of processors has none
            location %= 1 << _PARTITION_BITS
            address = f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
            found.setdefault(address, set()).add(f"/dev/dri/renderD{minor}")
    yield from found.items()


def _fields(path: Path, separator: str) -> dict[str, str]:
    pairs = (line.partition(separator) for line in text(path).splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


VENDORS = (GpuVendor("nvidia", _nvidia), GpuVendor("amd", _amd))
