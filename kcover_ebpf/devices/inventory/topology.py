"""The devices of this host and the PCIe ports that they are below: read from /proc and /sys."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory.gpu_vendors import VENDORS, Gpu
from kcover_ebpf.devices.inventory.pci import is_pci_address, path_of
from kcover_ebpf.host.sysfs import text


@dataclass(frozen=True, slots=True)
class Port:
    """One network or RDMA device that is a PCI device."""

    name: str
    device: str
    path: tuple[str, ...]
    node: str
    """Its RDMA device file ("/dev/infiniband/uverbs0"); empty for a plain interface."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The devices of a host at one moment."""

    gpus: tuple[Gpu, ...] = ()
    ports: tuple[Port, ...] = ()

    def gpus_below(self, device: str) -> tuple[Gpu, ...]:
        """The GPU at this PCI address, or all GPUs below it if it is a bridge."""
        return tuple(gpu for gpu in self.gpus if device in gpu.path)

    def ports_below(self, device: str) -> tuple[Port, ...]:
        """The network devices at or below this PCI address."""
        return tuple(port for port in self.ports if device in port.path)

    def joined(self, newer_topology: Topology) -> Topology:
        """Union with a newer topology: a device that disappeared stays known, because it may have failed."""
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
    """The current topology; unreadable devices are left out."""
    return Topology(
        tuple(gpu for vendor in VENDORS for gpu in vendor.gpus(root)), tuple(_ports(root))
    )


_MIG_ACCESS = re.compile(r"gpu(\d+)/gi(\d+)/(?:ci\d+/)?access (\d+)")


def mig_nodes(root: Path, minor: int, instance: int) -> frozenset[str]:
    """Device files that a process must open to use a MIG instance of /dev/nvidiaN; `minor` is N."""
    table = _MIG_ACCESS.findall(text(root / "proc/driver/nvidia-caps/mig-minors"))
    return frozenset(
        f"/dev/nvidia-caps/nvidia-cap{number}"
        for gpu, found, number in table
        if (int(gpu), int(found)) == (minor, instance)
    )


def function_of(folder: Path) -> str:
    """The PCI function behind a sysfs device, also across another bus (virtio, parts of a NIC).

    Empty for a device without hardware.
    """
    link = folder / "device"
    parts = os.path.realpath(link).split("/") if link.is_symlink() else []
    return next((part for part in reversed(parts) if is_pci_address(part)), "")


def function_of_rdma(folder: Path) -> str:
    """The PCI function of an RDMA device.

    A software device (rxe, siw) has that of its network interface; newer kernels give it no parent device
    (/sys/devices/virtual/infiniband).
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
