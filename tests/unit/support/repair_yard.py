"""A node with a GPU that an operator's Job mends, or does not, and the pods that use it."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.controller.repairs import Repairs
from kcover_ebpf.errors import ApiError, Conflict, Unreachable
from kcover_ebpf.recovery.repair import RepairLimits, limits_of
from tests.unit.support.node_bed import XID, Bed, F, P

CONTAINER: dict[str, Any] = {
    "name": "repair",
    "image": "site/repair",
    "env": [{"name": "KCOVER_NODE", "value": "x"}],
}
JOB: dict[str, Any] = {"template": {"spec": {"containers": [CONTAINER]}}}
TABLE: dict[str, Any] = {
    "steps": [
        {"step": "ResetGPU", "job": JOB},
        {"step": "Reboot", "job": JOB},
        {"step": "Replace", "job": JOB, "onNode": False},
    ]
}
LIMITS = limits_of(TABLE, "file")


class Yard(Bed):
    """A node with a GPU that an operator's Job mends, or does not."""

    def __init__(self, limits: RepairLimits = LIMITS, mended_by: str = "ResetGPU") -> None:
        self.jobs: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        super().__init__()
        self.mended_by, self.is_broken = mended_by, True
        self.repairs = Repairs(
            self,  # type: ignore[arg-type]
            self.writing,  # type: ignore[arg-type]
            self.store,
            self.nodes._limits,
            limits,
            self.nodes._notify,
        )

        self.errors: list[ApiError] = []
        """Answers to the next requests for a Job."""
        self.is_created_anyway = False

    def list(self, *call: Any) -> dict[str, Any]:
        return {"items": self.pods} if call[0] == "/api/v1/pods" else {"items": []}

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/apis/batch/v1/namespaces/kcover/jobs"
        if self.errors:
            error = self.errors.pop(0)
            if self.is_created_anyway:
                self.create(path, body)
            raise error
        if body["metadata"]["name"] in {job["metadata"]["name"] for job in self.jobs}:
            raise Conflict("it is there")
        self.jobs.append(body)
        if env(body)["KCOVER_STEP"] == self.mended_by:
            self.is_broken = False
        return body

    def fail(self) -> None:
        self.report(XID)
        self.round()

    def round(self, count: int = 1) -> None:
        for _ in range(count):
            self.inspect(P, gpu_result=F if self.is_broken else P)
            self.report()
            self.repairs.reconcile("n0")


def steps(yard: Yard) -> list[str]:
    return [env(job)["KCOVER_STEP"] for job in yard.jobs]


def env(job: dict[str, Any]) -> dict[str, str]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item["value"] for item in container["env"]}


def pod(uid: str, namespace: str = "ml", owner: str = "Job") -> dict[str, Any]:
    metadata = {"uid": uid, "namespace": namespace, "ownerReferences": [{"kind": owner}]}
    return {"metadata": metadata, "status": {"phase": "Running"}}


def named(name: str, owner: str = "Job") -> dict[str, Any]:
    made = pod(name, owner=owner)
    made["metadata"]["name"] = name
    return made


DRAINS = limits_of({"steps": [{**TABLE["steps"][0], "drain": True}]}, "file")


class Drained(Yard):
    """Whose pods may be evicted."""

    def __init__(self, limits: RepairLimits = DRAINS) -> None:
        self.evicted: list[str] = []
        self.budget: set[str] = set()
        """Pods that a disruption budget keeps for now."""
        super().__init__(limits)

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if not path.endswith("/eviction"):
            return super().create(path, body)
        name = body["metadata"]["name"]
        if name in self.budget:
            raise Unreachable("a disruption budget", 429)
        self.evicted.append(name)
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]
        return {}
