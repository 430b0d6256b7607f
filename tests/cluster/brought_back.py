"""A job of two pods that trains with a device in each, and what a test asks of it after it was brought back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kcover_ebpf.kube.client import connect
from testbed.driver.cluster import JOBS, Cluster, Namespace
from testbed.driver.fake_agent import FakeAgent
from testbed.driver.kinds import Kind, wait_for_training
from testbed.driver.nodes import all_uncordoned
from testbed.driver.restarts import running
from tests.cluster.spares import DEVICE
from tests.cluster.step_log import StepLog

_EVICTED = {"type": "DisruptionTarget", "status": "True"}
IGNORES = [{"action": "Ignore", "onPodConditions": [_EVICTED]}]
_NOT_ASKED = {"Pod", "Deployment", "ReplicaSet"}


def of_jobs(objects: list[dict[str, Any]]) -> None:
    """Batch Jobs make an evicted pod again, and count nothing."""
    spec = objects[-1]["spec"]
    for job in (entry["template"]["spec"] for entry in spec.get("replicatedJobs", ())):
        job |= {"podFailurePolicy": {"rules": IGNORES}}
    if "completionMode" in spec:
        spec |= {"podFailurePolicy": {"rules": IGNORES}}


@dataclass(frozen=True)
class Trained:
    """A job that trains, and what belongs to it."""

    namespace: Namespace
    kind: Kind
    fake: FakeAgent
    steps: StepLog


@contextmanager
def training(
    bed: Cluster,
    namespace: Namespace,
    kind: Kind,
    change: Callable[[list[dict[str, Any]]], None],
    folder: Path,
) -> Iterator[Trained]:
    key, _, value = kind.selector.partition("=")
    session = connect(str(bed.kubeconfig))
    with (
        all_uncordoned(bed),  # once the controller has ended, which writes to nodes, too
        StepLog(folder / "resume") as steps,
        running(namespace, folder / "controller.log"),
        FakeAgent(session, namespace.name, {key: value}, kind.kind) as fake,
    ):
        # anchors make one object of what is written once: each pod is to have its own
        text = json.dumps(list(yaml.safe_load_all((JOBS / f"{kind.file}.yaml").read_text())))
        objects: list[dict[str, Any]] = json.loads(text)
        change(objects)
        _equip(objects, steps.folder, needs_device=not kind.speaker)
        namespace.apply(yaml.safe_dump_all(objects))
        wait_for_training(namespace, kind)
        yield Trained(namespace, kind, fake, steps)


def _equip(found: object, folder: Path, *, needs_device: bool) -> None:
    """Give each pod the folder of steps, and a device."""
    if isinstance(found, list):
        for entry in found:
            _equip(entry, folder, needs_device=needs_device)
    if not isinstance(found, dict):
        return
    for value in found.values():
        _equip(value, folder, needs_device=needs_device)
    if "containers" not in found:
        return
    found["volumes"].append({"name": "resume", "hostPath": {"path": str(folder)}})
    (container,) = found["containers"]
    container["volumeMounts"].append({"name": "resume", "mountPath": "/resume"})
    # a launcher holds no device; the workers are those that serve ssh
    if needs_device or any("sshd" in word for word in container["command"]):
        container["resources"] |= {"limits": {DEVICE: "1"}}


def events(namespace: Namespace) -> dict[str, str]:
    """By uid the Events about anything but pods and incidents, as COMPONENT: REASON."""
    found = {}
    for event in namespace.get("events"):
        kind, reason = event["involvedObject"]["kind"], event["reason"]
        if kind in _NOT_ASKED or reason.startswith("Kcover"):
            continue
        component = event.get("source", {}).get("component") or event.get("reportingComponent")
        found[event["metadata"]["uid"]] = f"{component}: {reason}"
    return found


def restarts(pod: dict[str, Any]) -> int:
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ()))


def place(pod: dict[str, Any]) -> list[str]:
    """What gives a pod its rank."""
    labels = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
    return [pod["metadata"].get("labels", {}).get(label, "") for label in labels]
