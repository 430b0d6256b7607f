"""Watches the devices of this host, and says what their reports mean for the processes of a job."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Self

from kcover_ebpf.device_facts import (
    AerError,
    AerSeverity,
    AerTotal,
    CudaContext,
    DeviceFact,
    DeviceHeld,
    DeviceNotice,
    DriverChange,
    DriverLine,
    PortChange,
    Rung,
    XidReported,
    XidSighting,
)
from kcover_ebpf.facts import Fact, Pid, ProcessExit
from kcover_ebpf.hardware import families, faults, ownership, topology
from kcover_ebpf.hardware.aer import AerCounter
from kcover_ebpf.hardware.attach import Attachments
from kcover_ebpf.hardware.catalog import FIRST_SXID, Catalog
from kcover_ebpf.hardware.kernlog import read_console, read_record
from kcover_ebpf.hardware.kmsg import KmsgReader
from kcover_ebpf.hardware.ladder import Ladder
from kcover_ebpf.hardware.ports import PortWatch
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.probes import ProbeStatus
from kcover_ebpf.settings import Settings

SELF_TEST = "kcover-ebpf self-test"
"""Text that is written to the kernel log at start, to learn whether the console rung works."""

_AER_SETTLE_NS = 3_000_000_000
"""Longer than the kernel half stays silent about a device after it told an error."""


class DeviceWatch:
    """A context manager; `observe` takes the kernel's facts, `tick` is asked once a pass.

    `catalog` is read after the start, which it would make longer, and before the first Xid: reports of
    several rungs must be taken as they come. Without GPUs it is never read.
    `pin_driver` allows the driver's tracepoint, which keeps the driver from being unloaded.
    """

    def __init__(
        self,
        maps: Mapping[str, BpfMap],
        settings: Settings,
        catalog: Callable[[], Catalog],
        *,
        pin_driver: bool = False,
        root: Path = Path("/"),
    ) -> None:
        self._read_catalog, self._root = catalog, root
        self._attached = Attachments(maps, settings, root, pin_driver=pin_driver)
        self._kmsg = _open_kmsg(root)
        self.console_works = False
        self.ladder = Ladder(Rung.KMSG)
        self.topology = topology.Topology()
        self._holders = ownership.Holders()
        self._ports = _open_ports(root)
        self._stale_nic = False
        self._aer = AerCounter()
        self._aer_quiet_ns = 0
        self._line_came = False
        self._driver_version: str | None = None
        self._stale_driver = False
        self._has_catalog = False
        self._meet_driver()
        self._say_self_test()

    # --- probes

    @property
    def statuses(self) -> tuple[ProbeStatus, ...]:
        """What became of each probe."""
        return self._attached.statuses

    @property
    def rung(self) -> Rung:
        """The best rung of the Xid ladder that works now."""
        return self.ladder.best

    def _meet_driver(self) -> None:
        """Learn which GPUs the driver has, and how it can be heard."""
        self.topology = self.topology.joined(topology.read(self._root))
        # who reads the log knows who wrote a line; the console only says sooner that there is one
        log = Rung.KMSG if self._kmsg is not None else Rung.CONSOLE
        self.ladder.best = self._attached.rung or log
        self._driver_version = _version(self._root)
        self._stale_driver = False

    def _say_self_test(self) -> None:
        with contextlib.suppress(OSError), open(self._root / "dev/kmsg", "w") as log:
            log.write(f"<7>{SELF_TEST}\n")

    # --- facts

    def observe(self, fact: Fact, members: Collection[Pid]) -> list[DeviceFact]:
        """What follows from a fact of the kernel half, for a job with these processes."""
        match fact:
            case DriverLine():
                return [*self._on_line(fact, members), *self._read_log(members)]
            case XidSighting():
                # the driver prints before it reports: its words are in the log by now
                return [*self._read_log(members), *self._on_xid(_report(fact), members)]
            case AerTotal():
                self._aer_quiet_ns = _now_ns() + _AER_SETTLE_NS
                error = self._aer.on_total(fact)
                return [] if error is None else self._on_aer(error, members)
            case DeviceHeld():
                self._holders.on_held(fact)
            case CudaContext():
                self._holders.on_context(fact)
            case DriverChange():
                self._stale_driver |= fact.module in families.GPU_MODULES
                self._stale_nic |= fact.module == families.NIC_MODULE
            case PortChange():
                return self._on_port(fact, members)[1:]
            case DeviceNotice():
                return self._on_notice(fact, members)[1:]
            case ProcessExit():
                self._holders.on_exit(fact.pid)
            case _:
                pass
        return []

    def tick(self, members: Collection[Pid]) -> list[DeviceFact]:
        """What polling finds, and what waited for a better rung; attaches to a new driver."""
        if self._stale_driver or self._attached.driver_waits:
            self._attached.reload_gpu()
            self._meet_driver()
        if self._stale_nic:
            self._stale_nic = False
            self._attached.reload_nic()
        if self.topology.gpus and not self._has_catalog:
            self._has_catalog = True
            self._read_catalog()
        found = self._poll_log(members)
        if self._ports is not None:
            for change in self._ports.changes(_now_ns()):
                found += self._on_port(change, members)
        for report in self.ladder.overdue(_now_ns()):
            found += self._concerning(report, members)
        if _now_ns() < self._aer_quiet_ns:
            for error in self._aer.on_look(self._attached.aer_totals()):
                found += self._on_aer(error, members)
        return found

    def _on_line(self, line: DriverLine, members: Collection[Pid]) -> list[DeviceFact]:
        self._line_came = True
        if line.text.startswith(SELF_TEST):
            self.console_works = True
            return []
        report = read_console(line.text, line.boottime_ns)
        # a notice counts when the log confirms it, which is read next
        return self._on_xid(report, members) if isinstance(report, XidReported) else []

    def _poll_log(self, members: Collection[Pid]) -> list[DeviceFact]:
        """Read the log, unless the console would have said that there is something in it."""
        if self._kmsg is not None and self.console_works and not self._line_came:
            self._kmsg.skip()
            return []
        self._line_came = False
        return self._read_log(members)

    def _read_log(self, members: Collection[Pid]) -> list[DeviceFact]:
        found: list[DeviceFact] = []
        for record in self._kmsg.records() if self._kmsg is not None else ():
            report = read_record(record, _now_ns())
            if isinstance(report, XidReported):
                found += self._on_xid(report, members)
            elif report is not None:
                found += self._on_notice(report, members)
        return found

    def _on_xid(self, report: XidReported, members: Collection[Pid]) -> list[DeviceFact]:
        known = self.ladder.observe(report)
        return [] if known is None else self._concerning(known, members)

    def _concerning(self, report: XidReported, members: Collection[Pid]) -> list[DeviceFact]:
        if report.number >= FIRST_SXID:
            concerned = {pid for gpu in self.topology.gpus for pid in self._of_gpu(gpu, members)}
        else:
            concerned = self._of_device(report.device, members)
        if report.pid is not None and report.pid in members:
            concerned.add(report.pid)
        catalog = self._read_catalog()
        return [report, *faults.of_xid(report, concerned, catalog, self._driver_version)]

    def _on_aer(self, error: AerError, members: Collection[Pid]) -> list[DeviceFact]:
        found: list[DeviceFact] = [error]
        if error.severity is AerSeverity.CORRECTED:
            return found
        for device in self._devices_below(error.device):
            found += faults.of_aer(error, self._of_device(device, members), device)
        return found

    def _on_notice(self, notice: DeviceNotice, members: Collection[Pid]) -> list[DeviceFact]:
        found: list[DeviceFact] = [notice]
        for device in self._devices_below(notice.device):
            found += faults.of_notice(notice, self._of_device(device, members), device)
        return found

    def _on_port(self, change: PortChange, members: Collection[Pid]) -> list[DeviceFact]:
        found: list[DeviceFact] = [change]
        name = change.port.partition("/")[0]
        for port in self.topology.ports:
            if port.name == name and port.node:
                holders = ownership.open_by(members, {port.node})
                found += faults.of_port(change, holders, port.device)
        return found

    # --- who

    def _devices_below(self, device: str) -> set[str]:
        below = {gpu.device for gpu in self.topology.gpus_below(device)}
        return below | {port.device for port in self.topology.ports_below(device)}

    def _of_device(self, device: str, members: Collection[Pid]) -> set[Pid]:
        concerned: set[Pid] = set()
        for gpu in self.topology.gpus:
            if gpu.device == device:
                concerned |= self._of_gpu(gpu, members)
        nodes = {port.node for port in self.topology.ports if port.device == device and port.node}
        return concerned | (ownership.open_by(members, nodes) if nodes else set())

    def _of_gpu(self, gpu: topology.Gpu, members: Collection[Pid]) -> set[Pid]:
        told = self._holders.of(gpu.minor, gpu.uuid, _now_ns()) & set(members)
        return told | ownership.open_by(members, {f"/dev/nvidia{gpu.minor}"})

    def close(self) -> None:
        """Detach everything."""
        self._attached.close()
        for reader in (self._kmsg, self._ports):
            if reader is not None:
                reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _report(seen: XidSighting) -> XidReported:
    return XidReported(
        seen.boottime_ns, seen.device, seen.number, seen.text, seen.rung, confirmed=True
    )


def _version(root: Path) -> str | None:
    try:
        return (root / "sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def _open_ports(root: Path) -> PortWatch | None:
    try:
        return PortWatch(root)
    except OSError:
        return None


def _open_kmsg(root: Path) -> KmsgReader | None:
    try:
        return KmsgReader(os.fspath(root / "dev/kmsg"))
    except OSError:
        return None
