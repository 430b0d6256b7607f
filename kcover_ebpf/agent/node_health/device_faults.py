"""What the devices of this node announced and has not been cleared, and which pods hold them."""

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
"""These last until the device says otherwise; all else is an event."""
_CLEARS = {Notice.NIC_RECOVERED: Notice.NIC_FAILED, Notice.SLOT_UP: Notice.SLOT_DOWN}


@dataclass(frozen=True, slots=True)
class _Known:
    fault: AnnouncedFault
    pods: frozenset[str] = frozenset()


class NodeDeviceFaults:
    """Faults by device (of a port: by its name) and code; a later report of the same replaces the earlier one."""

    def __init__(
        self,
        used: Callable[[str], Sequence[str]],
        identify: Callable[[str], DeviceIdentity] = lambda _: DeviceIdentity(),
    ) -> None:
        """`used`: what is used of a PCI address (`DeviceWatch.used`); `identify`: what is known of one."""
        self._used, self._identify = used, identify
        self._known: dict[tuple[str, str], _Known] = {}
        self.version = 0

    def observe(self, fact: Fact) -> None:
        """Take a fact; only one that says that a device works again changes anything."""
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
        """Take a fault, and the uids of the pods that are concerned."""
        key = (fault.port or fault.device, fault.code)
        before = self._known.get(key)
        if before is None and len(self._known) >= _MOST and not self._made_room(fault):
            return
        if before is not None:
            pods |= before.pods
            if fault.code == PORT_DOWN:  # it was down all the time
                lost = before.fault.ends_job or fault.ends_job
                since_ns = before.fault.boottime_ns
                fault = replace(fault, boottime_ns=since_ns, ends_job=lost, device_unfit=lost)
        self._known[key] = _Known(fault, pods)
        self.version += 1

    def _made_room(self, fault: AnnouncedFault) -> bool:
        """A fault that matters takes the place of the oldest harmless one, of an event first."""
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
        """An inspection saw this device fail and be well again: its faults up to then (boottime) are over."""
        for key, known in list(self._known.items()):
            fault = known.fault
            if fault.device == device and fault.boottime_ns <= until_ns and not _is_harmless(fault):
                self._clear(*key)

    def on_pass(self, now_ns: int) -> None:
        """Harmless events of a day before now (boottime) are dropped."""
        for key, known in list(self._known.items()):
            fault = known.fault
            is_event = _is_harmless(fault) and fault.code not in _STATES
            if is_event and now_ns - fault.boottime_ns >= HARMLESS_REPORTED_NS:
                self._clear(*key)

    def reported(self, now_ns: int) -> tuple[ReportedDeviceFault, ...]:
        """For the node's report; ages in seconds before `now_ns` (boottime)."""
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
    """Which devices each pod has open: uid of the pod to PCI addresses; `members`: process to uid."""
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
    """Neither a job was lost by it, nor is the device unfit for another."""
    return not (fault.ends_job or fault.device_unfit)
