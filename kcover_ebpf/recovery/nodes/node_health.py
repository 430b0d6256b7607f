"""From the health that a node's agent reports to cordoning the node, and to uncordoning it. Pure.

A node is uncordoned automatically only on evidence that the reason for its cordon is repaired. The evidence is a number
of consecutive clean inspections that began after the cordon. For a device fault it also needs a reboot after which an
inspection saw the device work, or an inspection that saw it fail before it saw it work. A device of a kind that is not
inspected needs only the reboot; otherwise its node would stay cordoned forever. A node that was cordoned before needs
twice as many inspections each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import Codec, Omit
from kcover_ebpf.api.fault_policy import InspectionAction, NodeActions
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.api.node_health import PartHealth, ReceivedHealth
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.tunables.recovery import (
    CORDON_DOUBLINGS,
    FAULT_CONFIRMED_S,
    INSPECTIONS_FAILED,
    OFFENDER_REMEMBERED_S,
)

CORDONED_FOR = "kcover.io/kept-out-for"
"""Annotation of a node, or of a rule about one device: why we cordoned it (checks, devices and boot, as JSON)."""
OFFENCES = "kcover.io/kept-out-count"
"""Annotation of a node: how often it was cordoned, when last and when first. It stays when the node is uncordoned."""
INSPECTION = "inspection"
"""Name of a fault found by an inspection, as opposed to those that the kernel and drivers announce."""
MOST_NAMED = 16
_MOST_COUNT_DIGITS = 6
"""Digits of the count in `OFFENCES`, which whoever may write nodes can write; `int` refuses thousands of them."""
_WELL = (Result.PASS, Result.WARN)


@dataclass(frozen=True, slots=True)
class NotedCordon:
    """Why a node was cordoned, or one device tainted, as noted at that time."""

    since_s: float
    """Unix seconds of the cordon, by our clock."""
    checks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    boot_id: str = ""
    """Boot id of the node at that time; empty if unknown."""
    offences: int = 1
    """Number of recent cordons, including this one."""
    uninspected: tuple[str, ...] = ()
    """Devices among `devices` that no inspection had examined by then, so that no inspection can show that they
    work."""
    mtbf_s: float | None = None
    """Mean seconds from one cordon to the next; None before the second, and if an older version counted them."""


@dataclass(frozen=True, slots=True)
class _Note:
    """The value of `CORDONED_FOR`."""

    checks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    uninspected: tuple[str, ...] = ()
    boot: str = ""


_NOTE = Codec(omit=Omit.NOTHING)


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check that failed in several consecutive inspections, without a device as the reason."""

    name: str
    text: str
    age_s: float
    """Seconds since the first of these inspections."""


NodeFault = ReportedDeviceFault | FailedCheck
"""Faults that a node may be cordoned for."""


def name_of(fault: NodeFault) -> str:
    """Name of the check, or of the device, that a fault is about."""
    return fault.name if isinstance(fault, FailedCheck) else fault.device


def inspected(
    received: ReceivedHealth | None, now_s: float, report_s: float, actions: NodeActions
) -> tuple[NodeFault, ...]:
    """Faults in the last inspections for which the policy cordons or taints; ages are seconds before `report_s`."""
    if (
        received is None
        or received.is_stale(now_s)
        or actions.inspection is InspectionAction.REPORT
    ):
        return ()
    devices = [device for device in received.health.devices if _fails(device)]
    faults = tuple(
        ReportedDeviceFault(
            device.name,
            INSPECTION,
            _text(device),
            unfit=True,
            age_s=_age_s(device, received, report_s),
        )
        for device in devices
    )
    if actions.inspection is InspectionAction.DEVICES:
        return faults
    names = {device.name for device in devices}
    checks = (
        FailedCheck(check.name, _text(check), _age_s(check, received, report_s))
        for check in received.health.checks
        # a check that failed only because of devices is reported by them, so that DRA can taint the device alone
        if _fails(check) and not (check.devices and names.issuperset(check.devices))
    )
    return (*faults, *checks)


def _fails(part: PartHealth) -> bool:
    return part.result is Result.FAIL and part.rounds >= INSPECTIONS_FAILED


def _text(part: PartHealth) -> str:
    return part.evidence[0] if part.evidence else "failed"


def _age_s(part: PartHealth, received: ReceivedHealth, report_s: float) -> float:
    return report_s - received.at(part.since_s)


def noted(faults: Sequence[NodeFault], boot_id: str, received: ReceivedHealth | None) -> str:
    """The value of `CORDONED_FOR`; without a health report the inspected devices are unknown."""
    return json.dumps(_NOTE.encode(_note(faults, boot_id, received)))


def _note(faults: Sequence[NodeFault], boot_id: str, received: ReceivedHealth | None) -> _Note:
    examined = (
        {device.name for device in received.health.devices} if received is not None else set()
    )
    named = faults[:MOST_NAMED]
    devices = {fault.device for fault in named if isinstance(fault, ReportedDeviceFault)}
    checks = {fault.name for fault in named if isinstance(fault, FailedCheck)}
    uninspected = devices - examined if received is not None else set()
    return _Note(_sorted(checks), _sorted(devices), _sorted(uninspected), boot_id)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def noted_more(
    cordon: NotedCordon,
    faults: Sequence[NodeFault],
    boot_id: str,
    received: ReceivedHealth | None,
) -> str:
    """The value of `CORDONED_FOR` after a further failure on a node that is already cordoned."""
    note = _note(faults, boot_id, received)
    both = _Note(
        _sorted((*note.checks, *cordon.checks)),
        _sorted((*note.devices, *cordon.devices)),
        _sorted((*note.uninspected, *cordon.uninspected)),
        note.boot,
    )
    return json.dumps(_NOTE.encode(both))


def counted(annotations: Mapping[str, str], now_s: float) -> str:
    """The value of `OFFENCES` after the node was cordoned again."""
    known, now = _offences(annotations, now_s), rfc3339.to_text(now_s)
    return f"{known.count + 1} {now} {known.first or now}"


def often_text(count: int, mean_s: float | None) -> str:
    """Reason why a node that fails repeatedly is left to a person."""
    every = "" if mean_s is None else f", every {mean_s / 86400:.1f} days on average (MTBF)"
    # the first of them may be a month ago, and each is at most a month after the one before
    return (
        f"it was cordoned {count} times{every}, each within a month of the one before: replace it"
    )


def mtbf_s(annotations: Mapping[str, str], now_s: float) -> float | None:
    """Mean seconds from one counted cordon of the node to the next; None before the second."""
    known = _offences(annotations, now_s)
    if known.count < 2 or not known.first:
        return None
    return (rfc3339.from_text(known.last) - rfc3339.from_text(known.first)) / (known.count - 1)


def offences(annotations: Mapping[str, str], now_s: float) -> int:
    """How often the node was cordoned; 0 if the last time was more than a month ago."""
    return _offences(annotations, now_s).count


@dataclass(frozen=True, slots=True)
class _Offences:
    """Content of `OFFENCES`; times as text, empty if missing."""

    count: int = 0
    last: str = ""
    first: str = ""


def _offences(annotations: Mapping[str, str], now_s: float) -> _Offences:
    count, last, first = [*annotations.get(OFFENCES, "").split(" "), "", "", ""][:3]
    try:
        is_recent = now_s - rfc3339.from_text(last) < OFFENDER_REMEMBERED_S
        is_read = not first or rfc3339.from_text(first) <= rfc3339.from_text(last)
    except ValueError:
        return _Offences()
    is_known = is_recent and is_read and count.isdecimal() and len(count) <= _MOST_COUNT_DIGITS
    return _Offences(int(count), last, first) if is_known else _Offences()


def noted_cordon(
    note: str | None, since_s: float | None, annotations: Mapping[str, str], now_s: float
) -> NotedCordon | None:
    """Content of `CORDONED_FOR`; None if there is nothing readable: then a person decides."""
    try:
        found = _NOTE.decode(_Note, json.loads(note or ""))
    except (ValueError, RecursionError, ObjectError):
        return None
    if since_s is None or not (found.checks or found.devices):
        return None
    count = max(offences(annotations, now_s), 1)
    mean_s = mtbf_s(annotations, now_s)
    return NotedCordon(
        since_s, found.checks, found.devices, found.boot, count, found.uninspected, mean_s
    )


def rounds_needed(cordon: NotedCordon, boot_id: str, actions: NodeActions) -> int:
    """Consecutive clean inspections needed before it is uncordoned; after a reboot one is enough."""
    least = 1 if _rebooted(cordon, boot_id) else actions.clean_rounds
    return int(least * 2 ** min(cordon.offences - 1, CORDON_DOUBLINGS))


def why_cordoned(
    cordon: NotedCordon | None, received: ReceivedHealth | None, now_s: float, actions: NodeActions
) -> str:
    """Reason why it is not uncordoned automatically; empty if it is."""
    if actions.clean_rounds == 0:
        return "the policy requires a person to uncordon it"
    if cordon is None:
        return "the node does not record why it was cordoned"
    if actions.most_cordons and cordon.offences >= actions.most_cordons:
        return often_text(cordon.offences, cordon.mtbf_s)
    if received is None or received.is_stale(now_s):
        return "its health is unknown: no inspection is reported"
    health = received.health
    since_s = health.clean_since_s
    if since_s is None or received.at(since_s) <= cordon.since_s:
        return "no clean inspection since"
    needed = rounds_needed(cordon, health.boot_id, actions)
    if health.clean_rounds < needed:
        return f"{health.clean_rounds} of {needed} clean inspections"
    checks = {check.name: check for check in health.checks}
    devices = {device.name: device for device in health.devices}
    reasons = (
        *(_check_open(name, checks.get(name)) for name in cordon.checks),
        *(_device_open(name, devices.get(name), cordon, received) for name in cordon.devices),
    )
    return next(filter(None, reasons), "")


def _check_open(name: str, part: PartHealth | None) -> str:
    if part is None:
        return f"{name} is not run any more"
    return "" if part.result in _WELL else f"{name}: {part.result.value}"


def _device_open(
    name: str, part: PartHealth | None, cordon: NotedCordon, received: ReceivedHealth
) -> str:
    rebooted = _rebooted(cordon, received.health.boot_id)
    if part is not None and part.result not in _WELL:
        return f"{name}: {part.result.value}"
    if rebooted and part is None and name not in cordon.uninspected:
        return f"{name}: no inspection has seen it since the reboot; uncordon the node by hand if it was removed"
    if rebooted:
        return ""
    if (
        part is None
        or part.failed_s is None
        or received.at(part.failed_s) < cordon.since_s - FAULT_CONFIRMED_S
    ):
        return f"{name}: no inspection showed the fault, so none can show that it is over; reboot the node"
    return ""


def _rebooted(cordon: NotedCordon, boot_id: str) -> bool:
    return bool(cordon.boot_id) and bool(boot_id) and cordon.boot_id != boot_id
