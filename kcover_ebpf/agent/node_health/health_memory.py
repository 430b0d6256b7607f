"""From rounds of inspection to the node's health: since when, how often in a row, what is not repaired. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kcover_ebpf import __version__
from kcover_ebpf.api.node_health import NodeHealth, PartHealth, RememberedFault
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.health import SEVERITY, Result, worst
from kcover_ebpf.inspection.result import PartResult
from kcover_ebpf.output.formatting import printable
from kcover_ebpf.tunables.agent import (
    DEVICE_GONE_S,
    FAULT_ANEW_S,
    FAULT_REMEMBERED_S,
    FAULTS_REPEATED,
)

MOST_LINES = 4
"""Lines of evidence kept for each check and each device."""
_MOST_CHECKS = 64
_MOST_DEVICES = 128
"""A node has 8 GPUs and some 20 network adapters; 16 checks, and those of its operator."""
_MOST_FAULTS = 32
_MOST_TEXT = 256
_GONE = ("it was on the PCI bus before and is now missing",)
_WELL = (Result.PASS, Result.WARN)


@dataclass(frozen=True, slots=True)
class Round:
    """Results of one round of inspection, with the faults announced by devices."""

    time_s: float
    """End of the round (unix seconds)."""
    boot_id: str
    checks: Sequence[PartResult]
    devices: Sequence[PartResult] = ()
    unfit: Sequence[str] = ()
    """Announced faults that make a device unfit and are not cleared; one sentence each."""
    faults: Sequence[tuple[str, str, float]] = ()
    """Announced faults that ended a job or made a device unfit: (device, fault, unix seconds); new or known."""


def after_round(
    node: str, previous_health: NodeHealth | None, seen_round: Round, expires_s: int
) -> NodeHealth:
    """Health of the node after this round and the rounds before it, which may be of an earlier boot or agent."""
    old = {check.name: check for check in previous_health.checks} if previous_health else {}
    old_devices = (
        {device.name: device for device in previous_health.devices} if previous_health else {}
    )
    faults = _remembered(previous_health.faults if previous_health else (), seen_round)
    found = [*seen_round.checks, *_repeated(faults, seen_round.time_s)]
    checks = _bounded(
        [_part(part_result, old, seen_round.time_s) for part_result in found], _MOST_CHECKS
    )
    devices = _devices(old_devices, seen_round)
    result = Result.FAIL if seen_round.unfit else worst(check.result for check in checks)
    is_same = previous_health is not None and previous_health.result is result
    clean_rounds, clean_since_s = _clean(previous_health, seen_round, checks, devices)
    return NodeHealth(
        node=node,
        time_s=seen_round.time_s,
        expires_after_s=expires_s,
        boot_id=seen_round.boot_id,
        result=result,
        since_s=previous_health.since_s if previous_health and is_same else seen_round.time_s,
        clean_rounds=clean_rounds,
        clean_since_s=clean_since_s,
        reason=_reason(checks, seen_round.unfit) or None,
        gpus=_gpus(devices),
        agent=__version__,
        checks=checks,
        devices=devices,
        faults=faults,
    )


def _clean(
    previous_health: NodeHealth | None,
    seen_round: Round,
    checks: Sequence[PartHealth],
    devices: Sequence[PartHealth],
) -> tuple[int, float | None]:
    """How many rounds of this boot in a row were clean, and since when (unix seconds); 0 and None if this one is not.

    A round is clean if no device is unfit, no failed check or device remains unrepaired, and at least one check
    passed.
    """
    is_clean = (
        not seen_round.unfit
        and not any(part.unmended for part in (*checks, *devices))
        and any(check.result in _WELL for check in checks)
    )
    if not is_clean:
        return 0, None
    if (
        previous_health is None
        or previous_health.boot_id != seen_round.boot_id
        or previous_health.clean_rounds <= 0
    ):
        return 1, seen_round.time_s
    return previous_health.clean_rounds + 1, previous_health.clean_since_s


def _remembered(
    before: Sequence[RememberedFault], seen_round: Round
) -> tuple[RememberedFault, ...]:
    """Faults of the last week; one that is announced again within a minute counts once."""
    known = {
        (remembered_fault.device, remembered_fault.fault): remembered_fault
        for remembered_fault in before
        if seen_round.time_s - remembered_fault.last_s < FAULT_REMEMBERED_S
    }
    for device, fault, at_s in seen_round.faults:
        old = known.get((device, fault))
        if old is None or at_s > old.last_s + FAULT_ANEW_S:
            count = 1 if old is None else old.count + 1
            known[device, fault] = RememberedFault(_text(device), _text(fault), count, at_s)
    return tuple(
        sorted(known.values(), key=lambda remembered_fault: -remembered_fault.last_s)[:_MOST_FAULTS]
    )


def _repeated(faults: Sequence[RememberedFault], now_s: float) -> list[PartResult]:
    """The remembered faults as the result of a check; empty if there are none."""
    if not faults:
        return []
    ordered = sorted(faults, key=lambda fault: (-fault.count, -fault.last_s))
    lines = tuple(
        f"{fault.device} {fault.fault}: {fault.count} in the last week, the newest "
        f"{(now_s - fault.last_s) / 3600.0:.1f} h ago"
        for fault in ordered
    )
    if ordered[0].count < FAULTS_REPEATED:
        return [PartResult("faults", Result.PASS, lines)]
    advice = "examine the device: it recovers each time and fails again"
    return [PartResult("faults", Result.WARN, lines, advice)]


def _devices(old: Mapping[str, PartHealth], seen_round: Round) -> tuple[PartHealth, ...]:
    """Devices of this round, and for a while those that have left the bus."""
    found = [_part(device, old, seen_round.time_s) for device in seen_round.devices]
    present = {device.name for device in seen_round.devices}
    for known_part in old.values():
        if known_part.kind is None or known_part.name in present:
            continue
        result = PartResult(known_part.name, Result.UNKNOWN, _GONE, kind=known_part.kind)
        gone = _part(result, old, seen_round.time_s)
        if seen_round.time_s - gone.since_s < DEVICE_GONE_S:
            found.append(gone)
    return _bounded(found, _MOST_DEVICES)


def mended(health: NodeHealth) -> dict[str, float]:
    """Devices that failed an inspection and are well again: until when (unix seconds) their faults are over."""
    return {
        device.name: device.failed_s
        for device in health.devices
        if device.failed_s is not None and device.result in _WELL
    }


def _part(part: PartResult, before: Mapping[str, PartHealth], now_s: float) -> PartHealth:
    old = before.get(part.name)
    same = old is not None and old.result is part.result
    failed = part.result is Result.FAIL
    return PartHealth(
        name=_text(part.name),
        result=part.result,
        since_s=old.since_s if old is not None and same else now_s,
        rounds=old.rounds + 1 if old is not None and same else 1,
        kind=part.kind,
        evidence=tuple(map(_text, part.evidence[:MOST_LINES])),
        advice=_text(part.advice) or None,
        devices=tuple(map(_text, part.devices[:_MOST_DEVICES])),
        failed_s=now_s if failed else old.failed_s if old is not None else None,
        unmended=failed or (part.result is Result.UNKNOWN and old is not None and old.unmended),
    )


def _text(text: str) -> str:
    """One line of evidence, truncated: a plug-in may print anything."""
    return printable(text)[:_MOST_TEXT]


def _bounded(found: list[PartHealth], most: int) -> tuple[PartHealth, ...]:
    """All results in their order; if there are too many, the worst of them."""
    if len(found) <= most:
        return tuple(found)
    return tuple(sorted(found, key=lambda part: -SEVERITY.index(part.result))[:most])


def _reason(checks: Sequence[PartHealth], unfit: Sequence[str]) -> str:
    bad = [check for check in checks if check.result in (Result.FAIL, Result.WARN)]
    bad.sort(key=lambda part: -SEVERITY.index(part.result))
    texts = [
        f"{part.name}: {part.evidence[0] if part.evidence else part.result.value}" for part in bad
    ]
    return _text("; ".join((*unfit, *texts)))


def _gpus(devices: Sequence[PartHealth]) -> str | None:
    gpus = [device for device in devices if device.kind == "gpu"]
    return f"{sum(gpu.result in _WELL for gpu in gpus)}/{len(gpus)}" if gpus else None
