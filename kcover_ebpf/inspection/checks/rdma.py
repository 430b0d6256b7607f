"""RDMA ports: state, rate compared with ports of the same kind, error counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host import sysfs
from kcover_ebpf.inspection.checks.links import is_up
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import RDMA_COUNTERS_S

_ERRORS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/link_downed",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
)
_CABLE = "check the cable, the transceiver and the switch port"


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each port except those of virtual functions, which are down on a healthy card while unused."""
    all_ports = sorted((options.root / "sys/class/infiniband").glob("*/ports/*"))
    ports = [path for path in all_ports if not pci.is_virtual(path.parents[1] / "device")]
    if not ports:
        yield _only_virtual() if all_ports else _no_port(options)
        return
    before = {port: _counters(port) for port in ports}
    options.pause(RDMA_COUNTERS_S)
    best: dict[str, float] = {}
    for port in ports:
        best[_kind(port)] = max(best.get(_kind(port), 0.0), _rate(port))
    for port in ports:
        finding = _of_one(port, best[_kind(port)], before[port])
        yield replace(finding, device=pci.address_below(port.parents[1]))


def _no_port(options: InspectionOptions) -> CheckFinding:
    if any(
        function.is_nic and function.vendor == pci.MELLANOX
        for function in pci.functions(options.root)
    ):
        text = "an RDMA adapter is on the bus, but no RDMA device is there"
        return warned(text, "modprobe mlx5_ib")
    return unknown(
        "no RDMA device is visible", "expected on a node without RDMA; otherwise load its driver"
    )


def _only_virtual() -> CheckFinding:
    return unknown(
        "only virtual functions have RDMA devices here",
        "expected if the card itself was given to a virtual machine; otherwise load its driver",
    )


def _of_one(port: Path, best: float, before: Mapping[str, int]) -> CheckFinding:
    name = f"{port.parts[-3]}/{port.name}"
    # The kernel writes a number before the word, as in "1: DOWN" and "3: Disabled".
    state = sysfs.text(port / "state").partition(": ")[2]
    physical = sysfs.text(port / "phys_state").partition(": ")[2]
    if state != "ACTIVE":
        if physical == "Disabled":
            return _disabled(port, name)
        if state in ("INIT", "ARMED"):
            advice = "check the subnet manager (opensm)"
            return failed(f"{name}: {state}, the subnet manager has not configured it", advice)
        return failed(f"{name}: {state or 'state unknown'} ({physical or 'no link'})", _CABLE)
    rate = _rate(port)
    if rate < best:
        text = f"{name}: {rate:g} Gb/s, another port of this kind has {best:g}"
        return warned(text, _CABLE)
    after = _counters(port)
    grown = [f"{key.partition('/')[2]} +{after[key] - count}" for key, count in before.items()
             if after.get(key, 0) > count]  # fmt: skip
    if grown:
        return warned(f"{name}: {rate:g} Gb/s; within a second {', '.join(grown)}", _CABLE)
    return passed(f"{name}: ACTIVE, {rate:g} Gb/s{_history(after)}")


def _disabled(port: Path, name: str) -> CheckFinding:
    """The finding for a port that its driver reports as disabled.

    Drivers for Ethernet report so any port without a link (mlx5_query_port_roce, bnxt_re_query_port). Only the
    interface says whether it was switched off; one that never had a link may have no cable.
    """
    interface = sysfs.text(port / "gid_attrs/ndevs/0")
    folder = port.parents[3] / "net" / interface
    if not interface or not is_up(folder):
        return passed(f"{name}: switched off")
    if sysfs.number(folder / "carrier_up_count"):
        return failed(f"{name}: {interface} is switched on, and has lost its link", _CABLE)
    text = f"{name}: {interface} is switched on, and has had no link since the boot"
    return warned(text, f"{_CABLE}; or switch it off (ip link set {interface} down)")


def _history(counters: Mapping[str, int]) -> str:
    """Text of the error counters; empty if the driver has none, as often with RDMA over Ethernet."""
    counts = [count for name, count in counters.items() if name.endswith("/link_downed")]
    return f", went down {max(counts)} time(s) since the boot" if counts else ""


def _kind(port: Path) -> str:
    """Only ports with equal model and link layer are compared: a storage adapter may be slower by design."""
    return f"{sysfs.text(port.parents[1] / 'hca_type')} {sysfs.text(port / 'link_layer')}"


def _rate(port: Path) -> float:
    """Gigabits per second, from "400 Gb/sec (4X NDR)"."""
    word = sysfs.text(port / "rate").partition(" ")[0]
    try:
        return float(word)
    except ValueError:
        return 0.0


def _counters(port: Path) -> dict[str, int]:
    found = {name: sysfs.number(port / name) for name in _ERRORS}
    return {name: count for name, count in found.items() if count is not None}


CHECK = Check(
    "rdma",
    Cost.LIGHT,
    10.0,
    "each port, except of virtual functions (SR-IOV), is ACTIVE unless it was switched off (only a warning on Ethernet "
    "without a link since the boot), as fast as others of its model, and its error counters do not grow within a "
    "second",
    "`/sys/class/infiniband`",
    find,
)
