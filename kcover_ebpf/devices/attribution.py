"""What a report about a device means for this node, and for the processes under watch that hold the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from kcover_ebpf.devices import fault_rules
from kcover_ebpf.devices.catalog import FIRST_SXID, Catalog
from kcover_ebpf.devices.device_users import DeviceUsers
from kcover_ebpf.devices.fault_rules import XidMeaning
from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    AnnouncedFault,
    DeviceFault,
    DeviceNotice,
    PortChange,
    XidReported,
)
from kcover_ebpf.ids import NS, Pid

Members = Collection[Pid]
Attributed = list[AnnouncedFault | DeviceFault]
"""A fault of the node, and the same for each member that is concerned; or what concerns members alone."""
_MPS = "nvidia-cuda-mps"


class Attribution:
    """Joins reports with the catalogue and with holders; each report is judged once.

    An RDMA port that is down is reported at once, and is the end of a job that has stalled once it stayed so
    for `patience_ns`: RDMA retries for a while, a link may recover, and another port may take over.
    """

    def __init__(
        self, users: DeviceUsers, catalog: Callable[[], Catalog], patience_ns: int
    ) -> None:
        """`catalog` is asked at the first Xid: most nodes never have one."""
        self._users, self._catalog, self._patience_ns = users, catalog, patience_ns
        self._down: dict[str, PortChange] = {}

    def of_xid(
        self, xid: XidReported, members: Members, now_ns: int, driver: str | None
    ) -> Attributed:
        """The fault that an Xid or SXid is; none for what could be forged."""
        meaning = fault_rules.of_xid(xid, self._catalog(), driver)
        if meaning is None:
            return []
        holders = frozenset(self._concerned(xid, meaning, members, now_ns))
        return self._announced(replace(meaning.fault, holders=holders))

    def _concerned(
        self, xid: XidReported, meaning: XidMeaning, members: Members, now_ns: int
    ) -> set[Pid]:
        named = {xid.pid} if xid.pid is not None and xid.pid in members else set()
        # What the server of MPS is named for, its clients did, and all of them end with it.
        if xid.pid is not None and meaning.is_confined and not xid.process.startswith(_MPS):
            return named
        if xid.number >= FIRST_SXID:
            return named | self._users.of_any_gpu(members, now_ns)
        return named | self._users.of(xid.device, members, now_ns, xid.gpu_instance)

    def of_aer(self, error: AerError, members: Members, now_ns: int) -> Attributed:
        """The faults that a PCIe error is, at the device itself or a port above it.

        One that was not fatal is no fault of the node: the device continues.
        """
        found: Attributed = []
        for device in self.used(error.device):
            if (fault := fault_rules.of_aer(error, device)) is not None:
                held = self._held(fault, members, now_ns)
                is_fatal = error.severity is AerSeverity.FATAL
                found += self._announced(held) if is_fatal else self._named(held).of_holders
        return found

    def of_notice(self, notice: DeviceNotice, members: Members, now_ns: int) -> Attributed:
        """The faults that a driver's word without a number is."""
        found: Attributed = []
        for device in self.used(notice.device):
            if (fault := fault_rules.of_notice(notice, device)) is not None:
                found += self._announced(self._held(fault, members, now_ns))
        return found

    def used(self, device: str) -> Sequence[str]:
        """What is used of a device: a bridge's fault is one of all that hangs on it."""
        return sorted(self._users.below(device)) or (device,)

    def of_port(self, change: PortChange, members: Members) -> Attributed:
        """The faults that a change of a port is; an RDMA port that is up again is a word to its holders alone."""
        if change.up:
            self._down.pop(change.port, None)
            return list(self._of_port(change, members).of_holders)
        if change.is_rdma:
            self._down.setdefault(change.port, change)
        elif not self._where(change):
            return []  # of a pod or a tunnel: they come and go
        return self._announced(self._of_port(change, members))

    def of_time(self, members: Members, now_ns: int) -> Attributed:
        """The faults of RDMA ports that stayed down; each once."""
        found: Attributed = []
        for port, change in list(self._down.items()):
            lasted_ns = now_ns - change.boottime_ns
            if lasted_ns >= self._patience_ns:
                del self._down[port]
                text = f"{change.text}, and has not recovered for {lasted_ns / NS:.0f} s"
                lost = replace(change, boottime_ns=now_ns, text=text)
                fault = self._of_port(lost, members)
                found += self._announced(
                    replace(fault, ends_job=True, device_unfit=True, if_stalled=True)
                )
        return found

    def _where(self, change: PortChange) -> str:
        # the RDMA core does not report the address
        return change.device or self._users.function_of(change.port)

    def _of_port(self, change: PortChange, members: Members) -> AnnouncedFault:
        name = change.port.partition("/")[0]
        nodes = {port.node for port in self._users.topology.ports if port.name == name} - {""}
        holders = self._users.open_files.holders(members, nodes)
        fault = fault_rules.of_port(change, self._where(change) or change.port)
        return replace(fault, holders=frozenset(holders))

    def _held(self, fault: AnnouncedFault, members: Members, now_ns: int) -> AnnouncedFault:
        return replace(fault, holders=frozenset(self._users.of(fault.device, members, now_ns)))

    def _announced(self, fault: AnnouncedFault) -> Attributed:
        named = self._named(fault)
        return [named, *named.of_holders]

    def _named(self, fault: AnnouncedFault) -> AnnouncedFault:
        """With the name that device plug-ins and NVML know a GPU by."""
        return replace(fault, uuid=self._users.uuid(fault.device))
