"""The controller of an invented kind: it makes a Crew for each Training, and a pod for each of its workers.

As most controllers it counts a pod that failed, and gives up at the first one; a pod that was deleted is made again. A
Training in mode Paused has no pods.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kcover_ebpf.errors import ApiError, Conflict
from kcover_ebpf.kube.client import ApiClient, connect
from testbed.driver.cluster import Cluster, Namespace

LABEL = "acme.example/training"
_FILE = Path(__file__).with_name("training_crd.yaml")
_GROUP = "acme.example/v1"


class TrainingController:
    """For the Trainings of one namespace; a pass each fifth of a second."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._base = f"/apis/{_GROUP}/namespaces/{namespace}"
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def end(self) -> None:
        """Stop, and wait for it."""
        self._stop.set()
        self.thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            try:
                for training in self._client.list(f"{self._base}/trainings").get("items", ()):
                    self._reconcile(training)
            except ApiError:
                continue

    def _reconcile(self, training: dict[str, Any]) -> None:
        name, spec, status = training["metadata"]["name"], training["spec"], training.get("status")
        pods = self._client.list(
            f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": f"{LABEL}={name}"}
        ).get("items", ())
        failed = [
            pod
            for pod in pods
            if pod["status"].get("phase") == "Failed" and "deletionTimestamp" not in pod["metadata"]
        ]
        if failed:
            said = {"phase": "Broken", "failures": len(failed)}
            self._client.merge_patch(f"{self._base}/trainings/{name}", {"status": said})
        if failed or (status or {}).get("phase") == "Broken":
            return
        if spec["mode"] == "Paused":
            for pod in pods:
                if "deletionTimestamp" not in pod["metadata"]:
                    self._client.delete(
                        f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}"
                    )
            return
        crew = self._crew(training)
        there = {pod["metadata"]["name"] for pod in pods}
        for rank in range(spec["workers"]):
            if f"{name}-{rank}" not in there:
                self._make(f"/api/v1/namespaces/{self._namespace}/pods", _pod(training, crew, rank))

    def _crew(self, training: dict[str, Any]) -> dict[str, Any]:
        name = training["metadata"]["name"]
        body = {"apiVersion": _GROUP, "kind": "Crew", "metadata": {"name": name}}
        body["metadata"]["ownerReferences"] = [_owner("Training", training)]  # type: ignore[index]
        self._make(f"{self._base}/crews", body)
        return self._client.get(f"{self._base}/crews/{name}")

    def _make(self, path: str, body: dict[str, Any]) -> None:
        try:
            self._client.create(path, body)
        except Conflict:
            return


def _owner(kind: str, object_: dict[str, Any]) -> dict[str, Any]:
    metadata = object_["metadata"]
    named = {"name": metadata["name"], "uid": metadata["uid"], "controller": True}
    return {"apiVersion": _GROUP, "kind": kind, **named}


def _pod(training: dict[str, Any], crew: dict[str, Any], rank: int) -> dict[str, Any]:
    name = training["metadata"]["name"]
    pod: dict[str, Any] = training["spec"]["template"]
    environment = {"RANK": str(rank), "WORLD_SIZE": str(training["spec"]["workers"])}
    environment["MASTER_ADDR"] = f"{name}-0.{name}"
    containers = [
        {**one, "env": [{"name": key, "value": value} for key, value in environment.items()]}
        for one in pod["spec"]["containers"]
    ]
    names = {"hostname": f"{name}-{rank}", "subdomain": name, "containers": containers}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{rank}",
            "labels": {**pod["metadata"]["labels"], LABEL: name},
            "ownerReferences": [_owner("Crew", crew)],
        },
        "spec": {**pod["spec"], **names},
    }


@contextmanager
def described(cluster: Cluster) -> Iterator[None]:
    """The invented kind and its JobKind, as long as the block lasts."""
    *crds, kind = _FILE.read_text().split("\n---\n")
    text = "\n---\n".join(crds)
    cluster.ctl("apply", "--filename=-", stdin=text)
    for name in ("trainings", "crews"):
        cluster.ctl("wait", f"crd/{name}.acme.example", "--for=condition=Established")
    cluster.ctl("apply", "--filename=-", stdin=kind)
    try:
        yield
    finally:
        cluster.ctl("delete", "--filename=-", stdin=kind)
        cluster.ctl("delete", "--filename=-", stdin=text)


@contextmanager
def running(namespace: Namespace) -> Iterator[None]:
    """The controller, as long as the block lasts."""
    controller = TrainingController(connect(str(namespace.cluster.kubeconfig)), namespace.name)
    controller.thread.start()
    try:
        yield
    finally:
        controller.end()
