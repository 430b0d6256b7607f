"""What a technician needs to replace a device: UUID, serial number of the board, slot of the chassis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory import pci


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Identity of one device; each field is empty if unknown."""

    uuid: str = ""
    serial: str = ""
    slot: str = ""
    """Slot number as the firmware assigns it to the chassis (/sys/bus/pci/slots)."""


class DeviceIdentities:
    """Identities of the devices of this host, including devices that disappeared after they were read."""

    def __init__(
        self, root: Path, uuid_of: Callable[[str], str], serial_of: Callable[[str], str]
    ) -> None:
        self._root, self._uuid_of, self._serial_of = root, uuid_of, serial_of
        self._slots: dict[str, str] = {}

    def of(self, device: str) -> DeviceIdentity:
        """Identity by PCI address; never waits for a device."""
        slot = self._slots.get(device)
        if slot is None:
            slot = self._slots[device] = slot_of(self._root, device)
        return DeviceIdentity(self._uuid_of(device), self._serial_of(device), slot)


def slot_of(root: Path, device: str) -> str:
    """Slot of a device or of the nearest port above it; empty if the firmware names no slot."""
    slots = {}
    for file in (root / "sys/bus/pci/slots").glob("*/address"):
        try:
            slots[file.read_text(encoding="ascii").strip()] = file.parent.name
        except (OSError, ValueError):
            continue
    for address in reversed(pci.path_of(root, device)):
        if found := slots.get(address.rpartition(".")[0]):
            return found
    return ""
