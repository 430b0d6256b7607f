"""Faults that devices of this node announced and that are not cleared yet, and the pods that use the devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.fault_rules import LINK_DOWN, PORT_DOWN
from kcover_ebpf.devices.inventory.identity import DeviceIdentity
from kcover_ebpf.devices.inventory.topology import Topology
from kcover_ebpf.facts.devices import AnnouncedFault, DeviceNotice, Notice, PortChange
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.agent import HARMLESS_REPORTED_NS

_MOST = 64
_TEXT = 1024
_STATES = (PORT_DOWN, LINK_DOWN)
"""Faults that last until the device reports otherwise; all others are events."""
_CLEARS = {Notice.NIC_RECOVERED: Notice.NIC_FAILED, Notice.SLOT_UP: Notice.SLOT_DOWN}


@dataclass(frozen=True, slots=True)
class _Known:
    fault: AnnouncedFault
    pods: frozenset[str] = frozenset()


class NodeDeviceFaults:
    """Faults by device (a port: by its name) and code; a later report of the same fault replaces the earlier one."""

    def __init__(
        self,
        used: Callable[[str], Sequence[str]],
        identify: Callable[[str], DeviceIdentity] = lambda _: DeviceIdentity(),
    ) -> None:
        """`used`: uses of a PCI address (`DeviceWatch.used`); `identify`: identity of the device at an address."""
        self._used, self._identify = used, identify
        self._known: dict[tuple[str, str], _Known] = {}
        self.version = 0

    def observe(self, fact: Fact) -> None:
        """Take a fact; only a fact that a device works again changes anything."""
        match fact:
            case DeviceNotice() if (cleared := _CLEARS.get(fact.notice)) is not None:
                for device in self._used(fact.device):
                    self._clear(device, cleared.value)
            case PortChange(up=True):
                for code in _STATES:
                    self._clear(fact.port, code)
            case _:
                pass

    def add(self, fault: AnnouncedFault, pods: frozenset[str]) -> None:
        """Add a fault, with the uids of the pods that it affects."""
        key = (fault.port or fault.device, fault.code)
        before = self._known.get(key)
        if before is None and len(self._known) >= _MOST and not self._made_room(fault):
            return
        if before is not None:
            pods |= before.pods
            if fault.code == PORT_DOWN:  # the port was down the whole time
                lost = before.fault.ends_job or fault.ends_job
                since_ns = before.fault.boottime_ns
                fault = replace(fault, boottime_ns=since_ns, ends_job=lost, device_unfit=lost)
        self._known[key] = _Known(fault, pods)
        self.version += 1

    def _made_room(self, fault: AnnouncedFault) -> bool:
        """Make room for a fault that matters by dropping the oldest harmless one, events first."""
        harmless = [key for key, known in self._known.items() if _is_harmless(known.fault)]
        if _is_harmless(fault) or not harmless:
            return False
        del self._known[min(harmless, key=self._worth)]
        return True

    def _worth(self, key: tuple[str, str]) -> tuple[bool, int]:
        fault = self._known[key].fault
        return fault.code in _STATES, fault.boottime_ns

    def _clear(self, device: str, code: str) -> None:
        if self._known.pop((device, code), None) is not None:
            self.version += 1

    def mend(self, device: str, until_ns: int) -> None:
        """Clear the faults of this device up to this time (boottime): an inspection saw it fail, then pass."""
        for key, known in list(self._known.items()):
            fault = known.fault
            if fault.device == device and fault.boottime_ns <= until_ns and not _is_harmless(fault):
                self._clear(*key)

    def on_pass(self, now_ns: int) -> None:
        """Drop harmless events older than a day; `now_ns` in boottime."""
        for key, known in list(self._known.items()):
            fault = known.fault
            is_event = _is_harmless(fault) and fault.code not in _STATES
            if is_event and now_ns - fault.boottime_ns >= HARMLESS_REPORTED_NS:
                self._clear(*key)

    def reported(self, now_ns: int) -> tuple[ReportedDeviceFault, ...]:
        """Faults for the node's report, with ages in seconds before `now_ns` (boottime)."""
        return tuple(
            ReportedDeviceFault(
                device=fault.device,
                uuid=fault.uuid or identity.uuid or None,
                serial=identity.serial or None,
                slot=identity.slot or None,
                fault=re.sub(r"\W+", "_", fault.code.lower()),
                text=fault.text[:_TEXT],
                fatal=fault.ends_job,
                unfit=fault.device_unfit,
                age_s=round((now_ns - fault.boottime_ns) / NS, 3),
                pods=tuple(sorted(known.pods)),
            )
            for known in self._known.values()
            for fault in (known.fault,)
            for identity in (self._identify(fault.device),)
        )


def devices_of(
    topology: Topology, members: Mapping[Pid, str], files: OpenFiles
) -> dict[str, tuple[str, ...]]:
    """Open devices by pod: uid of the pod -> PCI addresses; `members`: process -> uid."""
    nodes = {node: gpu.device for gpu in topology.gpus for node in gpu.nodes}
    nodes |= {port.node: port.device for port in topology.ports if port.node}
    if not nodes:
        return {}
    found: dict[str, set[str]] = {}
    for pid, paths in files.of(members.keys(), nodes.keys()).items():
        if paths:
            found.setdefault(members[pid], set()).update(nodes[path] for path in paths)
    return {uid: tuple(sorted(devices)) for uid, devices in found.items()}


def _is_harmless(fault: AnnouncedFault) -> bool:
    """True if the fault ended no job and leaves the device fit for others."""
    return not (fault.ends_job or fault.device_unfit)
