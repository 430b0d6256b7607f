"""What a device report means for this node and for those watched processes that use the device."""

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
"""A fault of the node and the same fault for each affected process; or faults of processes alone."""
_MPS = "nvidia-cuda-mps"


class Attribution:
    """Joins reports with the catalogue and with the users of the device; judges each report once.

    An RDMA port that goes down is reported at once. It counts as the end of a stalled job only after it has stayed
    down for `patience_ns`: RDMA retries for a while, the link may recover, and another port may take over.
    """

    def __init__(
        self, users: DeviceUsers, catalog: Callable[[], Catalog], patience_ns: int
    ) -> None:
        """`catalog` is called at the first Xid, because most nodes never see one."""
        self._users, self._catalog, self._patience_ns = users, catalog, patience_ns
        self._down: dict[str, PortChange] = {}

    def of_xid(
        self, xid: XidReported, members: Members, now_ns: int, driver: str | None
    ) -> Attributed:
        """The fault that an Xid or SXid means; empty if user space could have forged the report."""
        meaning = fault_rules.of_xid(xid, self._catalog(), driver)
        if meaning is None:
            return []
        holders = frozenset(self._concerned(xid, meaning, members, now_ns))
        return self._announced(replace(meaning.fault, holders=holders))

    def _concerned(
        self, xid: XidReported, meaning: XidMeaning, members: Members, now_ns: int
    ) -> set[Pid]:
        named = {xid.pid} if xid.pid is not None and xid.pid in members else set()
        # The MPS server is named for an error of one of its clients, and all clients end with it.
        if xid.pid is not None and meaning.is_confined and not xid.process.startswith(_MPS):
            return named
        if xid.number >= FIRST_SXID:
            return named | self._users.of_any_gpu(members, now_ns)
        return named | self._users.of(xid.device, members, now_ns, xid.gpu_instance)

    def of_aer(self, error: AerError, members: Members, now_ns: int) -> Attributed:
        """The faults that a PCIe error causes at the device or at a port above it.

        An error that was not fatal is not a fault of the node, because the device keeps working.
        """
        found: Attributed = []
        for device in self.used(error.device):
            if (fault := fault_rules.of_aer(error, device)) is not None:
                held = self._held(fault, members, now_ns)
                is_fatal = error.severity is AerSeverity.FATAL
                found += self._announced(held) if is_fatal else self._named(held).of_holders
        return found

    def of_notice(self, notice: DeviceNotice, members: Members, now_ns: int) -> Attributed:
        """The faults that a driver message without an Xid number means."""
        found: Attributed = []
        for device in self.used(notice.device):
            if (fault := fault_rules.of_notice(notice, device)) is not None:
                found += self._announced(self._held(fault, members, now_ns))
        return found

    def used(self, device: str) -> Sequence[str]:
        """Devices affected by a fault of `device`: everything below a bridge, otherwise the device itself."""
        return sorted(self._users.below(device)) or (device,)

    def of_port(self, change: PortChange, members: Members) -> Attributed:
        """The faults that a port change means.

        That an RDMA port is up again is reported only to the processes that use it.
        """
        if change.up:
            self._down.pop(change.port, None)
            return list(self._of_port(change, members).of_holders)
        if change.is_rdma:
            self._down.setdefault(change.port, change)
        elif not self._where(change):
            return []  # interfaces of pods and tunnels come and go
        return self._announced(self._of_port(change, members))

    def of_time(self, members: Members, now_ns: int) -> Attributed:
        """The faults of RDMA ports that stayed down longer than the patience; each is returned once."""
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
        # the RDMA core does not report the PCI address
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
        """The same fault with the GPU's UUID, the name that device plug-ins and NVML use."""
        return replace(fault, uuid=self._users.uuid(fault.device))
