"""Nodes, their health and a reconciler on a fake API server."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy, NodeActions
from kcover_ebpf.api.fault_report import FaultReport, ReportedDeviceFault
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.node_reconciler import NodeLimits, NodeReconciler
from kcover_ebpf.errors import ActionError
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.nodes.node_plan import NodeBreaker
from tests.unit.support.kept_policies import put_policy

OLD = {
    "name": "rule",
    "creationTimestamp": "2025-01-01T00:00:00Z",
    "labels": {"kcover.io/node": "n0"},
}


class Cluster:
    """Nodes of an API server that believes everything."""

    def __init__(self, count: int = 2, breaker: NodeBreaker | None = None) -> None:
        self.now_s = 1_767_225_600.0
        self.leads = True
        self.events: list[tuple[str, str]] = []
        self.store = ObjectCache(lambda _: None, wall=lambda: self.now_s)
        for index in range(count):
            self._put(
                {"metadata": {"name": f"n{index}", "uid": f"u{index}"}, "spec": {}, "status": {}}
            )
        self.nodes = NodeReconciler(
            self,  # type: ignore[arg-type]
            self.writing,  # type: ignore[arg-type]
            self.store,
            NodeLimits("kcover", breaker or NodeBreaker(), 300.0),
            lambda about, reason, text, warning: self.events.append((about["name"], reason)),
        )

    def writing(self) -> Cluster:
        if not self.leads:
            raise ActionError("not the leader")
        return self

    def _put(self, raw: dict[str, Any]) -> None:
        self.store.on_node(Event(Change.SET, raw))

    def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        old = self.store.raw_nodes[name]
        notes = dict(old["metadata"].get("annotations") or {}) | body["metadata"]["annotations"]
        kept = {key: value for key, value in notes.items() if value is not None}
        spec = dict(old["spec"]) | body.get("spec", {})
        metadata = {"name": name, "uid": old["metadata"]["uid"], "annotations": kept}
        raw = {"metadata": metadata, "spec": spec, "status": {}}
        self._put(raw)
        return raw

    def strategic_patch(self, *_: Any) -> dict[str, Any]:
        return {}

    def delete(self, *_: Any) -> None:
        pytest.fail("nothing is to be deleted")

    def get(self, *_: object) -> dict[str, Any]:
        return {}

    def by_hand(self, name: str, unschedulable: bool) -> None:
        """A person cordons a node, or uncordons it."""
        old = self.store.raw_nodes[name]
        spec = dict(old["spec"]) | {"unschedulable": unschedulable}
        self._put({"metadata": dict(old["metadata"]), "spec": spec, "status": {}})
        self.nodes.reconcile(name)

    def cordoned(self) -> list[str]:
        return [
            name for name, raw in self.store.raw_nodes.items() if raw["spec"].get("unschedulable")
        ]

    def notes(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.store.raw_nodes[name]["metadata"].get("annotations") or {}
        return found

    def policy(self, namespace: str, node: NodeActions) -> None:
        made = FaultPolicy(node=node)
        put_policy(self.store, namespace, "p", made)

    def list(self, *_: Any) -> dict[str, Any]:
        return {"items": [{"metadata": OLD}]}

    def breaks(self, name: str) -> None:
        fault = ReportedDeviceFault(
            "0000:5d:00.0", "xid_79", "x", fatal=True, unfit=True, age_s=1.0
        )
        report = FaultReport(name, self.now_s, 1, devices=(fault,))
        self.store.host_reports[name] = ReceivedReport(report, self.now_s)
        self.nodes.reconcile(name)
