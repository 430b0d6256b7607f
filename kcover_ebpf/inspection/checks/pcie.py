"""The PCIe link of every GPU and network adapter, compared with what both of its ends support."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host import sysfs
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned

_RESEAT = "reseat or replace the device, riser or cable"


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each GPU and network adapter."""
    devices = [
        function for function in pci.functions(options.root) if function.is_gpu or function.is_nic
    ]
    found = [finding for device in devices for finding in _of_one(device)]
    yield from found
    if not found:
        yield unknown(
            f"none of {len(devices)} GPUs and network adapters on the bus has a PCIe link to read",
            "run on the host: a virtual machine may not show the links",
        )


def _of_one(function: pci.PciFunction) -> Iterator[CheckFinding]:
    kind = "GPU" if function.is_gpu else "NIC"
    name = f"{kind} {function.address}"
    real = function.folder.resolve()
    width, most = sysfs.number(real / "current_link_width"), _common(real, "max_link_width")
    speed, highest = _speed(real / "current_link_speed"), _common(real, "max_link_speed")
    if not width or not most:
        return
    link = f"x{width} at {speed:g} GT/s"
    slow = highest is not None and speed < highest
    if width < most:
        yield failed(f"{name}: {link}, x{most:g} is possible", _RESEAT, function.address)
    elif slow and function.is_nic:
        text = f"{name}: {link}, {highest:g} GT/s is possible"
        yield warned(text, _RESEAT, function.address)
    elif slow:
        # An idle GPU lowers the link speed to save power; `nvml` judges it by the performance
        # state.
        yield passed(f"{name}: {link} of {highest:g}, as an idle GPU may", function.address)
    else:
        yield passed(f"{name}: {link}", function.address)
    yield from _errors(real, name, function.address)


def _common(device: Path, attribute: str) -> float | None:
    """The value that both the device and the port above it support: a x16 card in a x8 slot is not a fault."""
    values = [_speed(folder / attribute) for folder in (device, device.parent)]
    return min((value for value in values if value), default=None)


def _speed(path: Path) -> float:
    """The number at the beginning of an attribute such as "32.0 GT/s PCIe"; 0 for "Unknown"."""
    word = sysfs.text(path).partition(" ")[0]
    try:
        return float(word)
    except ValueError:
        return 0.0


def _errors(device: Path, name: str, address: str) -> Iterator[CheckFinding]:
    for severity in ("fatal", "nonfatal"):
        total = f"TOTAL_ERR_{severity.upper()}"
        for line in sysfs.text(device / f"aer_dev_{severity}").splitlines():
            key, _, count = line.partition(" ")
            if key == total and count.isdecimal() and int(count):
                text = f"{name}: {count} {severity} PCIe error(s) since the last boot"
                yield warned(text, f"see dmesg for AER; {_RESEAT}", address)


CHECK = Check(
    "pcie",
    Cost.LIGHT,
    10.0,
    "width and speed of each GPU's (classes 0x03, 0x12) and network adapter's link, against what device and "
    "slot can do; fatal and non-fatal errors since the boot",
    "`/sys/bus/pci/devices`",
    find,
)
