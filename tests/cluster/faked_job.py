"""The example Job under fake agents: what a sensor would say is made up by a test, what agents do is done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kcover_ebpf.kube.client import connect
from testbed.driver.cluster import JOBS, Namespace
from testbed.driver.fake_agent import FakeAgent
from testbed.driver.kinds import KINDS
from testbed.driver.restarts import IN_PLACE_RULE, incidents, ways

JOB = KINDS["job"]
_LABEL = "batch.kubernetes.io/job-name"
_TRAIN = "[python3, /train/train.py]"


def faked(
    namespace: Namespace,
    job: str = "demo",
    *,
    kubeconfig: Path | None = None,
) -> FakeAgent:
    """The agents of a job."""
    session = connect(str(kubeconfig or namespace.cluster.kubeconfig))
    return FakeAgent(session, namespace.name, {_LABEL: job}, JOB.kind)


def started(
    namespace: Namespace,
    job: str = "demo",
    *,
    in_place: bool = False,
    trains: bool = False,
    grace_s: int | None = None,
) -> None:
    """Start a job; unless it is to train, its ranks sleep: they answer to SIGTERM as little.

    `grace_s`: grace period of its pods; None: that of Kubernetes.
    """
    text = (JOBS / "job.yaml").read_text().replace("demo", job)
    assert _TRAIN in text
    if not trains:
        text = text.replace(_TRAIN, "[sleep, infinity]")
    objects = list(yaml.safe_load_all(text))
    if grace_s is not None:
        objects[-1]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace_s
    if in_place:
        for object_ in objects:
            _carry(object_)
    namespace.apply(yaml.safe_dump_all(objects))
    for name in namespace.wait_for_pods(f"{_LABEL}={job}", JOB.pods):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)


def _carry(value: object) -> None:
    """Put the rule that the admission policy of the chart adds into every container of a template."""
    if isinstance(value, dict):
        for container in value.get("containers") or ():
            container |= {"restartPolicy": "Never", "restartPolicyRules": IN_PLACE_RULE}
        for item in value.values():
            _carry(item)
    elif isinstance(value, list):
        for item in value:
            _carry(item)


def uids(namespace: Namespace, job: str = "demo") -> set[str]:
    """Of the pods of a job."""
    return {pod["metadata"]["uid"] for pod in namespace.pods(f"{_LABEL}={job}")}


def break_rank(namespace: Namespace, fake: FakeAgent, job: str = "demo") -> None:
    """Have the agents report that the last rank of a job is stopped."""
    fake.break_rank(namespace.pods(f"{_LABEL}={job}")[-1]["metadata"]["name"])


def ask_for_recovery(namespace: Namespace, pod: Mapping[str, Any]) -> None:
    """An Event about a pod, as kcover's detector, or any other, writes it."""
    about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "asks", "annotations": {"kcover.io/need-recovery": "true"}},
        "involvedObject": {**about, "namespace": namespace.name, "apiVersion": "v1"},
        "reason": "Error",
        "type": "Warning",
        "source": {"component": "kcover"},
        "message": "a container failed",
        "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    namespace.apply(yaml.safe_dump(event))


def check_acted_once(namespace: Namespace, old: set[str], way: str = "Replace") -> None:
    """One incident, one restart; nothing is left suspended, nothing was counted."""
    (incident,) = incidents(namespace)
    assert ways(incident) == [way], incident["status"]["timeline"]
    new = uids(namespace)
    assert len(new) == JOB.pods
    assert new == old if way == "InPlace" else not new & old
    (job,) = namespace.get("jobs", "demo")
    assert not job["spec"].get("suspend")
    assert not job["status"].get("failed")
