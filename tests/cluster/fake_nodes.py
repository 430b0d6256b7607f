"""Nodes that only exist in the API server, for tests of scale; KWOK plays their kubelets.

Pods that tolerate the taint and select the label land on them, become ready at once, run for ever
and end at once when they are deleted (tools/testbed up --controllers kwok).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testbed.driver.cluster import Cluster

LABEL = "kcover.io/test-fake-node"
TOLERATION = {"key": "kwok.x-k8s.io/node", "operator": "Exists"}
RESOURCES = {"cpu": "64", "memory": "1Ti", "pods": "500"}


def fake_node(name: str, group: str) -> dict[str, Any]:
    """The object of one; nodes of a group are selected by LABEL=group."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {LABEL: group, "kubernetes.io/hostname": name},
        },
        "spec": {"taints": [{"key": TOLERATION["key"], "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": RESOURCES, "capacity": RESOURCES},
    }


@contextmanager
def fake_nodes(cluster: Cluster, group: str, count: int) -> Iterator[list[str]]:
    """Have `count` ready fake nodes; they are gone afterwards. Yields their names."""
    names = [f"{group}-{number}" for number in range(count)]
    objects = {"apiVersion": "v1", "kind": "List", "items": [fake_node(n, group) for n in names]}
    selector = f"--selector={LABEL}={group}"
    try:
        cluster.ctl("create", "--filename=-", stdin=json.dumps(objects), timeout_s=600)
        ready = ["wait", "nodes", selector, "--for=condition=Ready", "--timeout=300s"]
        cluster.ctl(*ready, timeout_s=310)
        yield names
    finally:
        cluster.ctl("delete", "nodes", selector, "--wait=false", timeout_s=600)


def fake_job(name: str, group: str, pods: int) -> dict[str, Any]:
    """An indexed Job whose pods land on the fake nodes of a group."""
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "nodeSelector": {LABEL: group},
        "tolerations": [TOLERATION],
        "containers": [{"name": "main", "image": "localhost/kcover-train:1"}],
    }
    labels = {"kcover.io/cascading-recovery": "true"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    size = {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    spec = {**size, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def running(cluster: Cluster, namespace: str) -> int:
    """How many pods of the namespace run."""
    said = cluster.ctl(
        "get", "pods", f"--namespace={namespace}", "--field-selector=status.phase=Running",
        "--output=name",
    )  # fmt: skip
    return len(said.splitlines())
