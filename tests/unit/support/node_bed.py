"""A node that is inspected every ten minutes by a reconciler on a fake API server; its devices may be tainted alone."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.agent.node_health.health_memory import Round, after_round
from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import FaultPolicy, InspectionAction, NodeActions
from kcover_ebpf.api.fault_report import FaultReport, ReportedDeviceFault
from kcover_ebpf.api.node_health import NodeHealth, object_of
from kcover_ebpf.controller.node_reconciler import NodeReconciler
from kcover_ebpf.errors import Conflict
from kcover_ebpf.facts.health import Result
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.inspection.result import PartResult
from kcover_ebpf.kube.reflector import Change, Event
from tests.unit.support.kept_policies import put_policy
from tests.unit.support.node_world import Cluster

PROBE, GPU = "plugin/probe", "0000:5d:00.0"
P, F = Result.PASS, Result.FAIL
STEP_S = 600.0
XID = ReportedDeviceFault(GPU, "xid_48", "double bit ECC", fatal=True, unfit=True, age_s=1.0)


class Bed(Cluster):
    """A cluster whose node n0 is inspected every ten minutes; its clock is an hour ahead."""

    def __init__(self, action: InspectionAction = InspectionAction.ALL) -> None:
        self.boot = "a"
        self.written: dict[str, dict[str, Any]] = {}
        super().__init__(100)
        self.health: NodeHealth | None = None
        self.conditions: list[tuple[str, str]] = []
        made = FaultPolicy(node=NodeActions(inspection=action))
        put_policy(self.store, "kcover", "p", made)

    def _put(self, raw: dict[str, Any]) -> None:
        conditions = list(self.written.values()) if raw["metadata"]["name"] == "n0" else []
        raw["status"] = {"conditions": conditions, "nodeInfo": {"bootID": self.boot}}
        super()._put(raw)

    def strategic_patch(self, *call: Any) -> dict[str, Any]:
        path, body = call
        (condition,) = body["status"]["conditions"]
        if path == "/api/v1/nodes/n0/status":
            self.conditions.append((condition["type"], condition["status"]))
            # merged by its type, as the API server does
            self.written[condition["type"]] = self.written.get(condition["type"], {}) | condition
            self._put(dict(self.store.raw_nodes["n0"]))
        return {}

    def list(self, *_: Any) -> dict[str, Any]:
        return {"items": []}

    def inspect(
        self,
        result: Result,
        gpu_result: Result | None = P,
        rounds: int = 1,
        kind: str = "gpu",
        text: str = "it is broken",
        more: tuple[PartResult, ...] = (),
    ) -> None:
        """`gpu_result`: of the device; None: it is not on the bus. `text`: evidence. `more`: other checks."""
        for _ in range(rounds):
            self.now_s += STEP_S
            checks = [PartResult(PROBE, result, (text,)), *more]
            devices = (
                [PartResult(GPU, gpu_result, ("ecc",), kind=kind)] if gpu_result is not None else []
            )
            done = Round(self.now_s + 3600.0, self.boot, checks, devices)
            self.health = after_round("n0", self.health, done, 1950)
            raw = object_of(self.health)
            raw["metadata"]["managedFields"] = [{"time": rfc3339.to_text(self.now_s)}]
            self.store.on_health(Event(Change.SET, raw))
            self.nodes.reconcile("n0")

    def started_anew(self) -> None:
        """Another controller leads: it knows what is written, and nothing else."""
        self.nodes = NodeReconciler(
            self,  # type: ignore[arg-type]
            self.writing,  # type: ignore[arg-type]
            self.store,
            self.nodes._limits,
            self.nodes._notify,
        )

    def report(self, *faults: ReportedDeviceFault) -> None:
        report = FaultReport("n0", self.now_s, 1, devices=faults)
        self.store.host_reports["n0"] = ReceivedReport(report, self.now_s)
        self.nodes.reconcile("n0")


class Tainted(Bed):
    """Devices are handed out one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: dict[str, dict[str, Any]] = {}
        self.theirs: list[dict[str, Any]] = []
        """Taints by the driver of the devices, on the second of them."""
        self.foreign: list[dict[str, Any]] = []
        """Rules of others."""
        self.texts: list[str] = []
        self.unwatched: list[dict[str, Any]] = []
        """Nodes that exist although the watch does not know them."""

    def strategic_patch(self, *call: Any) -> dict[str, Any]:
        _, body = call
        self.texts += [condition["message"] for condition in body["status"]["conditions"]]
        return super().strategic_patch(*call)

    def get(self, *_: object) -> dict[str, Any]:
        return {"preferredVersion": {"groupVersion": "resource.k8s.io/v1"}}

    def list(self, *call: Any) -> dict[str, Any]:
        path = call[0]
        if path == "/api/v1/nodes":
            return {"items": self.unwatched}
        if path.endswith("devicetaintrules"):
            ours = [{"metadata": rule} for rule in self.rules.values()]
            return {"items": ours if call[1] else ours + self.foreign}
        attributes = {"resource.kubernetes.io/pciBusID": {"string": GPU}}
        devices = [
            {"name": "gpu-0", "attributes": attributes},
            {"name": "gpu-1", "taints": self.theirs},
        ]
        node = (call[1] or {}).get("fieldSelector", "=n0").partition("=")[2]
        spec = {"driver": "d", "nodeName": node, "pool": {"name": node}, "devices": devices}
        return {"items": [{"spec": spec}]}

    def create(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"] | {"creationTimestamp": rfc3339.to_text(self.now_s)}
        if metadata["name"] in self.rules:
            raise Conflict("it is there")
        self.rules[metadata["name"]] = metadata
        return body

    def delete(self, *call: Any) -> None:
        (path,) = call
        del self.rules[path.rpartition("/")[2]]
