"""What to do with a node that has an unfit device: report it, cordon the node, uncordon it. Pure.

A fault that is no longer reported is not necessarily repaired: an agent forgets it when it restarts. So a node is only
uncordoned by a person, or on evidence that it is repaired (`node_health`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.api.node_health import PartHealth, ReceivedHealth
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.health import Result
from kcover_ebpf.recovery.nodes.node_health import (
    CORDONED_FOR,
    INSPECTION,
    OFFENCES,
    FailedCheck,
    NodeFault,
    counted,
    mtbf_s,
    noted_cordon,
    offences,
    often_text,
    why_cordoned,
)
from kcover_ebpf.recovery.nodes.others import seen_on

CORDONED = "kcover.io/cordoned"
"""Annotation of a node that we cordoned: when, and why. Without it a cordon is not ours."""
CORDONED_BY = "kcover.io/cordoned-by"
"""Annotation of a node next to `CORDONED`: `BY_US` or `BY_OTHERS`. Without it, as older versions leave it: by us."""
BY_US = "kcover"
BY_OTHERS = "others"
"""Value if a person or another program had made the node unschedulable, which we do not undo."""
CLEARED = "kcover.io/cleared"
"""Annotation: faults older than this time do not count. Written by hand."""
UNTIL = "kcover.io/cordoned-until"
"""Annotation of a node that we cordoned on suspicion: when it is uncordoned automatically."""
BAD_NODE = "kcover.io/bad-node"
"""Annotation of an Event about a pod: the name of its node, which a user reports as bad."""
CONDITION = "KcoverDeviceFault"
INSPECTED = "KcoverInspectionFailed"
"""Condition of a node: a check failed in its last inspection."""
TAINT = "kcover.io/device-fault"


@dataclass(frozen=True, slots=True)
class NodeView:
    """The parts of a Node object that the rules need."""

    name: str
    uid: str
    cordoned: bool
    annotations: Mapping[str, str]
    taints: tuple[Mapping[str, Any], ...]
    """Taints as they are in the object."""
    condition: str
    """Status of our condition about devices; empty without one."""
    condition_text: str = ""
    """Message of our condition about devices."""
    resource_version: str = ""
    boot_id: str = ""
    """Boot id as the kubelet reports it."""
    inspected: tuple[str, str] = ("", "")
    """Status and message of our condition about inspections; empty without one."""
    others: tuple[str, ...] = ()
    """Problems that other programs report in the object itself, such as node-problem-detector and device plug-ins; one
    sentence each."""

    @property
    def ours(self) -> bool:
        """True if we cordoned or tainted it."""
        return CORDONED in self.annotations

    @property
    def cordoned_by_others(self) -> bool:
        """True if it is unschedulable, and we did not set that."""
        by_others = not self.ours or self.annotations.get(CORDONED_BY) == BY_OTHERS
        return self.cordoned and by_others

    @property
    def was_uncordoned(self) -> bool:
        """True if a person or another program undid our cordon: the next one is not ours."""
        return self.ours and self.annotations.get(CORDONED_BY) == BY_US and not self.cordoned

    @property
    def since_s(self) -> float | None:
        """When we cordoned it (unix seconds); None if we did not, or if the annotation is unreadable."""
        return _time(self.annotations.get(CORDONED, "").partition(" ")[0])

    @property
    def until_s(self) -> float | None:
        """When it is uncordoned automatically (unix seconds); None if that needs a person or evidence."""
        return _time(self.annotations.get(UNTIL)) if self.ours else None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Changes to make; None and False change nothing."""

    condition: tuple[bool, str] | None = None
    """(is there a fault, message) of the condition to be written."""
    reason: str = ""
    """Reason to cordon or taint it; empty for none."""
    cordon: bool = False
    taint: bool = False
    devices: tuple[ReportedDeviceFault, ...] = ()
    """Devices to taint in place of the node."""
    faults: tuple[NodeFault, ...] = ()
    """Reason for a new or existing cordon of the node itself."""
    until_s: float | None = None
    """When the node is uncordoned automatically; None for never."""
    let_go: bool = False
    refused: str = ""
    """Reason why the node is not cordoned although it should be."""
    cleared_s: float | None = None
    """Taints of single devices made before this time (unix seconds) are to be removed; None for none."""


@dataclass(frozen=True, slots=True)
class NodeBreaker:
    """Limits the number of cordoned nodes."""

    most: int = 5
    most_percent: float = 10.0

    def room(self, cordoned: int, nodes: int, recent: int) -> bool:
        """True if one more is allowed: at most that share of all nodes (at least one), and at most `most` recently."""
        share = max(1, int(nodes * self.most_percent / 100))
        return cordoned < share and recent < self.most

    @property
    def for_suspects(self) -> NodeBreaker:
        """Half of the limit, for nodes without a known unfit device, so that they take no room from nodes with one."""
        return NodeBreaker(max(1, self.most // 2), self.most_percent / 2)


def view_of(raw: Mapping[str, Any]) -> NodeView:
    """The parts of a Node object, as the store keeps it."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    conditions = {
        str(condition.get("type")): condition for condition in raw.get("conditions") or ()
    }
    inspected = conditions.get(INSPECTED, {})
    return NodeView(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        cordoned=bool(spec.get("unschedulable")),
        annotations=metadata.get("annotations") or {},
        taints=tuple(spec.get("taints") or ()),
        condition=str(conditions.get(CONDITION, {}).get("status", "")),
        condition_text=str(conditions.get(CONDITION, {}).get("message", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        boot_id=str(metadata.get("bootID", "")),
        inspected=(str(inspected.get("status") or ""), str(inspected.get("message") or "")),
        others=seen_on(raw, conditions),
    )


def views_with_notes(raw_nodes: Iterable[Mapping[str, Any]]) -> list[NodeView]:
    """The nodes, as the store keeps them, that have an annotation of ours; cheap, because only those are read."""
    return [view_of(raw) for raw in raw_nodes if (raw.get("metadata") or {}).get("annotations")]


def plan(
    node: NodeView,
    faults: Sequence[NodeFault],
    report_s: float,
    actions: NodeActions,
    by_dra: frozenset[str],
    room: bool,
) -> NodePlan:
    """What to do about the faults that the agent of a node reports.

    `report_s`: time of the report (unix seconds). `by_dra`: devices that the cluster allocates one by one, so each can
    be tainted alone. `room`: the breaker allows this node, or has already counted it.
    """
    cleared_s = _time(node.annotations.get(CLEARED))
    unfit = counting(node, faults, report_s)
    if not unfit:
        if _expired(node, report_s):
            return NodePlan(let_go=True)
        mended = node.ours and cleared_s is not None and cleared_s >= (node.since_s or 0.0)
        well = node.condition == "True" and (mended or not node.ours)
        condition = (False, "no device fault") if well else None
        return NodePlan(condition=condition, let_go=mended, cleared_s=cleared_s)
    text = "; ".join(f"{_head(fault)}{fault.text}" for fault in unfit[:4])[:512]
    # a second device that fails on a node that is cordoned already must be noticed as well
    heads = [head for fault in unfit[:4] if (head := _head(fault)) in text]
    is_said = node.condition == "True" and all(head in node.condition_text for head in heads)
    condition = None if is_said else (True, text)
    alone = tuple(
        fault
        for fault in unfit
        if isinstance(fault, ReportedDeviceFault)
        and fault.device in by_dra
        and actions.device_taint
    )
    whole = tuple(fault for fault in unfit if fault not in alone)
    is_cordoned = node.ours and node.until_s is None
    wants = bool(whole) and (actions.cordon or actions.taint) and not is_cordoned
    # a suspicion ends in time even if the fault does not affect the node itself
    is_over = _expired(node, report_s) and not wants
    if not room and (wants or alone):
        refused = "the breaker allows no more nodes to be cordoned, or to have devices tainted"
        return NodePlan(condition=condition, faults=whole, let_go=is_over, refused=refused)
    if not wants:
        return NodePlan(condition=condition, devices=alone, faults=whole, let_go=is_over)
    return NodePlan(condition, text, actions.cordon, actions.taint, alone, whole)


def _expired(node: NodeView, now_s: float) -> bool:
    return node.until_s is not None and node.until_s <= now_s


def _head(fault: NodeFault) -> str:
    """Subject of the fault: the check, or the device with all that is needed to replace it."""
    if isinstance(fault, FailedCheck):
        return f"{fault.name} {INSPECTION}: "
    known = {"UUID": fault.uuid, "serial number": fault.serial, "slot": fault.slot}
    words = ", ".join(f"{what} {value}" for what, value in known.items() if value)
    device = f"{fault.device} ({words})" if words else fault.device
    return f"{device} {fault.fault}: "


def counting(node: NodeView, faults: Sequence[NodeFault], report_s: float) -> tuple[NodeFault, ...]:
    """The failed checks, and the faults that make a device unfit, unless a person declared them over."""
    cleared_s = _time(node.annotations.get(CLEARED)) or 0.0
    return tuple(
        fault
        for fault in faults
        if (isinstance(fault, FailedCheck) or fault.unfit)
        and report_s - (fault.age_s or 0.0) > cleared_s
    )


def why_not_lifted(
    node: NodeView, received: ReceivedHealth | None, now_s: float, actions: NodeActions
) -> str:
    """Reason why a node that we cordoned, now without faults, is not uncordoned automatically; empty if it is."""
    if not node.ours or node.until_s is not None:
        return "it is not cordoned for a fault"
    cordon = noted_cordon(node.annotations.get(CORDONED_FOR), node.since_s, node.annotations, now_s)
    return why_cordoned(cordon, received, now_s, actions) or next(iter(node.others), "")


def inspection_condition(
    node: NodeView, received: ReceivedHealth | None, now_s: float
) -> tuple[str, str] | None:
    """Status and message of `INSPECTED` if they are to be written; a node gets it with its first inspection."""
    if received is None or received.is_stale(now_s):
        wanted = ("Unknown", "no inspection is reported")
    elif failed := _failed(received):
        texts = (f"{part.name}: {next(iter(part.evidence), 'failed')}" for part in failed)
        wanted = ("True", "; ".join(texts)[:512])
    else:
        wanted = ("False", "no check failed")
    if wanted == node.inspected or (wanted[0] == "Unknown" and not node.inspected[0]):
        return None
    return wanted


def is_news(node: NodeView, received: ReceivedHealth | None, status: str, text: str) -> bool:
    """True if the condition about inspections changes its status or names another check: then an Event is written.

    Evidence such as a temperature or a percentage changes with each inspection and is ignored.
    """
    old_status, old_text = node.inspected
    if status != old_status:
        return bool(old_status) or status == "True"
    heads = (f"{part.name}: " for part in _failed(received))
    return any(head in text and head not in old_text for head in heads)


def _failed(received: ReceivedHealth | None) -> list[PartHealth]:
    checks = received.health.checks if received is not None else ()
    return [check for check in checks if check.result is Result.FAIL]


def cordoned_again(
    annotations: Mapping[str, str], why: str, now_s: float, actions: NodeActions
) -> dict[str, str | None]:
    """`OFFENCES` and `CORDONED` of a node that is cordoned for the reason `why`, which begins with the time."""
    count = {OFFENCES: counted(annotations, now_s)}
    often = offences(count, now_s)
    if not actions.most_cordons or often < actions.most_cordons:
        return {**count, CORDONED: why}
    return {**count, CORDONED: f"{why}; {often_text(often, mtbf_s(count, now_s))}"}


def _time(text: str | None) -> float | None:
    try:
        return rfc3339.from_text(text) if text else None
    except ValueError:
        return None
