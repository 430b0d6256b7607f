"""Watches the devices of this host and derives what their reports mean for the processes of a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from kcover_ebpf.devices import families
from kcover_ebpf.devices.aer import AerCounter
from kcover_ebpf.devices.attach import Attachments
from kcover_ebpf.devices.attribution import Attribution
from kcover_ebpf.devices.catalog import Catalog
from kcover_ebpf.devices.device_users import DeviceUsers
from kcover_ebpf.devices.inventory.identity import DeviceIdentities
from kcover_ebpf.devices.inventory.topology import Topology
from kcover_ebpf.devices.ports import PortWatch
from kcover_ebpf.devices.rdma_traffic import FabricReader, FabricWatch
from kcover_ebpf.devices.stuck_ioctl import StuckCalls
from kcover_ebpf.devices.xid import kmsg_reader
from kcover_ebpf.devices.xid.event_sources import Sources
from kcover_ebpf.devices.xid.xid_dedup import XidDedup
from kcover_ebpf.facts.devices import (
    AerError,
    AerTotal,
    AnnouncedFault,
    DeviceFact,
    DeviceFault,
    DeviceNotice,
    DriverChange,
    DriverLine,
    PortChange,
    Rung,
    XidReported,
    XidSighting,
)
from kcover_ebpf.facts.host import ThreadReading
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.host.host_programs import host_root
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.probes import ProbeStatus
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.devices import AER_SETTLE_NS, LOG_SELF_TEST_NS, LOG_SKIPPED_PASSES

if TYPE_CHECKING:
    from kcover_ebpf.collectives.nccl.probes import NcclProbes
    from kcover_ebpf.devices.telemetry.watch import GpuTelemetry, TelemetryOptions

_CONTAINED = 94
"""The Xid of a contained memory error: the application must be restarted, the GPU needs nothing."""
_DRILL = "caused by a drill of kcover, not reported by the driver"
SELF_TEST = "kcover-ebpf self-test"
"""Text written to the kernel log at start, to learn whether the console rung works."""

Reported = list[DeviceFact | AnnouncedFault]
"""Facts about devices and jobs, together with faults of this node."""
_Reader = TypeVar("_Reader")


class DeviceWatch:
    """A context manager; `observe` takes facts of the kernel, `tick` is called once per pass.

    The catalogue is loaded after start-up, which it would slow down, but before the first Xid, because reports of
    several rungs must be handled as they arrive. Without GPUs it is never loaded.

    `pin_driver` allows the driver's own tracepoint, which prevents unloading of the driver. `telemetry` by NVML
    prevents it too; with None, GPUs are not read.
    """

    def __init__(
        self,
        maps: Mapping[str, BpfMap],
        settings: Settings,
        catalog: Callable[[], Catalog],
        *,
        pin_driver: bool = False,
        telemetry: TelemetryOptions | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._read_catalog, self._root = catalog, root
        self._attached = Attachments(maps, settings, root, pin_driver=pin_driver)
        self._kmsg = _opened(lambda: kmsg_reader.KmsgReader(os.fspath(root / "dev/kmsg")))
        self.console_works = False
        self._dedup = XidDedup(Rung.KMSG)
        self.users = DeviceUsers(root)
        self.nccl = _nccl_probes() if settings.nccl_probes else None
        """NCCL probes; None unless enabled by an option."""
        self._stuck = StuckCalls(self.users)
        patience_ns = int(settings.policy.port_patience_s * NS)
        self._attribution = Attribution(self.users, catalog, patience_ns)
        self._ports = _opened(lambda: PortWatch(root))
        self._fabric: FabricWatch | None = None
        self._meet_fabric()
        self.telemetry = None if telemetry is None else self._telemetry(telemetry)
        """GPU telemetry; None if GPUs are not read."""
        self.identities = DeviceIdentities(root, self.users.uuid, self._serial_of)
        self._stale_nic = False
        self._aer = AerCounter()
        self._aer_quiet_ns = 0
        self._line_came, self._unread_passes = False, 0
        self.driver: str | None = None
        """Version of the loaded GPU driver; None if none is loaded."""
        self._stale_driver = False
        self._has_catalog = False
        self._meet_driver()
        self._lines_due_ns = 0 if self._say_self_test() else None

    # --- probes

    @property
    def statuses(self) -> tuple[ProbeStatus, ...]:
        """The state of each device probe and of NVML."""
        nvml = (self.users.nvml.status(),) if self.users.nvml is not None else ()
        nccl = (self.nccl.status,) if self.nccl is not None else ()
        return (*self._attached.statuses, *nvml, *nccl)

    @property
    def rung(self) -> Rung:
        """The best rung of the Xid ladder that works now."""
        return self._dedup.best

    def used(self, device: str) -> Sequence[str]:
        """Devices affected by a fault of `device`: everything below a bridge, otherwise the device itself."""
        return self._attribution.used(device)

    @property
    def topology(self) -> Topology:
        """The devices of this host, including those that disappeared."""
        return self.users.topology

    @property
    def sources(self) -> Sources:
        """What reports device events now. The console counts only after its self-test line arrived."""
        return Sources(
            probes={status.probe for status in self.statuses if status.attached},
            xid_rung=self.rung,
            driver=self.driver is not None,
            console=self.console_works,
            log=self._kmsg is not None,
            links=self._ports is not None,
        )

    @property
    def lost_counts(self) -> dict[str, int]:
        """Records overwritten before they were read, since the start, by source."""
        return {
            "log": self._kmsg.lost_count if self._kmsg is not None else 0,
            "links": self._ports.lost_count if self._ports is not None else 0,
            "nccl": self.nccl.lost_count if self.nccl is not None else 0,
        }

    def _meet_driver(self) -> None:
        """Learn which GPUs the driver has and which rungs can report their Xids."""
        self.users.learn()
        self.driver = _version(self._root)
        self._dedup.best = self._best_rung()
        self._stale_driver = False

    def _telemetry(self, options: TelemetryOptions) -> GpuTelemetry:
        from kcover_ebpf.devices.telemetry.watch import GpuTelemetry

        files = self.users.open_files
        return GpuTelemetry(options, lambda: self.users.topology.gpus, files, self._root)

    def _meet_fabric(self) -> None:
        reader = FabricReader(self._root, self.users.open_files)
        if self._fabric is None and reader.has_ports:
            self._fabric = FabricWatch(reader)

    def _best_rung(self) -> Rung:
        if self._attached.rung is not None or self._kmsg is not None:
            self._leave_nvml()
            # the log reader knows which process wrote a line; the console only announces sooner
            # that there is one
            return self._attached.rung or Rung.KMSG
        if self.driver is None:
            self._leave_nvml()
            return Rung.CONSOLE
        if self.users.nvml is None:
            from kcover_ebpf.devices.nvml import Nvml

            self.users.nvml = Nvml(host_root())
        return Rung.NVML

    def _leave_nvml(self) -> None:
        # it keeps the driver loaded while it is open
        if self.users.nvml is not None:
            self.users.nvml.close()
            self.users.nvml = None

    def _say_self_test(self) -> bool:
        """Write the self-test line; False if the log cannot be written."""
        try:
            kmsg_reader.say(os.fspath(self._root / "dev/kmsg"), f"<7>{SELF_TEST}\n")
        except OSError:
            return False
        return True

    # --- facts

    def observe(self, fact: Fact, members: Collection[Pid]) -> Reported:
        """The facts and faults that follow from a fact of the kernel, for a job with these processes."""
        if not self.users.has_begun:
            self.users.refresh()
        match fact:
            case DriverLine():
                return [*self._on_line(fact, members), *self._read_log(members)]
            case XidSighting():
                # the driver prints before it reports, so the log already contains its message
                return [*self._read_log(members), *self._on_xid(_report(fact), members)]
            case AerTotal():
                self._aer_quiet_ns = _now_ns() + AER_SETTLE_NS
                error = self._aer.on_total(fact)
                return [] if error is None else self._on_aer(error, members)
            case DriverChange():
                self._stale_driver |= fact.module in families.GPU_MODULES
                self._stale_nic |= fact.module == families.NIC_MODULE
            case ThreadReading():
                call = self._stuck.observe(fact)
                return [] if call is None else [call]
            case PortChange():
                if self._ports is not None:
                    self._ports.heard(fact)
                return [*self._attribution.of_port(fact, members)]
            case DeviceNotice():
                return self._on_notice(fact, members)[1:]
            case _:
                self.users.observe(fact)
        return []

    def drilled(self, pid: Pid) -> Sequence[DeviceFault]:
        """The faults that a contained memory error of its GPU would mean for this process.

        No fault of the device is reported.
        """
        now_ns = _now_ns()
        device = self.users.held_gpu(pid, now_ns) or "no GPU"
        xid = XidReported(now_ns, device, _CONTAINED, _DRILL, Rung.KMSG, confirmed=True, pid=pid)
        found = self._attribution.of_xid(xid, (pid,), now_ns, self.driver)
        return [fault for fault in found if isinstance(fault, DeviceFault)]

    def hear_lines(self) -> None:
        """Probe, once, the function that stores log lines if the console does not report them all.

        Needed before Linux 6.0.
        """
        if self._lines_due_ns is None or _now_ns() < self._lines_due_ns:
            return
        if self._lines_due_ns == 0:  # lines from before the first pass may be unread
            self._lines_due_ns = _now_ns() + LOG_SELF_TEST_NS
            return
        self._lines_due_ns = None
        if not self.console_works and self._attached.probe_stored_lines():
            self._say_self_test()

    def tick(self, members: Collection[Pid]) -> Reported:
        """Results of polling, and reports that waited for a better rung; attaches to a new driver."""
        self.hear_lines()
        self.users.refresh()
        if self._stale_driver or self._attached.driver_waits:
            self._attached.reload_gpu()
            self._meet_driver()
        if self._stale_nic:
            self._stale_nic = False
            self._attached.reload_nic()
        if self.users.topology.gpus and not self._has_catalog:
            self._has_catalog = True
            self._read_catalog()
        found: Reported = [*self._poll_log(members), *self._read_clocks(members)]
        if self._ports is not None:
            found += self._poll_ports(self._ports, members)
        found += self._attribution.of_time(members, _now_ns())
        for report in self.users.nvml.take() if self.users.nvml is not None else ():
            found += self._on_xid(report, members)
        for report in self._dedup.overdue(_now_ns()):
            found += self._concerning(report, members)
        if _now_ns() < self._aer_quiet_ns:
            for error in self._aer.on_totals(self._attached.aer_totals()):
                found += self._on_aer(error, members)
        return found

    def _serial_of(self, device: str) -> str:
        return self.telemetry.serial_of(device) if self.telemetry is not None else ""

    def _read_clocks(self, members: Collection[Pid]) -> Iterator[DeviceFact]:
        for clock in (self._fabric, self.telemetry):
            if clock is not None:
                yield from clock.tick(members)

    def _poll_ports(self, ports: PortWatch, members: Collection[Pid]) -> Reported:
        changes = ports.changes(_now_ns())
        if ports.has_new:
            ports.has_new = False
            self.users.learn()
            self._meet_fabric()
        faults = [item for change in changes for item in self._attribution.of_port(change, members)]
        return [*changes, *faults]

    def _on_line(self, line: DriverLine, members: Collection[Pid]) -> Reported:
        self._line_came = True
        if line.text.startswith(SELF_TEST):
            self.console_works = True
            return []
        from kcover_ebpf.devices.xid.kmsg_parser import read_console

        report = read_console(line.text, line.boottime_ns)
        # a notice counts once the log confirms it, which is read next
        return self._on_xid(report, members) if isinstance(report, XidReported) else []

    def _poll_log(self, members: Collection[Pid]) -> Reported:
        """Read the log, unless a working console rung would have announced new lines."""
        if self._kmsg is not None and self.console_works and not self._line_came:
            self._unread_passes += 1
            if self._unread_passes >= LOG_SKIPPED_PASSES:
                self._unread_passes = 0
                self._kmsg.skip()
            return []
        self._line_came = False
        return self._read_log(members)

    def _read_log(self, members: Collection[Pid]) -> Reported:
        found: Reported = []
        for record in self._kmsg.records() if self._kmsg is not None else ():
            from kcover_ebpf.devices.xid.kmsg_parser import read_record

            report = read_record(record, _now_ns())
            if isinstance(report, XidReported):
                found += self._on_xid(report, members)
            elif report is not None:
                found += self._on_notice(report, members)
        return found

    def _on_xid(self, xid: XidReported, members: Collection[Pid]) -> Reported:
        known_xid = self._dedup.observe(xid)
        return [] if known_xid is None else self._concerning(known_xid, members)

    def _concerning(self, xid: XidReported, members: Collection[Pid]) -> Reported:
        return [xid, *self._attribution.of_xid(xid, members, _now_ns(), self.driver)]

    def _on_aer(self, error: AerError, members: Collection[Pid]) -> Reported:
        return [error, *self._attribution.of_aer(error, members, _now_ns())]

    def _on_notice(self, notice: DeviceNotice, members: Collection[Pid]) -> Reported:
        return [notice, *self._attribution.of_notice(notice, members, _now_ns())]

    def close(self) -> None:
        """Detach all probes and stop telemetry and port watching."""
        self._attached.close()
        if self.nccl is not None:
            self.nccl.close()
        self._leave_nvml()
        for reader in (self._kmsg, self._ports, self._fabric, self.telemetry):
            if reader is not None:
                reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nccl_probes() -> NcclProbes:
    from kcover_ebpf.collectives.nccl.probes import NcclProbes

    return NcclProbes()


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _report(sighting: XidSighting) -> XidReported:
    return XidReported(
        sighting.boottime_ns,
        sighting.device,
        sighting.number,
        sighting.text,
        sighting.rung,
        confirmed=True,
    )


def _version(root: Path) -> str | None:
    try:
        return (root / "sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def _opened(reader: Callable[[], _Reader]) -> _Reader | None:
    try:
        return reader()
    except OSError:
        return None
