"""Keeps bad nodes out: condition, cordon, taint, or a DeviceTaintRule on the one device; and lets them in again."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import FaultPolicy, NodeActions, holding
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import ApiError, Conflict, NotFound
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.node_plan import (
    CLEARED,
    CONDITION,
    CORDONED,
    TAINT,
    UNTIL,
    NodeBreaker,
    NodePlan,
    NodeView,
    plan,
    suspect,
    view_of,
)

_LOG = logging.getLogger(__name__)
_RESOURCE = "/apis/resource.k8s.io"
_PCI = "resource.kubernetes.io/pciBusID"
_NODE = "kcover.io/node"
_RULE_VERSIONS = ("v1beta2", "v1alpha3")
Tell = Callable[[dict[str, str], str, str, bool], None]


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What the operator allows."""

    namespace: str
    """Ours. A policy there says what may be done with nodes; those of other namespaces say nothing."""
    breaker: NodeBreaker
    window_s: float
    """The time in which the breaker counts nodes that were kept out lately."""
    dry_run: bool = False


class NodeReconciler:
    """Looks at one node after the other; thread-safe."""

    def __init__(
        self,
        session: ApiClient,
        writes: Callable[[], ApiClient],
        store: ObjectCache,
        limits: NodeLimits,
        tell: Tell,
    ) -> None:
        """`session`: reads; `writes`: the session for one write, raises `ActionError` unless we lead."""
        self._session, self._writes = session, writes
        self._store, self._limits, self._tell = store, limits, tell
        self._lock = threading.Lock()
        self._said: dict[str, str] = {}
        self._lifted: dict[str, float] = {}
        """Node -> the clearance after which the taints of its devices were taken back."""

    @property
    def kept_out(self) -> int:
        """Nodes that we cordoned or tainted."""
        return len(self.names_kept_out)

    @property
    def names_kept_out(self) -> list[str]:
        """Their names; they are looked at also when their agents are silent."""
        return [name for name, raw in list(self._store.raw_nodes.items()) if view_of(raw).ours]

    @property
    def is_full(self) -> bool:
        """True while the breaker allows no more."""
        return not self._room(suspects=False)

    def look(self, name: str) -> None:
        """Do what is to be done about a node; raises `ApiError`."""
        raw, seen = self._store.raw_nodes.get(name), self._store.host_reports.get(name)
        if raw is None:
            return
        node = view_of(raw)
        faults: tuple[ReportedDeviceFault, ...] = ()
        report_s = self._store.wall()
        if seen is not None and not seen.is_stale(report_s):
            faults, report_s = seen.report.devices, seen.arrived_s
        touched = node.ours or node.condition == "True" or CLEARED in node.annotations
        if not any(each.unfit for each in faults) and not touched:
            return
        policy = self._policy()
        dra = self._by_dra(name) if policy.device_taint and faults else {}
        with self._lock:
            room = self._room(suspects=False)
            self._do(node, plan(node, faults, report_s, policy, frozenset(dra), room), dra)

    def keep_out(self, name: str, reason: str) -> None:
        """Cordon a node for another reason than a device; within the breaker. Raises `ApiError`."""
        raw = self._store.raw_nodes.get(name)
        if raw is None:
            return
        node = view_of(raw)
        with self._lock:
            room = self._room(suspects=True)
            self._do(node, suspect(node, reason, self._store.wall(), self._policy(), room), {})

    def _policy(self) -> NodeActions:
        found = holding(list(self._store.policies.values()), self._limits.namespace, {})
        return (found.policy if found is not None else FaultPolicy()).node

    def _room(self, suspects: bool) -> bool:
        """True if one more node may be kept out: on suspicion, or for a device."""
        now_s, recent, kept_out = self._store.wall(), 0, 0
        for raw in list(self._store.raw_nodes.values()):
            node = view_of(raw)
            if not node.ours or (node.until_s is not None and not suspects):
                continue
            kept_out += 1
            try:
                since_s = rfc3339.from_text(node.annotations[CORDONED].partition(" ")[0])
            except ValueError:
                continue
            recent += now_s - since_s < self._limits.window_s
        breaker = self._limits.breaker.for_suspects if suspects else self._limits.breaker
        return breaker.room(kept_out, len(self._store.nodes), recent)

    def _do(self, node: NodeView, todo: NodePlan, dra: Mapping[str, Mapping[str, Any]]) -> None:
        if todo.refused:
            self._say(node, "KcoverBreakerOpen", f"not cordoned: {todo.refused}", True)
        if self._limits.dry_run:
            if todo.keep_out:
                self._say(node, "KcoverDryRun", f"would cordon: {todo.keep_out}", True)
            return
        if todo.condition is not None:
            self._condition(node, *todo.condition)
        for device in todo.devices:
            self._taint_device(node, device, dra[device.device])
        if todo.keep_out:
            self._keep_out(node, todo)
        if todo.let_go:
            self.let_go(node)
        if todo.cleared_s is not None and self._lifted.get(node.name) != todo.cleared_s:
            self._untaint_devices(node, todo.cleared_s)
            self._lifted[node.name] = todo.cleared_s

    def _condition(self, node: NodeView, fault: bool, text: str) -> None:
        now = rfc3339.to_text(self._store.wall())[:19] + "Z"
        condition = {
            "type": CONDITION,
            "status": "True" if fault else "False",
            "reason": "DeviceFault" if fault else "Cleared",
            "message": text,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        path = f"/api/v1/nodes/{node.name}/status"
        # conditions are merged by their type, so those of others stay
        self._writes().strategic_patch(path, {"status": {"conditions": [condition]}})
        self._say(node, "KcoverDeviceFault" if fault else "KcoverDeviceWell", text, fault)

    def _keep_out(self, node: NodeView, todo: NodePlan) -> None:
        now = rfc3339.to_text(self._store.wall())
        spec: dict[str, Any] = {}
        if todo.cordon and not node.cordoned:
            spec["unschedulable"] = True
        if todo.taint:
            ours = {"key": TAINT, "value": "fatal", "effect": "NoSchedule"}
            spec["taints"] = [*_others(node), ours]
        raw = _change(self._writes(), node, f"{now} {todo.keep_out}", spec, todo.until_s)
        self._remember(raw)
        self._say(node, "KcoverCordoned", todo.keep_out, True)

    def let_go(self, node: NodeView) -> None:
        """Take away what we did to a node, and nothing else."""
        self._remember(release(self._writes(), node))
        why = (
            "marked healthy after a fault"
            if node.until_s is None
            else "the cordon on suspicion has expired"
        )
        self._say(node, "KcoverUncordoned", why, False)

    def _remember(self, raw: Mapping[str, Any]) -> None:
        if raw.get("metadata"):
            self._store.on_node(Event(Change.SET, dict(raw)))

    def _say(self, node: NodeView, reason: str, text: str, trouble: bool) -> None:
        if self._said.get(node.name) == reason + text:
            return
        self._said[node.name] = reason + text
        _LOG.info("node %s: %s: %s", node.name, reason, text)
        about = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        self._tell(about, reason, text, trouble)

    # ---- devices that the cluster hands out one by one (DRA)

    def _by_dra(self, node: str) -> dict[str, dict[str, Any]]:
        """Selectors of DRA devices of a node, by PCI address; empty where there are none."""
        try:
            version = self._session.get(_RESOURCE)["preferredVersion"]["groupVersion"]
            found = self._session.list(
                f"/apis/{version}/resourceslices", {"fieldSelector": f"spec.nodeName={node}"}
            )
        except (ApiError, KeyError):
            return {}
        devices = {}
        for item in found.get("items") or ():
            spec = item.get("spec") or {}
            for each in spec.get("devices") or ():
                inner = each.get("basic") or each
                address = (inner.get("attributes") or {}).get(_PCI, {}).get("string")
                if address:
                    pool = (spec.get("pool") or {}).get("name")
                    devices[str(address)] = {
                        "driver": spec.get("driver"),
                        "pool": pool,
                        "device": each.get("name"),
                    }
        return devices

    def _taint_device(
        self, node: NodeView, device: ReportedDeviceFault, selector: Mapping[str, Any]
    ) -> None:
        name = re.sub(r"[^a-z0-9.-]+", "-", f"kcover-{node.name}-{device.device}".lower())
        taint = {"key": TAINT, "value": "fatal", "effect": "NoSchedule"}
        for version in _RULE_VERSIONS:
            body = {
                "apiVersion": f"resource.k8s.io/{version}",
                "kind": "DeviceTaintRule",
                "metadata": {"name": name, "labels": {_NODE: node.name}},
                "spec": {"deviceSelector": dict(selector), "taint": taint},
            }
            try:
                self._writes().create(f"{_RESOURCE}/{version}/devicetaintrules", body)
            except Conflict:
                return
            except NotFound:
                continue
            self._say(node, "KcoverDeviceTainted", f"{device.device}: {device.text}", True)
            return

    def _untaint_devices(self, node: NodeView, cleared_s: float) -> None:
        for version in _RULE_VERSIONS:
            path = f"{_RESOURCE}/{version}/devicetaintrules"
            try:
                found = self._session.list(path, {"labelSelector": f"{_NODE}={node.name}"})
            except NotFound:
                continue
            for each in found.get("items") or ():
                metadata = each["metadata"]
                if rfc3339.from_text(metadata["creationTimestamp"]) <= cleared_s:
                    self._writes().delete(f"{path}/{metadata['name']}")
                    self._say(node, "KcoverDeviceUntainted", metadata["name"], False)
            return


def release(session: ApiClient, node: NodeView) -> dict[str, Any]:
    """Let new pods onto a node again, if it is we who kept them off; raises `ApiError`."""
    return _change(session, node, None, {"taints": _others(node), "unschedulable": None})


def _others(node: NodeView) -> list[Mapping[str, Any]]:
    return [each for each in node.taints if each.get("key") != TAINT]


def _change(
    session: ApiClient,
    node: NodeView,
    note: str | None,
    spec: Mapping[str, Any],
    until_s: float | None = None,
) -> dict[str, Any]:
    until = rfc3339.to_text(until_s) if until_s is not None else None
    # a list of taints is replaced whole: refused if anybody changed the node since
    metadata = {
        "resourceVersion": node.resource_version,
        "annotations": {CORDONED: note, UNTIL: until},
    }
    return session.merge_patch(
        f"/api/v1/nodes/{node.name}", {"metadata": metadata, "spec": dict(spec)}
    )
