"""Cordons bad nodes (condition, cordon, taint, or a DeviceTaintRule on one device) and uncordons them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import FaultPolicy, NodeActions, holding
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.api.node_health import HEALTHS, ReceivedHealth
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.device_taints import DeviceTaints
from kcover_ebpf.controller.node_patches import annotate, change, others_taints, release
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, NotFound
from kcover_ebpf.facts.health import Result
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.recovery.nodes.node_health import (
    CORDONED_FOR,
    MOST_NAMED,
    OFFENCES,
    NodeFault,
    counted,
    inspected,
    name_of,
    noted,
    noted_cordon,
    noted_more,
    why_cordoned,
)
from kcover_ebpf.recovery.nodes.node_plan import (
    BY_OTHERS,
    BY_US,
    CLEARED,
    CONDITION,
    CORDONED,
    CORDONED_BY,
    INSPECTED,
    TAINT,
    UNTIL,
    NodeBreaker,
    NodePlan,
    NodeView,
    cordoned_again,
    counting,
    inspection_condition,
    is_news,
    plan,
    view_of,
    views_with_notes,
    why_not_lifted,
)
from kcover_ebpf.recovery.nodes.suspect_nodes import Suspicions, suspect

_LOG = logging.getLogger(__name__)
_MOST_TEXT = 1024
"""The most characters in an Event's message, set by its API."""
Notify = Callable[[dict[str, str], str, str, bool], None]


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """Limits on cordons, set by the operator."""

    namespace: str
    """The controller's namespace. Only its policies say what may be done with nodes."""
    breaker: NodeBreaker
    window_s: float
    """Time in seconds for which the breaker counts a cordoned node as recent."""
    dry_run: bool = False


class NodeReconciler:
    """Reconciles one node at a time; thread-safe."""

    def __init__(
        self,
        client: ApiClient,
        writes: Callable[[], ApiClient],
        cache: ObjectCache,
        limits: NodeLimits,
        notify: Notify,
    ) -> None:
        """`client`: reads; `writes`: the session for one write, raises `ActionError` unless this replica leads."""
        self._session, self._writes = client, writes
        self._store, self._limits, self._notify = cache, limits, notify
        self._lock = threading.Lock()
        self._said: dict[str, str] = {}
        self._suspicions = Suspicions()
        self.devices = DeviceTaints(client, writes, self._say)
        self._lifted: dict[str, float] = {}  # node -> the clearance that ended its taints

    @property
    def cordoned_count(self) -> int:
        """Number of nodes that we cordoned or tainted."""
        return len(self.cordoned_names)

    @property
    def cordoned_names(self) -> list[str]:
        """Names of those nodes; they are reconciled even if their agents are silent."""
        return [node.name for node in self._noted_nodes() if node.ours]

    def _noted_nodes(self) -> list[NodeView]:
        return views_with_notes(list(self._store.raw_nodes.values()))

    @property
    def is_full(self) -> bool:
        """True while the breaker allows no further cordon."""
        return not self._room(suspects=False)

    def reconcile(self, name: str) -> None:
        """Carry out what is to be done about a node; raises `ApiError`."""
        raw, received = self._store.raw_nodes.get(name), self._store.host_reports.get(name)
        health, now_s = self._store.healths.get(name), self._store.wall()
        if raw is None:
            self._forget(name)
            return
        node, policy = view_of(raw), self._policy()
        faults: tuple[NodeFault, ...] = ()
        report_s, is_heard = now_s, received is not None and not received.is_stale(now_s)
        if received is not None and is_heard:
            faults = tuple(fault for fault in received.report.devices if fault.unfit)
            report_s = received.arrived_s
        faults += inspected(health, now_s, report_s, policy)
        if self._report_inspection(node, health, now_s):
            node = self._newest(node)
        if node.was_uncordoned and not self._limits.dry_run:
            self._store.wrote_node(annotate(self._writes(), node, {CORDONED_BY: BY_OTHERS}))
            node = self._newest(node)
        if health is not None and not self._limits.dry_run:
            self._untaint_mended(node, health, now_s, policy)
        touched = node.ours or node.condition == "True" or CLEARED in node.annotations
        if not faults and not touched:
            return
        dra = self.devices.by_address(name, now_s) if policy.device_taint and faults else {}
        with self._lock:
            if dra:
                # another worker may have tainted devices while this one waited
                self.devices.refresh(now_s)
            room = bool(self._counted(node, suspects=False)) or self._room(suspects=False)
            todo = plan(node, faults, report_s, policy, frozenset(dra), room)
            if not is_heard and not node.ours and not faults:
                # an agent that is silent, or whose Lease is not read yet, does not say that all is well
                todo = replace(todo, condition=None)
            if not counting(node, faults, report_s) and not todo.let_go:
                reason = why_not_lifted(node, health, now_s, policy)
                # last, because the API server is asked
                todo = replace(todo, let_go=not (reason or self.devices.by_others(name)))
            self._do(node, todo, dra)

    def _forget(self, name: str) -> None:
        """Delete what is written about a node that is gone: its health, and the taints of its devices."""
        is_dry = self._limits.dry_run
        rules = () if is_dry else self.devices.of_node(name, self._store.wall())
        if not rules and name not in self._store.healths:
            return
        # what we know of nodes may have begun with the memory of an API server that did not know it yet
        query = {"fieldSelector": f"metadata.name={name}"}
        if self._session.list("/api/v1/nodes", query).get("items"):
            return
        for rule in rules:
            self.devices.delete(rule)
        if name in self._store.healths:
            with contextlib.suppress(NotFound):
                self._writes().delete(f"{HEALTHS}/{name}")
            self._store.healths.pop(name, None)

    def _report_inspection(
        self, node: NodeView, health: ReceivedHealth | None, now_s: float
    ) -> bool:
        """Write the node's inspection condition if it changed; True if it was written."""
        wanted = inspection_condition(node, health, now_s)
        is_unread = health is None and not self._store.knows_healths
        if wanted is None or is_unread or self._limits.dry_run:
            return False
        status, text = wanted
        reasons = {
            "True": "InspectionFailed",
            "False": "InspectionPassed",
            "Unknown": "NoInspection",
        }
        self._condition(node, INSPECTED, node.inspected[0], status, reasons[status], text)
        if status != "Unknown" and is_news(node, health, status, text):
            self._say(node, f"Kcover{reasons[status]}", text, status == "True")
        return True

    def _untaint_mended(
        self, node: NodeView, health: ReceivedHealth, now_s: float, actions: NodeActions
    ) -> None:
        """Remove the taints of single devices that are repaired."""
        if health.is_stale(now_s) or not health.health.clean_rounds or node.others:
            return
        for rule in self.devices.of_node(node.name, now_s):
            cordon = noted_cordon(rule.note, rule.created_s, node.annotations, now_s)
            if why_cordoned(cordon, health, now_s, actions):
                continue
            if not self.devices.by_others(node.name):
                self.devices.untaint(node, rule)

    def suspect(self, name: str, reason: str, namespace: str) -> None:
        """Cordon a node at the request of a namespace, without a known bad device; within the breaker.

        Raises `ApiError`.
        """
        raw = self._store.raw_nodes.get(name)
        if raw is None:
            return
        node = view_of(raw)
        now_s, health = self._store.wall(), self._store.healths.get(name)
        is_clean = (
            health is not None
            and not health.is_stale(now_s)
            and health.health.result is Result.PASS
        )
        with self._lock:
            why_not = self._suspicions.why_not(name, namespace, now_s, is_clean=is_clean)
            if why_not is not None:
                self._say(node, "KcoverNotCordoned", f"not cordoned: {reason}, but {why_not}", True)
                return
            room = self._room(suspects=True)
            self._do(node, suspect(node, reason, self._store.wall(), self._policy(), room), {})

    def _policy(self) -> NodeActions:
        policy = holding(
            self._store.policies.of(self._limits.namespace), self._limits.namespace, {}
        )
        return (policy.policy if policy is not None else FaultPolicy()).node

    def _room(self, suspects: bool) -> bool:
        """True if the breaker allows another cordon: on suspicion, or for a device."""
        now_s, window_s = self._store.wall(), self._limits.window_s
        # of thousands of nodes only these can count, and each unfit node that finds no room asks
        nodes = {node.name: node for node in self._noted_nodes()}
        known = self._store.raw_nodes
        nodes |= {name: view_of(raw) for name in self.devices.nodes if (raw := known.get(name))}
        times = [found for node in nodes.values() if (found := self._counted(node, suspects))]
        recent = sum(any(now_s - value < window_s for value in found) for found in times)
        breaker = self._limits.breaker.for_suspects if suspects else self._limits.breaker
        return breaker.room(len(times), len(self._store.nodes), recent)

    def _counted(self, node: NodeView, suspects: bool) -> list[float]:
        """Times from which the breaker counts a node (cordon, device taint); empty: not counted."""
        is_ours = node.ours and (suspects or node.until_s is None)
        cordoned_s = (node.since_s or 0.0) if is_ours else None
        times = (cordoned_s, self.devices.since_s(node.name))
        return [time for time in times if time is not None]

    def _do(
        self, node: NodeView, node_plan: NodePlan, dra: Mapping[str, Mapping[str, Any]]
    ) -> None:
        if node_plan.refused:
            self._say(node, "KcoverBreakerOpen", f"not cordoned: {node_plan.refused}", True)
        if self._limits.dry_run:
            if node_plan.reason:
                self._say(node, "KcoverDryRun", f"would cordon: {node_plan.reason}", True)
            return
        if node_plan.condition is not None:
            self._report_fault(node, *node_plan.condition)
            node = self._newest(node)
        self._taint_devices(node, node_plan.devices, dra)
        node = self._newest(node)
        if node_plan.reason:
            self._cordon(node, node_plan)
        elif node_plan.faults:
            self._note_more(node, node_plan.faults)
        if node_plan.let_go:
            self.let_go(node)
        if node_plan.cleared_s is not None and self._lifted.get(node.name) != node_plan.cleared_s:
            self._untaint_cleared(node, node_plan.cleared_s)
            self._lifted[node.name] = node_plan.cleared_s

    def _untaint_cleared(self, node: NodeView, cleared_s: float) -> None:
        for rule in self.devices.of_node(node.name, self._store.wall()):
            if rule.created_s <= cleared_s:
                self.devices.untaint(node, rule)

    def _newest(self, node: NodeView) -> NodeView:
        """The node after our last write: a write to an older version would be refused."""
        raw = self._store.raw_nodes.get(node.name)
        return view_of(raw) if raw is not None else node

    def _taint_devices(
        self,
        node: NodeView,
        faults: Sequence[ReportedDeviceFault],
        dra: Mapping[str, Mapping[str, Any]],
    ) -> None:
        for fault in faults:
            note = self._noted(node, (fault,))
            if self.devices.taint(node, fault, dra[fault.device], note):
                counts = {OFFENCES: counted(node.annotations, self._store.wall())}
                self._store.wrote_node(annotate(self._writes(), node, counts))

    def _noted(self, node: NodeView, faults: Sequence[NodeFault]) -> str:
        return noted(faults, node.boot_id, self._store.healths.get(node.name))

    def _note_more(self, node: NodeView, faults: Sequence[NodeFault]) -> None:
        """Add faults found since the cordon: they must be repaired, too, before the node is uncordoned."""
        cordon = noted_cordon(
            node.annotations.get(CORDONED_FOR), node.since_s, node.annotations, 0.0
        )
        if cordon is None:
            return  # cordoned by an older version: a person has to uncordon it
        known = {*cordon.checks, *cordon.devices}
        new = [fault for fault in faults if name_of(fault) not in known]
        if not node.ours or not new or len(known) >= MOST_NAMED:
            return
        note = noted_more(cordon, new, node.boot_id, self._store.healths.get(node.name))
        self._store.wrote_node(annotate(self._writes(), node, {CORDONED_FOR: note}))

    def _report_fault(self, node: NodeView, fault: bool, text: str) -> None:
        reason = "DeviceFault" if fault else "Cleared"
        others = (*node.others, *self._on_devices(node)) if fault else ()
        if others:
            text = f"{text}; reported by others: {'; '.join(others)}"[:_MOST_TEXT]
        status = "True" if fault else "False"
        self._condition(node, CONDITION, node.condition, status, reason, text)
        self._say(node, "KcoverDeviceFault" if fault else "KcoverDeviceWell", text, fault)

    def _on_devices(self, node: NodeView) -> tuple[str, ...]:
        try:
            return self.devices.by_others(node.name)
        except ApiError:
            return ()  # the fault is reported anyway

    def _condition(
        self, node: NodeView, kind: str, old_status: str, status: str, reason: str, text: str
    ) -> None:
        now = rfc3339.in_seconds(self._store.wall())
        condition = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": text,
            "lastHeartbeatTime": now,
        }
        if status != old_status:
            condition["lastTransitionTime"] = now
        path = f"/api/v1/nodes/{node.name}/status"
        # conditions are merged by their type, so those of others stay, and the time of a status that does
        self._store.wrote_node(
            self._writes().strategic_patch(path, {"status": {"conditions": [condition]}})
        )

    def _cordon(self, node: NodeView, node_plan: NodePlan) -> None:
        why = f"{rfc3339.to_text(self._store.wall())} {node_plan.reason}"
        spec: dict[str, Any] = {}
        notes: dict[str, str | None] = {CORDONED: why, UNTIL: None}
        if node_plan.cordon and not node.cordoned:
            spec["unschedulable"] = True
            notes[CORDONED_BY] = BY_US
        elif not node.ours:
            notes[CORDONED_BY] = BY_OTHERS
        if node_plan.taint:
            ours = {"key": TAINT, "value": "fatal", "effect": "NoSchedule"}
            spec["taints"] = [*others_taints(node), ours]
        if node_plan.until_s is not None:
            notes[UNTIL] = rfc3339.to_text(node_plan.until_s)
        else:
            notes[CORDONED_FOR] = self._noted(node, node_plan.faults)
            notes |= cordoned_again(node.annotations, why, self._store.wall(), self._policy())
        self._store.wrote_node(change(self._writes(), node, notes, spec))
        self._say(node, "KcoverCordoned", node_plan.reason, True)

    def let_go(self, node: NodeView) -> None:
        """Undo what we did to a node, and nothing else."""
        self._store.wrote_node(release(self._writes(), node))
        why = "the cordon on suspicion has expired"
        if node.until_s is None:
            why = "marked healthy, or its inspections are clean, after a fault"
        if node.cordoned_by_others:
            why += "; it stays cordoned, because others cordoned it"
        self._say(node, "KcoverUncordoned", why, False)

    def _say(self, node: NodeView, reason: str, text: str, warning: bool) -> None:
        if self._said.get(node.name) == reason + text:
            return
        self._said[node.name] = reason + text
        _LOG.info("node %s: %s: %s", node.name, reason, text)
        about = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        self._notify(about, reason, text, warning)
