"""Faults that devices announced: the device of a rank is broken, so the job is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.history.port_errors import PortErrorWatch
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.devices import DeviceFault, DriverCall, FabricErrors, PortChange
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import HARMLESS_NS, RELATED_FAULTS_NS

PORT_UP = "port up"
"""Code of the report that an RDMA port is up again (`devices.fault_rules.of_port`)."""
_MOST_EXPLAINING = 3
"""Faults shown for one error: drivers log a line for each part of a GPU that met it."""


class DeviceFaults:
    """Announcements of the devices of one job."""

    def __init__(self) -> None:
        self._faults: list[DeviceFault] = []
        self._calls: dict[Pid, DriverCall] = {}
        self.ports = PortErrorWatch()
        self._ports_down: dict[str, PortChange] = {}

    def observe(self, fact: Fact) -> None:
        """Note a fault, a driver call that hangs, or errors of a port; other facts are ignored."""
        if isinstance(fact, DeviceFault):
            self._on_fault(fact)
        elif isinstance(fact, DriverCall):
            self._calls[fact.pid] = fact
        elif isinstance(fact, FabricErrors):
            self.ports.observe(fact)
        elif isinstance(fact, PortChange) and fact.up:
            self._ports_down.pop(fact.port, None)
        elif isinstance(fact, PortChange):
            self._ports_down[fact.port] = fact

    def _on_fault(self, fault: DeviceFault) -> None:
        if fault.code == PORT_UP:
            same = (fault.pid, fault.device)
            self._faults = [
                device_fault
                for device_fault in self._faults
                if not device_fault.if_stalled or (device_fault.pid, device_fault.device) != same
            ]
        self._faults.append(fault)

    def located(self, finding: Finding, ranks: Mapping[Pid, ProcessHistory]) -> Finding:
        """The finding with its device, if it is a driver call that hangs or a link that is down."""
        if finding.kind is VerdictKind.LOST_LINK:
            return self._with_port(finding, ranks)
        call = None if finding.pid is None else self._calls.get(finding.pid)
        if finding.cause is not Cause.DRIVER_STUCK or call is None:
            return finding
        where = f" at {call.device}" if call.device else ""
        text = (
            f"thread {call.tid} is in a call of {call.node}{where} that no signal can interrupt (state D, "
            f"{call.wait_channel or 'unknown function'})"
        )
        evidence = Evidence(EvidenceKind.SINK, text)
        culprit = replace(finding.culprit or Culprit(), device=call.device or None)
        return replace(finding, culprit=culprit, evidence=(*finding.evidence, evidence))

    def _with_port(self, finding: Finding, ranks: Mapping[Pid, ProcessHistory]) -> Finding:
        local = {
            socket.local[0] for process in ranks.values() for socket in process.sockets.values()
        }
        for port in self._ports_down.values():
            if local.intersection(port.addresses):
                text = f"port {port.port} of the job's connections is down: {port.text}"
                evidence = Evidence(EvidenceKind.EVENT, text)
                culprit = replace(finding.culprit or Culprit(), device=port.device or port.port)
                return replace(finding, culprit=culprit, evidence=(evidence, *finding.evidence))
        return finding

    @property
    def reported(self) -> tuple[DeviceFault, ...]:
        """Faults that were announced and not outlived."""
        return tuple(self._faults)

    def outlive(self, now_ns: int, silent: bool, stalled: bool) -> None:
        """Forget faults that the job has outlived. `silent`: some rank makes no progress; `stalled`: none does."""
        self.ports.watch(now_ns)
        self._faults = [
            fault
            for fault in self._faults
            if (stalled if fault.if_stalled else silent) or now_ns - fault.boottime_ns < HARMLESS_NS
        ]

    def explained(self, failed_finding: Finding) -> Finding:
        """A failure with what the devices of the failed process announced shortly before it.

        An error of the program on its GPU (Xid 13, 31) ends no other process, but says more than its exit code.
        """
        where = failed_finding.culprit or Culprit()
        texts = dict.fromkeys(
            fault.text
            for fault in self._faults
            if fault.pid in (where.pid, where.tid)
            and 0 <= failed_finding.since_ns - fault.boottime_ns < HARMLESS_NS
        )
        said = [Evidence(EvidenceKind.EVENT, text) for text in islice(texts, _MOST_EXPLAINING)]
        return replace(failed_finding, evidence=(*failed_finding.evidence, *said))

    def judge(self, views: Mapping[Pid, ProcessHistory], stalled: bool) -> Finding | None:
        """The finding for the first fault that ends the job; None if there is none.

        `stalled`: the ranks trained and make no progress. Otherwise the loss of one of several paths ends nothing; a
        job that still starts is silent anyway.
        """
        lethal = [
            fault
            for fault in self._faults
            if fault.ends_job and fault.pid in views and (stalled or not fault.if_stalled)
        ]
        if not lethal:
            return None
        first = lethal[0]
        related = [
            fault
            for fault in self._faults
            if abs(fault.boottime_ns - first.boottime_ns) <= RELATED_FAULTS_NS
        ]
        texts = dict.fromkeys((first.text, *(fault.text for fault in related)))
        owners = {_owner(views, fault.pid) for fault in lethal if fault.device == first.device}
        owner = _owner(views, first.pid) if len(owners) == 1 else None
        if owner is None:
            text = f"{len(owners)} processes of the job have {first.device} open: no culprit identified"
            texts[text] = None
        culprit = Culprit(device=first.device)
        if owner is not None:
            culprit = replace(culprit, rank=views[first.pid].rank, pid=owner, tid=first.pid)
        return Finding(
            VerdictKind.DEVICE_FAULT,
            Cause.DEVICE,
            first.boottime_ns,
            culprit,
            tuple(Evidence(EvidenceKind.EVENT, text) for text in texts),
            tuple(pid for pid, process in views.items() if process.exit is None and pid != owner),
        )


def _owner(views: Mapping[Pid, ProcessHistory], pid: Pid) -> Pid:
    """The rank that a process belongs to, or itself."""
    member = views[pid].membership
    return member.owner if member and member.owner is not None else pid
