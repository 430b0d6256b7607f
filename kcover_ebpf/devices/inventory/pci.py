"""The functions on the PCI bus, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host.sysfs import linked_name, text

NVIDIA = "0x10de"
MELLANOX = "0x15b3"


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One PCI function, as sysfs describes it."""

    address: str
    """Kernel form with domain, such as "0000:5d:00.0"."""
    folder: Path
    vendor: str
    """Vendor id in hexadecimal as in sysfs; "0x10de" is NVIDIA."""
    class_code: int
    """Base class, subclass and interface: 0x030200 is a 3D controller."""
    driver: str
    """Name of the bound driver; empty if none is bound."""

    @property
    def is_gpu(self) -> bool:
        """A display controller (0x03) or a processing accelerator (0x12)."""
        return self.class_code >> 16 in (0x03, 0x12)

    @property
    def is_nic(self) -> bool:
        """A network controller (0x02), which InfiniBand adapters are too."""
        return self.class_code >> 16 == 0x02

    @property
    def is_nvidia_gpu(self) -> bool:
        """A GPU for NVIDIA's host driver: neither passed through to a virtual machine nor a virtual function."""
        # vfio-pci, or a variant for one kind of device: nvgrace_gpu_vfio_pci for the GPUs of Grace
        is_given_away = "vfio" in self.driver or self.is_virtual
        return self.is_gpu and self.vendor == NVIDIA and not is_given_away

    @property
    def is_virtual(self) -> bool:
        """A virtual function (SR-IOV), which comes and goes with the virtual machine that uses it."""
        return is_virtual(self.folder)

    @property
    def is_nvswitch(self) -> bool:
        """NVSwitches are bridges of subclass "other"."""
        return self.vendor == NVIDIA and self.class_code >> 8 == 0x0680


def functions(root: Path) -> Iterator[PciFunction]:
    """Every function on the bus, sorted by address; unreadable ones are left out."""
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            class_code = int(text(folder / "class"), 16)
        except ValueError:
            continue
        driver = linked_name(folder / "driver")
        yield PciFunction(folder.name, folder, text(folder / "vendor"), class_code, driver)


def nvidia_gpus(root: Path) -> list[PciFunction]:
    """The GPUs that NVIDIA's host driver should list."""
    return [function for function in functions(root) if function.is_nvidia_gpu]


def has_nvidia(root: Path = Path("/")) -> bool:
    """Whether any NVIDIA device is on the bus, with or without a driver."""
    return any(function.vendor == NVIDIA for function in functions(root))


def path_of(root: Path, device: str) -> tuple[str, ...]:
    """PCI addresses from the root port down to the device; only the device itself if it has left the bus."""
    try:
        real = str((root / "sys/bus/pci/devices" / device).readlink())
    except OSError:
        return (device,)
    return tuple(part for part in real.split("/") if is_pci_address(part))


def is_virtual(function: Path) -> bool:
    """Whether this sysfs folder is a virtual function; inside a virtual machine it is seen as a plain function."""
    return (function / "physfn").exists()


def address_below(folder: Path) -> str:
    """PCI address of the hardware of a network interface or RDMA device; empty if it is not a PCI device."""
    name = linked_name(folder / "device")
    return name if is_pci_address(name) else ""


_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_pci_address(text: str) -> bool:
    """Whether the text is the full address of a PCI function and nothing else."""
    return _ADDRESS.fullmatch(text) is not None


def kernel_address(text: str) -> str:
    """The kernel's form of a PCI address with an eight-digit domain in capitals; empty if it is no address."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[:-4].lstrip('0')}{domain[-4:]}:{rest}" if colon else ""
