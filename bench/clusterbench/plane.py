"""A control plane without a kubelet, and the objects of a large cluster put there by hand."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from kcover_ebpf.api import fault_report
from kcover_ebpf.api.fault_report import FaultReport, PodRef, ReportedJob
from kcover_ebpf.errors import ApiError
from kcover_ebpf.kube.client import ApiClient, connect

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "bench"
POLICY = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/faultpolicies/p"
SELECTOR = "batch.kubernetes.io/job-name"
_THREADS = 16
_EXPIRES_S = 900
"""Reports are made long before they are needed."""


def in_parallel(work: Callable[[int], object], count: int) -> None:
    """Do it for 0 .. count-1, some at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(work, range(count)))


def install(client: ApiClient) -> None:
    """The resources, the namespace, and a policy without limits."""
    for path in sorted((ROOT / "charts/kcover-ebpf/crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = {"metadata": {"name": "default"}}
    client.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
    binding = {
        "metadata": {"name": "bench"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}],
    }
    client.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    policy = {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "FaultPolicy",
        "metadata": {"name": "p"},
        "spec": {"restarts": {"max": 100, "backoffSeconds": 0}},
    }
    deadline = time.monotonic() + 60
    while True:
        try:
            client.create(POLICY.rpartition("/")[0], policy)
            return
        except ApiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def make_nodes(client: ApiClient, count: int) -> None:
    """Nodes that are ready."""

    def one(index: int) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "bench"}
        body = {"metadata": {"name": f"n{index}"}, "status": {"conditions": [ready]}}
        client.create("/api/v1/nodes", body)

    in_parallel(one, count)


def make_job(
    client: ApiClient, name: str, nodes: Iterable[int], managed: bool = True
) -> list[dict[str, Any]]:
    """A Job that its controller leaves alone, and its pods, which run; returns the pods."""
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kcover.io/cascading-recovery": "true"}},
        "spec": {
            "managedBy": "kcover.io/bench",
            "template": {"spec": {"restartPolicy": "Never", "containers": [_CONTAINER]}},
        },
    }
    made = client.create(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", job)
    uid, places = made["metadata"]["uid"], list(nodes)
    with ThreadPoolExecutor(_THREADS if len(places) > _THREADS else 1) as pool:
        return list(
            pool.map(
                lambda index: _make_pod(client, name, uid, index, places[index], managed),
                range(len(places)),
            )
        )


_CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "x",
    "restartPolicy": "Never",
    "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
    ],
}


def _make_pod(
    client: ApiClient, job: str, uid: str, index: int, node: int, in_place: bool
) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": True}
    container = _CONTAINER if in_place else {"name": "main", "image": "x"}
    body = {
        "metadata": {
            "name": f"{job}-{index}",
            "labels": {
                SELECTOR: job,
                "batch.kubernetes.io/job-completion-index": str(index),
                "kcover.io/cascading-recovery": "true",
            },
            "ownerReferences": [owner],
        },
        "spec": {"restartPolicy": "Never", "nodeName": f"n{node}", "containers": [container]},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    made = client.create(path, body)
    client.merge_patch(f"{path}/{made['metadata']['name']}/status", pod_status(0))
    return made


def pod_status(restarts: int) -> dict[str, Any]:
    """A pod that runs and is ready, with the given restart count."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    state = {
        "name": "main", "ready": True, "restartCount": restarts, "image": "x", "imageID": "x",
        "state": {"running": {"startedAt": now}},
    }  # fmt: skip
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [state],
    }
    return {"status": status}


def report_body(job: str, node: str, pods: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The report of one agent about one job."""
    refs = tuple(PodRef(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods)
    values: dict[str, Any] = {"suspicious": False, "trained": True} | more
    said = FaultReport(
        node, time.time(), 1, "bench", _EXPIRES_S, ReportedJob(job, {SELECTOR: job}), refs, **values
    )
    return fault_report.object_of(said, NAMESPACE, f"{job}.{node}")


class Controller:
    """The controller under test, as its own process."""

    def __init__(self, kubeconfig: Path, log: Path, *more: str) -> None:
        program = Path(sys.executable).with_name("kcover-ebpf")
        command = [str(program), "controller", "--kubeconfig", str(kubeconfig)]
        command += ["--namespace", NAMESPACE, "--breaker-jobs", "100000"]
        command += ["--max-restarts=100", "--min-backoff=0s", "--max-incidents=100000"]
        command += ["--namespace-percent=100", *more]
        self._log = log.open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def rss_mb(self) -> float:
        """Resident memory now."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(text for text in status.splitlines() if text.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._log.close()


@contextmanager
def cluster(folder: Path, apiserver: Path) -> Iterator[tuple[ApiClient, Path]]:
    """A fresh control plane with our resources in it."""
    from testbed.driver.control_plane import running

    with running(folder, apiserver) as plane:
        admin = connect(str(plane.kubeconfig))
        install(admin)
        # by a token, as in a cluster: a certificate would be verified for each request
        kubeconfig = plane.kubeconfig_of("bench", plane.token(NAMESPACE, "default"))
        yield connect(str(kubeconfig)), kubeconfig


def wait(what: str, reached: Callable[[], bool], timeout_s: float) -> None:
    """Until it is so; raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.1)
