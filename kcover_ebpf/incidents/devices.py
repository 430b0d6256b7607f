"""Faults that devices announced: the device of a rank is broken, so the job is lost."""

from __future__ import annotations

from collections.abc import Mapping

from kcover_ebpf.device_facts import DeviceFault
from kcover_ebpf.facts import Fact, Pid
from kcover_ebpf.incidents.finding import Finding
from kcover_ebpf.incidents.processes import NS, ProcessView
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind

HARMLESS_NS = 60 * NS
"""A fault after which the job goes on for so long did not end it."""
_RELATED_NS = 10 * NS


class DeviceFaults:
    """What the devices of one job announced."""

    def __init__(self) -> None:
        self._faults: list[DeviceFault] = []

    def observe(self, fact: Fact) -> None:
        """Note a fault; other facts are nothing here."""
        if isinstance(fact, DeviceFault):
            self._faults.append(fact)

    @property
    def told(self) -> tuple[DeviceFault, ...]:
        """Faults that were announced and not outlived."""
        return tuple(self._faults)

    def outlive(self, now_ns: int, silent: bool) -> None:
        """Forget faults that the job has outlived; `silent`: some rank does not go on."""
        if not silent:
            self._faults = [f for f in self._faults if now_ns - f.boottime_ns < HARMLESS_NS]

    def judge(self, views: Mapping[Pid, ProcessView]) -> Finding | None:
        """The finding for the first fault that ends the job; None if there is none."""
        lethal = [fault for fault in self._faults if fault.ends_job and fault.pid in views]
        if not lethal:
            return None
        first = lethal[0]
        related = [
            fault
            for fault in self._faults
            if abs(fault.boottime_ns - first.boottime_ns) <= _RELATED_NS
        ]
        texts = dict.fromkeys((first.text, *(fault.text for fault in related)))
        member = views[first.pid].member
        owner = member.owner if member and member.owner is not None else first.pid
        return Finding(
            Kind.DEVICE_FAULT,
            Cause.DEVICE,
            first.boottime_ns,
            owner,
            first.pid,
            member.rank if member else None,
            tuple(Evidence(EvidenceKind.EVENT, text) for text in texts),
            tuple(pid for pid, view in views.items() if view.exit is None and pid != owner),
            first.device,
        )
