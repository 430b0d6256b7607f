"""Network interfaces of physical devices: carrier and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host import sysfs
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import LINK_COUNTERS_S

_UP = 1
"""IFF_UP: the interface is administratively up."""
_ERRORS = ("rx_errors", "tx_errors", "rx_crc_errors", "rx_fifo_errors", "tx_carrier_errors")
_CABLE = "check the cable, the transceiver and the switch port"


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each interface that is up."""
    folders = sorted((options.root / "sys/class/net").glob("*"))
    physical = [path for path in folders if (path / "device").exists()]
    before = {path.name: _counters(path) for path in physical}
    if any(map(is_up, physical)):
        options.pause(LINK_COUNTERS_S)
    for folder in physical:
        yield replace(_of_one(folder, before[folder.name]), device=pci.address_below(folder))
    if not physical:
        yield unknown(
            "no network interface with hardware behind it is visible",
            "run in the network namespace of the host (hostNetwork)",
        )


def _of_one(folder: Path, before: Mapping[str, int]) -> CheckFinding:
    if not is_up(folder):
        return passed(f"{folder.name}: switched off")
    if sysfs.text(folder / "carrier") != "1":
        return _without_carrier(folder)
    return _errors(folder, before)


def is_up(folder: Path) -> bool:
    """Whether an interface (/sys/class/net/NAME) is switched on; False if there is none."""
    flags = sysfs.text(folder / "flags")
    return flags.startswith("0x") and bool(int(flags, 16) & _UP)


def _without_carrier(folder: Path) -> CheckFinding:
    # a bridge, a VRF and the synthetic interface of a virtual machine are masters too
    if (folder / "master/bonding").exists():
        bond = sysfs.linked_name(folder / "master")
        return failed(f"{folder.name}: no carrier, a member of {bond}", _CABLE)
    text = f"{folder.name}: no carrier, though it is switched on"
    return warned(text, f"{_CABLE}; or switch it off (ip link set {folder.name} down)")


def _errors(folder: Path, before: Mapping[str, int]) -> CheckFinding:
    speed = sysfs.number(folder / "speed")
    head = f"{folder.name}: up" + (f", {speed} Mb/s" if speed else "")
    after = _counters(folder)
    grown = [
        f"{name} +{after[name] - count}" for name, count in before.items() if after[name] > count
    ]
    if grown:
        return warned(f"{head}; within a second {', '.join(grown)}", _CABLE)
    total = after["rx_errors"] + after["tx_errors"]
    return passed(f"{head}, {total} errors since the boot, none of them now")


def _counters(folder: Path) -> dict[str, int]:
    return {name: sysfs.number(folder / "statistics" / name) or 0 for name in _ERRORS}


CHECK = Check(
    "links",
    Cost.LIGHT,
    10.0,
    "carrier of each interface that is switched on (fail for a member of a bond, else warn); errors that grow "
    "within a second",
    "`/sys/class/net`",
    find,
)
