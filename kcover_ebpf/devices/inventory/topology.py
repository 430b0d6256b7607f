"""Which devices this host has, and which PCIe ports they hang on: read from /proc and /sys."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory.pci import is_pci_address
from kcover_ebpf.host.sysfs import text


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that the driver knows."""

    device: str
    minor: int
    """N of /dev/nvidiaN; -1 when the driver did not say."""
    uuid: str
    path: tuple[str, ...]
    """PCI addresses from the root port down to the device itself."""


@dataclass(frozen=True, slots=True)
class Port:
    """One network or RDMA device with a PCI device behind it."""

    name: str
    device: str
    path: tuple[str, ...]
    node: str
    """Its RDMA device file ("/dev/infiniband/uverbs0"); empty for a plain interface."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A host's devices at one moment."""

    gpus: tuple[Gpu, ...] = ()
    ports: tuple[Port, ...] = ()

    def gpus_below(self, device: str) -> tuple[Gpu, ...]:
        """The GPU itself, or all GPUs that hang on this port."""
        return tuple(gpu for gpu in self.gpus if device in gpu.path)

    def ports_below(self, device: str) -> tuple[Port, ...]:
        """The network devices at or below this PCI address."""
        return tuple(port for port in self.ports if device in port.path)

    def joined(self, newer_topology: Topology) -> Topology:
        """What is known now: a device that is gone stays known, for it may have failed."""
        return Topology(
            (
                *newer_topology.gpus,
                *(g for g in self.gpus if g.device not in {n.device for n in newer_topology.gpus}),
            ),
            (
                *newer_topology.ports,
                *(p for p in self.ports if p.name not in {n.name for n in newer_topology.ports}),
            ),
        )


def read(root: Path = Path("/")) -> Topology:
    """The topology now; what cannot be read is left out."""
    return Topology(tuple(_gpus(root)), tuple(_ports(root)))


_MIG_ACCESS = re.compile(r"gpu(\d+)/gi(\d+)/(?:ci\d+/)?access (\d+)")


def mig_nodes(root: Path, minor: int, instance: int) -> frozenset[str]:
    """Device files that a process must open to use a MIG instance of /dev/nvidia`minor`."""
    table = _MIG_ACCESS.findall(text(root / "proc/driver/nvidia-caps/mig-minors"))
    return frozenset(
        f"/dev/nvidia-caps/nvidia-cap{number}"
        for gpu, found, number in table
        if (int(gpu), int(found)) == (minor, instance)
    )


def path_of(root: Path, device: str) -> tuple[str, ...]:
    """The PCI addresses above a device, and itself; just itself when it has left the bus."""
    try:
        real = str((root / "sys/bus/pci/devices" / device).readlink())
    except OSError:
        return (device,)
    return tuple(part for part in real.split("/") if is_pci_address(part))


def _gpus(root: Path) -> Iterator[Gpu]:
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        fields = _fields(folder / "information")
        minor = fields.get("Device Minor", "")
        device = folder.name.lower()
        yield Gpu(
            device,
            int(minor) if minor.isdecimal() else -1,
            fields.get("GPU UUID", ""),
            path_of(root, device),
        )


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in text(path).splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def function_of(folder: Path) -> str:
    """The PCI function behind a device of sysfs, also where another bus lies between (virtio, parts of a NIC).

    Empty for one that no hardware is behind.
    """
    link = folder / "device"
    parts = os.path.realpath(link).split("/") if link.is_symlink() else []
    return next((part for part in reversed(parts) if is_pci_address(part)), "")


def function_of_rdma(folder: Path) -> str:
    """The PCI function of an RDMA device; of one made of software (rxe, siw) that of its network interface.

    Newer kernels give those no device of their own (/sys/devices/virtual/infiniband).
    """
    if found := function_of(folder):
        return found
    interfaces = map(text, folder.glob("ports/*/gid_attrs/ndevs/0"))
    name = next(filter(None, interfaces), "")
    return function_of(folder.parents[1] / "net" / name) if name else ""


def _ports(root: Path) -> Iterator[Port]:
    verbs = sorted((root / "sys/class/infiniband_verbs").glob("uverbs*"))
    nodes = {text(verb / "ibdev"): f"/dev/infiniband/{verb.name}" for verb in verbs}
    for kind, function in (("net", function_of), ("infiniband", function_of_rdma)):
        for folder in sorted((root / "sys/class" / kind).glob("*")):
            if device := function(folder):
                node = nodes.get(folder.name, "") if kind == "infiniband" else ""
                yield Port(folder.name, device, path_of(root, device), node)
