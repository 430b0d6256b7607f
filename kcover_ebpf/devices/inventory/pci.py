"""What is on the PCI bus, from sysfs."""

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
    """One function on the bus."""

    address: str
    """Such as "0000:5d:00.0"."""
    folder: Path
    vendor: str
    """Such as "0x10de"."""
    class_code: int
    """Base class, subclass and interface: 0x030200 is a 3D controller."""
    driver: str
    """Empty without one."""

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
        """A GPU for NVIDIA's driver: not one that was given to a virtual machine, nor a part for one."""
        is_given_away = self.driver == "vfio-pci" or self.is_virtual
        return self.is_gpu and self.vendor == NVIDIA and not is_given_away

    @property
    def is_virtual(self) -> bool:
        """A virtual function (SR-IOV): they come and go with the virtual machines that use them."""
        return is_virtual(self.folder)

    @property
    def is_nvswitch(self) -> bool:
        """NVSwitches are bridges of the subclass "other"."""
        return self.vendor == NVIDIA and self.class_code >> 8 == 0x0680


def functions(root: Path) -> Iterator[PciFunction]:
    """Every function of the bus, by address; what cannot be read is left out."""
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            class_code = int(text(folder / "class"), 16)
        except ValueError:
            continue
        driver = linked_name(folder / "driver")
        yield PciFunction(folder.name, folder, text(folder / "vendor"), class_code, driver)


def nvidia_gpus(root: Path) -> list[PciFunction]:
    """The GPUs that NVIDIA's driver should have."""
    return [function for function in functions(root) if function.is_nvidia_gpu]


def has_nvidia(root: Path = Path("/")) -> bool:
    """Whether the bus has anything of NVIDIA's, with or without a driver."""
    return any(function.vendor == NVIDIA for function in functions(root))


def path_of(root: Path, device: str) -> tuple[str, ...]:
    """The PCI addresses above a device, and itself; just itself when it has left the bus."""
    try:
        real = str((root / "sys/bus/pci/devices" / device).readlink())
    except OSError:
        return (device,)
    return tuple(part for part in real.split("/") if is_pci_address(part))


def is_virtual(function: Path) -> bool:
    """Whether this folder is that of a virtual function; in a virtual machine that has it, it is not."""
    return (function / "physfn").exists()


def address_below(folder: Path) -> str:
    """The PCI address behind a network interface or an RDMA device; empty where it hangs on no such bus."""
    name = linked_name(folder / "device")
    return name if is_pci_address(name) else ""


_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_pci_address(text: str) -> bool:
    """Whether this names one function of a PCI device, and nothing else."""
    return _ADDRESS.fullmatch(text) is not None


def kernel_address(text: str) -> str:
    """The kernel's form of a PCI address with eight digits of domain, in capitals; empty for no address."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[:-4].lstrip('0')}{domain[-4:]}:{rest}" if colon else ""
