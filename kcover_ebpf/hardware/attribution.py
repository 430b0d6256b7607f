"""What a report about a device means for the processes of a job: who holds it, and is the job lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from kcover_ebpf.facts.devices import (
    AerError,
    AerSeverity,
    DeviceFault,
    DeviceNotice,
    PortChange,
    XidReported,
)
from kcover_ebpf.hardware import fault_rules, open_holders
from kcover_ebpf.hardware.catalog import FIRST_SXID, Catalog
from kcover_ebpf.hardware.device_users import DeviceUsers
from kcover_ebpf.ids import NS, Pid

Members = Collection[Pid]


class Attribution:
    """Joins reports with holders and with the catalogue.

    An RDMA port that is down is reported at once, and is the end of a job that has stalled once it stayed so
    for `patience_ns`: RDMA retries for a while, a link may recover, and another port may take over.
    """

    def __init__(
        self, whose: DeviceUsers, catalog: Callable[[], Catalog], patience_ns: int
    ) -> None:
        self._whose, self._catalog, self._patience_ns = whose, catalog, patience_ns
        self._down: dict[str, PortChange] = {}

    def of_xid(
        self, report: XidReported, members: Members, now_ns: int, driver: str | None
    ) -> list[DeviceFault]:
        """The faults that an Xid or SXid is for `members`; none where it is confined to a process of another job."""
        only = fault_rules.concerns_only(report, self._catalog(), driver)
        if only is not None and only not in members:
            return []
        if report.number >= FIRST_SXID:
            concerned = self._whose.of_any_gpu(members, now_ns)
        else:
            concerned = self._whose.of(report.device, members, now_ns, report.gpu_instance)
        if report.pid is not None and report.pid in members:
            concerned.add(report.pid)
        return self._named(fault_rules.of_xid(report, concerned, self._catalog(), driver))

    def of_aer(self, error: AerError, members: Members, now_ns: int) -> list[DeviceFault]:
        """The faults that a PCIe error is, at the device itself or a port above it."""
        found: list[DeviceFault] = []
        if error.severity is not AerSeverity.CORRECTED:
            for device in self._whose.below(error.device):
                holders = self._whose.of(device, members, now_ns)
                found += fault_rules.of_aer(error, holders, device)
        return self._named(found)

    def of_notice(self, notice: DeviceNotice, members: Members, now_ns: int) -> list[DeviceFault]:
        """The faults that a driver's word without a number is."""
        found: list[DeviceFault] = []
        for device in self._whose.below(notice.device):
            holders = self._whose.of(device, members, now_ns)
            found += fault_rules.of_notice(notice, holders, device)
        return self._named(found)

    def of_port(self, change: PortChange, members: Members) -> list[DeviceFault]:
        """The faults that a change of an RDMA port is."""
        if change.up:
            self._down.pop(change.port, None)
        else:
            self._down.setdefault(change.port, change)
        return self._of_port(change, members)

    def of_time(self, members: Members, now_ns: int) -> list[DeviceFault]:
        """The faults of ports that stayed down; each once."""
        found: list[DeviceFault] = []
        for port, change in list(self._down.items()):
            lasted_ns = now_ns - change.boottime_ns
            if lasted_ns >= self._patience_ns:
                del self._down[port]
                text = f"{change.text}, and has not recovered for {lasted_ns / NS:.0f} s"
                lost = replace(change, boottime_ns=now_ns, text=text)
                found += [
                    replace(each, ends_job=True, if_stalled=True)
                    for each in self._of_port(lost, members)
                ]
        return found

    def _of_port(self, change: PortChange, members: Members) -> list[DeviceFault]:
        name = change.port.partition("/")[0]
        found: list[DeviceFault] = []
        for port in self._whose.topology.ports:
            if port.name == name and port.node:
                holders = open_holders.open_by(members, {port.node})
                found += fault_rules.of_port(change, holders, port.device)
        return found

    def _named(self, found: list[DeviceFault]) -> list[DeviceFault]:
        """With the name that device plug-ins and NVML know a GPU by."""
        return [replace(each, uuid=self._whose.uuid(each.device)) for each in found]
