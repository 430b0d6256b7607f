"""What the devices of this node announced and has not been cleared, and which pods hold them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    DeviceFault,
    DeviceNotice,
    Notice,
    PortChange,
    XidReported,
)
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.hardware import fault_rules, open_holders
from kcover_ebpf.hardware.catalog import Catalog
from kcover_ebpf.hardware.identity import DeviceIdentity
from kcover_ebpf.hardware.topology import Topology
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.agent import HARMLESS_REPORTED_NS

_MOST = 64
_TEXT = 1024
_NODE = Pid(0)
"""In place of a holder: what a report means is asked for the device itself, whoever holds it."""
_PORT_DOWN, _LINK_DOWN = "port down", "link down"
_STATES = (_PORT_DOWN, _LINK_DOWN)
"""These last until the device says otherwise; all else is an event."""
_CLEARS = {Notice.NIC_RECOVERED: Notice.NIC_FAILED, Notice.SLOT_UP: Notice.SLOT_DOWN}


@dataclass(frozen=True, slots=True)
class _Known:
    fault: DeviceFault
    pods: frozenset[str] = frozenset()


class NodeDeviceFaults:
    """Faults by device (of a port: by its name) and code; a later report of the same replaces the earlier one."""

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        driver: Callable[[], str | None],
        below: Callable[[str], Collection[str]],
        function_of: Callable[[str], str],
        patience_ns: int,
        identify: Callable[[str], DeviceIdentity] = lambda _: DeviceIdentity(),
    ) -> None:
        """`catalog` is asked at the first Xid: most nodes never have one.

        `driver`: version of the GPU driver that is loaded, on which the meaning of some numbers depends;
        `below`: GPUs and network devices at or below a PCI address; `function_of`: the PCI address of a
        port, which the RDMA core does not report, empty where it is not known; `patience_ns`: an RDMA port
        that was down for so long is a fatal fault, whoever holds it; `identify`: what is known of a PCI address.
        """
        self._catalog, self._driver = catalog, driver
        self._below, self._function_of = below, function_of
        self._patience_ns, self._identify = patience_ns, identify
        self._known: dict[tuple[str, str], _Known] = {}
        self.version = 0

    def observe(self, fact: Fact) -> None:
        """Take a fact; most concern no device."""
        port = fact.port if isinstance(fact, PortChange) else ""
        for fault in self._faults(fact):
            self._note((port or fault.device, fault.code), fault)

    def _faults(self, fact: Fact) -> list[DeviceFault]:
        match fact:
            case XidReported():
                return fault_rules.of_xid(fact, (_NODE,), self._catalog(), self._driver())
            case AerError() if fact.severity is AerSeverity.FATAL:
                devices = self._concerned(fact.device)
                return [each for at in devices for each in fault_rules.of_aer(fact, (_NODE,), at)]
            case DeviceNotice():
                devices = self._concerned(fact.device)
                if (cleared := _CLEARS.get(fact.notice)) is not None:
                    for at in devices:
                        self._clear(at, cleared.value)
                return [
                    each for at in devices for each in fault_rules.of_notice(fact, (_NODE,), at)
                ]
            case PortChange() if fact.up:
                for code in (_PORT_DOWN, _LINK_DOWN):
                    self._clear(fact.port, code)
                return []
            case PortChange():
                where = fact.device or self._function_of(fact.port)
                if not where and not fact.is_rdma:
                    return []  # of a pod or a tunnel: they come and go
                return fault_rules.of_port(fact, (_NODE,), where or fact.port)
            case _:
                return []

    def _concerned(self, device: str) -> Sequence[str]:
        """What is used of a device: a port's fault is one of all that hangs on it."""
        return sorted(self._below(device)) or (device,)

    def _note(self, key: tuple[str, str], fault: DeviceFault) -> None:
        before = self._known.get(key)
        if before is None and len(self._known) >= _MOST and not self._made_room(fault):
            return
        if before is not None and fault.code == _PORT_DOWN:
            since_ns = before.fault.boottime_ns  # it was down all the time
            lost = before.fault.ends_job
            fault = replace(fault, boottime_ns=since_ns, ends_job=lost, device_unfit=lost)
        self._known[key] = _Known(fault, before.pods if before else frozenset())
        self.version += 1

    def _made_room(self, fault: DeviceFault) -> bool:
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

    def hold(self, fault: DeviceFault, pod_uid: str) -> None:
        """A process of this pod holds the device of a fault."""
        for key, known in self._known.items():
            if known.fault.device == fault.device and pod_uid and pod_uid not in known.pods:
                self._known[key] = replace(known, pods=known.pods | {pod_uid})
                self.version += 1

    def on_pass(self, now_ns: int) -> None:
        """Ports that stayed down until now (boottime) have become fatal; harmless events of a day ago are dropped."""
        for key, known in list(self._known.items()):
            fault = known.fault
            lasted_ns = now_ns - fault.boottime_ns
            if (
                _is_harmless(fault)
                and fault.code not in _STATES
                and lasted_ns >= HARMLESS_REPORTED_NS
            ):
                self._clear(*key)
            elif fault.code == _PORT_DOWN and not fault.ends_job and lasted_ns >= self._patience_ns:
                lost = replace(fault, ends_job=True, device_unfit=True)
                self._known[key] = replace(known, fault=lost)
                self.version += 1

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


def devices_of(topology: Topology, members: Mapping[Pid, str]) -> dict[str, tuple[str, ...]]:
    """Which devices each pod has open: uid of the pod to PCI addresses; `members`: process to uid."""
    nodes = {f"/dev/nvidia{gpu.minor}": gpu.device for gpu in topology.gpus if gpu.minor >= 0}
    nodes |= {port.node: port.device for port in topology.ports if port.node}
    if not nodes:
        return {}
    found: dict[str, set[str]] = {}
    for node, device in nodes.items():
        for pid in open_holders.open_by(members.keys(), {node}):
            found.setdefault(members[pid], set()).add(device)
    return {uid: tuple(sorted(devices)) for uid, devices in found.items()}


def _is_harmless(fault: DeviceFault) -> bool:
    """Neither a job was lost by it, nor is the device unfit for another."""
    return not (fault.ends_job or fault.device_unfit)
