"""A cluster of incidents and nodes, and the plug-in that is asked about them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import (
    Incident,
    JobRef,
    Lost,
    Phase,
    Status,
    object_of,
    status_of,
)
from kcover_ebpf.cli import kubectl
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    FailureClass,
    Verdict,
    VerdictKind,
)
from tests.unit.support.fake_api_server import Answer, Request

GROUP = "/apis/kcover.io/v1alpha1"
STATUS = Status(
    Phase.OPEN,
    verdict=Verdict(
        kind=VerdictKind.HUNG,
        cause=Cause.STOPPED,
        culprit=Culprit(rank=2, pid=77, pod="llm-2", node="n7"),
        evidence=(Evidence(EvidenceKind.PEERS, "all other ranks wait"),),
        unobserved=("node n9: no report",),
        deadline_s=1_800_000_000.0,
        graph=(
            "ranks 0, 1, 3 -> collective -> rank 2 -> the process that stopped it",
            "no work: rank 4 sleeps as it always did",
        ),
        certainty=Certainty.PROVEN,
        acts_at_s=1_700_000_005.0,
        acts_why="stopped for 5 s",
    ),
    failure=FailureClass.STORAGE,
    lost=Lost(detect_s=2.5, decide_s=0.1),
)


def incident(namespace: str, name: str, age_s: float) -> dict[str, Any]:
    reported = STATUS.enter(Phase.OPEN, 1_700_000_000.0, "seen")
    reported = reported.enter(
        Phase.DECIDED, 1_700_000_001.5, "HUNG stopped, rank 2 in pod llm-2 on n7"
    )
    job = JobRef("PyTorchJob", "llm", "uid", "kubeflow.org/v1")
    raw = object_of(Incident(namespace, name, job, {"k": "v"})) | {"status": status_of(reported)}
    made_s = rfc3339.from_text("2026-01-01T00:00:00Z") - age_s
    raw["metadata"]["creationTimestamp"] = rfc3339.to_text(made_s)[:19] + "Z"
    return raw


@dataclass
class FakeCluster:
    """Objects by path; a PATCH of what is there merges the top level of `spec` and the metadata, and annotations.

    It notes its time, `written`, in managedFields, and a dry run changes nothing.
    """

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    refuse: int = 0
    raw: dict[str, Any] | None = None
    written: str | None = "2026-01-01T00:00:00Z"

    def put(self, namespace: str, name: str, age_s: float = 0.0) -> None:
        path = f"{GROUP}/namespaces/{namespace}/incidents/{name}"
        self.objects[path] = incident(namespace, name, age_s)

    def answer(self, request: Request) -> Answer:
        if self.refuse:
            return Answer(self.refuse, {"message": "no, because"})
        if self.raw is not None:
            return Answer(body=self.raw)
        if request.method == "POST":
            self.objects[f"{request.path}/{request.body['metadata']['name']}"] = request.body
            return Answer(201, request.body)
        if request.path.endswith("/incidents"):
            kept = [
                object_ for path, object_ in self.objects.items() if self._is_in(request.path, path)
            ]
            return Answer(body={"items": kept})
        found = self.objects.get(request.path)
        if found is None:
            return Answer(404, {"message": "not found"})
        if request.method == "PATCH":
            found = self._patched(found, request)
        return Answer(body=found)

    def _patched(self, found: dict[str, Any], request: Request) -> dict[str, Any]:
        if "dryRun" in request.query:
            found = copy.deepcopy(found)
        notes = (found.get("metadata") or {}).get("annotations") or {}
        for part in ("spec", "metadata"):
            found.setdefault(part, {}).update(request.body.get(part, {}))
        if notes:
            found["metadata"]["annotations"] = notes | found["metadata"]["annotations"]
        if self.written is not None:
            found["metadata"]["managedFields"] = [{"time": self.written}]
        return found

    @staticmethod
    def _is_in(collection: str, path: str) -> bool:
        everywhere = collection == f"{GROUP}/incidents"
        return path.startswith(f"{collection}/") or (everywhere and "/incidents/" in path)


@dataclass
class Plugin:
    cluster: FakeCluster
    config: str
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = kubectl.main([*arguments, "--kubeconfig", self.config])
        out, err = self.capsys.readouterr()
        return code, out, err

    def fails(self, *arguments: str) -> tuple[int, str]:
        code, out, err = self(*arguments)
        assert out == ""
        assert err.startswith("kubectl kcover: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return code, err
