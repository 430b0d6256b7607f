"""How long a restart of a small job takes on a real cluster, and which part of it is the kubelets'.

An indexed Job of four pods that sleep, with the default grace period, on the nodes of the test bed. A fake of the
agents makes up the hang and carries out the orders; a fresh job for each run, so that no back-off is measured.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clusterbench.plane import ROOT
from kcover_ebpf.api import rfc3339
from kcover_ebpf.kube.client import connect
from kcover_ebpf.kube.reflector import Change, Event, Reflector
from testbed.driver.cluster import Cluster, Namespace
from testbed.driver.fake_agent import FakeAgent
from testbed.driver.restarts import IN_PLACE_RULE, moment, policy, running, wait_for_phase, ways

_LABELS = {"batch.kubernetes.io/job-name": "sleepers"}
_SELECTOR = "batch.kubernetes.io/job-name=sleepers"
_INDEX = "batch.kubernetes.io/job-completion-index"
_PODS = 4


@dataclass(frozen=True)
class _Sample:
    """What one event of a watch showed of a pod."""

    at_s: float
    index: str
    """Of the rank; a new pod has that of the old one."""
    life: str
    """The pod's uid and its restarts."""
    runs: bool


def _sample(event: Event) -> _Sample | None:
    metadata, status = event.object.get("metadata") or {}, event.object.get("status") or {}
    states = status.get("containerStatuses") or ()
    if event.change is not Change.SET or not states:
        return None
    (state,) = states
    life = f"{metadata['uid']} {state['restartCount']}"
    runs = bool(state["ready"]) and "running" in state["state"]
    return _Sample(time.time(), metadata["labels"][_INDEX], life, runs)


def cluster_of(kubeconfig: Path) -> Cluster:
    """The running cluster."""
    kubectl = shutil.which("kubectl")
    assert kubectl is not None, "no kubectl on PATH"
    return Cluster(kubeconfig, Path(kubectl))


def restart(kubeconfig: Path, folder: Path, way: str) -> dict[str, Any]:
    """One restart; the times of its parts, in seconds after the verdict."""
    cluster = cluster_of(kubeconfig)
    namespace = Namespace(cluster, f"bench-{uuid.uuid4().hex[:6]}")
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    cluster.ctl("create", "namespace", namespace.name)
    try:
        return _measure(namespace, folder, way)
    finally:
        cluster.ctl("delete", "namespace", namespace.name, "--wait=false")


def _measure(namespace: Namespace, folder: Path, way: str) -> dict[str, Any]:
    policy(namespace, ways=[way])
    namespace.apply(json.dumps(_job(way)))
    for name in namespace.wait_for_pods(_SELECTOR, _PODS):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)
    session = connect(str(namespace.cluster.kubeconfig))
    seen: list[_Sample] = []

    def on_event(event: Event) -> None:
        found = _sample(event)
        if found is not None:
            seen.append(found)

    path = f"/api/v1/namespaces/{namespace.name}/pods"
    watch = Reflector(session, path, {"labelSelector": _SELECTOR}, on_event)
    watch.start()
    with (
        running(namespace, folder / "controller.log"),
        FakeAgent(session, namespace.name, _LABELS, "Job") as fake,
    ):
        time.sleep(10)
        victim = namespace.pods(_SELECTOR)[-1]["metadata"]["name"]
        if way == "Hybrid":
            fake.break_device(victim, "0000:5d:00.0")
        else:
            fake.break_rank(victim)
        incident = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed", "Refused"))
    watch.stop()
    return _parts(incident, seen)


def _parts(incident: dict[str, Any], seen: list[_Sample]) -> dict[str, Any]:
    decided_s = moment(incident, "Decided")
    story = incident["status"]["timeline"]
    old = {sample.index: sample.life for sample in seen if sample.at_s < decided_s}
    ended_s: dict[str, float] = {}
    ready_s: dict[str, float] = {}
    for sample in seen:
        if sample.life != old[sample.index] or not sample.runs:
            ended_s.setdefault(sample.index, sample.at_s)
        if sample.life != old[sample.index] and sample.runs:
            ready_s.setdefault(sample.index, sample.at_s)
    return {
        "ways": ways(incident),
        "all_ready_s": round(moment(incident, "Recovering") - decided_s, 2),
        "ended_s": sorted(round(at_s - decided_s, 2) for at_s in ended_s.values()),
        "ready_s": sorted(round(at_s - decided_s, 2) for at_s in ready_s.values()),
        "timeline": [
            f"{rfc3339.from_text(item['time']) - decided_s:+.2f} {item['phase']}: {item['text']}"
            for item in story
        ],
    }


def _job(way: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "localhost/kcover-train:1",
        "command": ["python3", "-c", "import time; time.sleep(1e6)"],
        "restartPolicy": "Never",
        "restartPolicyRules": IN_PLACE_RULE,
    }
    labels = {"kcover.io/cascading-recovery": "true"}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "containers": [container],
        },
    }
    spec = {"completionMode": "Indexed", "completions": _PODS, "parallelism": _PODS}
    # with it a Job makes an evicted pod again, and waits ten seconds before it does
    ignores = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    rules = {"podFailurePolicy": {"rules": [ignores]}} if way == "Hybrid" else {}
    spec |= {"backoffLimit": 0, "template": template, **rules}
    metadata = {"name": "sleepers", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
