"""The repair steps for a node that was cordoned for a device, one after the other, and when to stop. Pure.

The operator configures the steps: reset the GPU, reboot, replace the machine; each is a Job of theirs. Without a
configuration nothing is tried. The Job is not asked whether it helped: inspections decide whether the node is
uncordoned, as after a manual repair.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import decode, encode, wire
from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.api.node_health import ReceivedHealth
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, PolicyError
from kcover_ebpf.recovery.nodes.node_health import (
    CORDONED_FOR,
    NotedCordon,
    noted_cordon,
    often_text,
    rounds_needed,
)
from kcover_ebpf.recovery.nodes.node_plan import NodeView
from kcover_ebpf.tunables.recovery import REPAIR_DAY_S, REPAIR_SETTLE_S

REPAIRS = "kcover.io/repairs"
"""Annotation of a node that we cordoned: the attempts since then, as JSON."""
DRAINED = "kcover.io/repair-drain"
"""Annotation of a node that we cordoned: since when its pods are evicted for the next step."""
_MOST_STEPS = 4
_MOST_AT_ONCE = 100


class RepairStep(Enum):
    """The kind of a repair step."""

    RESET_GPU = "ResetGPU"
    """The devices alone, once no pod uses them; the node stays up."""
    REBOOT = "Reboot"
    REPLACE = "Replace"
    """The whole machine: by its provider, or by a ticket."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One step, and the Job that carries it out."""

    step: RepairStep
    job: Mapping[str, Any]
    """The `spec` field of a batch/v1 Job."""
    on_node: bool = True
    """The Job's pod runs on the node itself, although it is cordoned."""
    drain: bool = False
    """Pods that the step would end are evicted; otherwise it waits until they end by themselves."""


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Repairs that the operator allows; none by default."""

    repairs: tuple[Repair, ...] = ()
    """Steps in the order in which they are tried, each once per cordon."""
    at_once: int = 1
    """Nodes that may be in repair at the same time."""
    most_per_day: int = 5
    """Steps on all nodes together within a day: more faults than this have a common cause."""


@dataclass(frozen=True, slots=True)
class RepairAttempt:
    """A repair step that was started, or is about to be."""

    step: RepairStep
    time_s: float = field(metadata=wire("time", time=True))
    """Start of the step, unix seconds."""
    is_pending: bool = field(default=False, metadata=wire("pending"))
    """The API server has not confirmed the Job yet: the step may or may not have been started."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The next step; without one the reason why there is none."""

    repair: Repair | None
    reason: str
    devices: tuple[str, ...] = ()
    number: int = 0
    """Number of the attempt since the cordon, from 0."""


def limits_of(table: Mapping[str, Any], where: str) -> RepairLimits:
    """The limits in an operator's file; raises `PolicyError` with a message that begins with `where`."""
    known = {"atOnce", "mostPerDay", "steps"}
    if unknown := set(table) - known:
        raise PolicyError(
            f"{where}: unknown key {min(unknown)!r}; keys are {', '.join(sorted(known))}"
        )
    rows = table.get("steps")
    if not isinstance(rows, list) or not 0 < len(rows) <= _MOST_STEPS:
        raise PolicyError(f"{where}: steps is a list of 1 to {_MOST_STEPS}")
    numbers = {key: table.get(key, default) for key, default in (("atOnce", 1), ("mostPerDay", 5))}
    for key, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_AT_ONCE:
            raise PolicyError(f"{where}: {key} is from 1 to {_MOST_AT_ONCE}")
    repairs = tuple(_repair_of(row, where) for row in rows)
    if len({repair.step for repair in repairs}) < len(repairs):
        raise PolicyError(f"{where}: a step is listed twice")
    return RepairLimits(repairs, numbers["atOnce"], numbers["mostPerDay"])


def _repair_of(row: object, where: str) -> Repair:
    if not isinstance(row, Mapping) or not isinstance(row.get("job"), Mapping):
        raise PolicyError(f"{where}: each step has a step and a job, the spec of a Job")
    on_node, drain = row.get("onNode", True), row.get("drain", False)
    is_bool = isinstance(on_node, bool) and isinstance(drain, bool)
    if set(row) - {"step", "job", "onNode", "drain"} or not is_bool:
        raise PolicyError(
            f"{where}: keys of a step are step, job, onNode and drain; these two are true or false"
        )
    containers = row["job"].get("template", {}).get("spec", {}).get("containers")
    if not isinstance(containers, list) or not containers:
        raise PolicyError(f"{where}: the job of step {row.get('step')} has no containers")
    try:
        return Repair(RepairStep(row.get("step")), row["job"], on_node, drain)
    except ValueError as error:
        words = ", ".join(step.value for step in RepairStep)
        raise PolicyError(f"{where}: step {row.get('step')!r} is not one of {words}") from error


def attempts_of(node: NodeView) -> tuple[RepairAttempt, ...]:
    """Attempts since the node was cordoned, in order; unreadable annotations count as no attempt."""
    try:
        rows = json.loads(node.annotations.get(REPAIRS, "[]"))
        found = [decode(RepairAttempt, row) for row in rows]
    except (ValueError, TypeError, RecursionError, ObjectError):
        return ()
    return tuple(attempt for attempt in found if attempt.time_s >= (node.since_s or 0.0))


def _heals(
    attempt: RepairAttempt,
    cordon: NotedCordon,
    received: ReceivedHealth | None,
    actions: NodeActions,
    now_s: float,
) -> bool:
    """True if the step may have helped: inspections have been clean since, but not often enough yet."""
    if received is None or received.is_stale(now_s) or received.health.clean_since_s is None:
        return False
    health = received.health
    is_since = received.at(received.health.clean_since_s) > attempt.time_s
    return is_since and health.clean_rounds < rounds_needed(cordon, health.boot_id, actions)


def started(node: NodeView) -> tuple[RepairAttempt, ...]:
    """The attempts that were certainly started."""
    return tuple(attempt for attempt in attempts_of(node) if not attempt.is_pending)


def drained_since_s(node: NodeView) -> float | None:
    """Unix seconds since which the node is drained for a step; None if it is not, or was before this cordon."""
    try:
        since_s = rfc3339.from_text(node.annotations.get(DRAINED, ""))
    except ValueError:
        return None
    return since_s if since_s >= (node.since_s or 0.0) else None


def _is_in_repair(node: NodeView, now_s: float) -> bool:
    """True if a step was started, or the node is drained for one, and other nodes must still wait for it."""
    times_s = [attempt.time_s for attempt in attempts_of(node)]
    if (drained_s := drained_since_s(node)) is not None:
        times_s.append(drained_s)
    return any(now_s - time_s < REPAIR_SETTLE_S for time_s in times_s)


def noted_attempts(attempts: Iterable[RepairAttempt]) -> str:
    """The attempts as the text of the annotation `REPAIRS`."""
    return json.dumps([encode(attempt) for attempt in attempts])


def plan(
    node: NodeView,
    nodes: Sequence[NodeView],
    limits: RepairLimits,
    actions: NodeActions,
    now_s: float,
    received: ReceivedHealth | None = None,
) -> RepairPlan:
    """The next step for a node.

    `nodes`: all nodes that have an annotation of ours, including this one; `received`: its health, None if unknown.
    """
    cordon = noted_cordon(node.annotations.get(CORDONED_FOR), node.since_s, node.annotations, now_s)
    made = started(node)
    reason = _why_none(node, cordon, limits, actions) or _why_not_yet(
        made, cordon, received, actions, now_s
    )
    if reason:
        return RepairPlan(None, reason)
    devices = cordon.devices if cordon is not None else ()
    tried = {attempt.step for attempt in made}
    left = [
        repair
        for repair in limits.repairs
        if repair.step not in tried and (devices or repair.step is not RepairStep.RESET_GPU)
    ]
    if not left:
        words = ", ".join(attempt.step.value for attempt in made) or "nothing"
        return RepairPlan(None, f"tried {words}: it stays cordoned for a person")
    if reason := _why_full(node, nodes, made, limits, now_s):
        return RepairPlan(None, reason)
    return RepairPlan(left[0], "", devices, len(made))


def _why_none(
    node: NodeView, cordon: NotedCordon | None, limits: RepairLimits, actions: NodeActions
) -> str:
    """Reason why there is no repair step for this node; empty if there is one."""
    if not limits.repairs:
        return "no repair is configured"
    if not node.ours or node.until_s is not None or node.since_s is None:
        return "it is not cordoned for a fault"
    if not actions.cordon or node.cordoned_by_others:
        return "it was cordoned by a person or another program"
    if cordon is not None and actions.most_cordons and cordon.offences >= actions.most_cordons:
        return often_text(cordon.offences, cordon.mtbf_s)
    return ""


def _why_not_yet(
    made: Sequence[RepairAttempt],
    cordon: NotedCordon | None,
    received: ReceivedHealth | None,
    actions: NodeActions,
    now_s: float,
) -> str:
    """Reason why the previous step may still help; empty if it did not."""
    if not made:
        return ""
    step = made[-1].step.value
    if now_s - made[-1].time_s < REPAIR_SETTLE_S:
        return f"{step} was started; inspections may still uncordon the node"
    if cordon is not None and _heals(made[-1], cordon, received, actions, now_s):
        return f"no inspection has failed since {step}; the node may soon be uncordoned"
    return ""


def _why_full(
    node: NodeView,
    nodes: Sequence[NodeView],
    made: Sequence[RepairAttempt],
    limits: RepairLimits,
    now_s: float,
) -> str:
    """Reason why the operator allows no step at present; empty if one is allowed."""
    rest = [other_node for other_node in nodes if other_node.name != node.name]
    others = [attempt for other_node in rest for attempt in attempts_of(other_node)]
    busy = sum(_is_in_repair(other_node, now_s) for other_node in rest)
    if busy >= limits.at_once:
        return "the limit of nodes in repair is reached"
    recent = sum(now_s - attempt.time_s < REPAIR_DAY_S for attempt in (*others, *made))
    if recent >= limits.most_per_day:
        return f"{recent} repairs within a day: the cause may be common"
    return ""
