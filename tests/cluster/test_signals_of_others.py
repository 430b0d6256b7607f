"""A node that we cordon waits for what drivers, operators and device plug-ins say of its GPUs. We change none of it.

The slice is that of a DRA driver; the counts are what the kubelet writes when a device plug-in calls a GPU unhealthy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.recovery.nodes.node_health import OFFENCES
from testbed import skips
from testbed.driver.cluster import Cluster, Namespace, home, until
from testbed.driver.nodes import cordoned_nodes, still
from testbed.driver.restarts import policy
from tests.cluster.node_health import all_pass, health, inspected, listed

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]
DRIVER, NAME, GPUS = "gpu.example.com", "kcover-test-others", "nvidia.com/gpu"
XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
REPAIR = {"key": "example.com/repair", "effect": "NoSchedule"}


def publish(cluster: Cluster, node: str, *taints: dict[str, str]) -> None:
    """The slice of a DRA driver: one GPU of a node, with these taints."""
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "taints": list(taints)}],
    }
    apply(cluster, "v1", "ResourceSlice", spec)


def apply(cluster: Cluster, version: str, kind: str, spec: dict[str, Any]) -> None:
    raw = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": NAME}}
    cluster.ctl("apply", "--filename=-", stdin=json.dumps(raw | {"spec": spec}))


def taints(cluster: Cluster) -> list[tuple[str, str]]:
    """On the GPU in the slice."""
    (raw,) = cluster.get("resourceslices", NAME)
    (device,) = raw["spec"]["devices"]
    return [(taint["key"], taint["effect"]) for taint in device.get("taints", ())]


def count_gpus(cluster: Cluster, node: str, healthy: int | None) -> None:
    """Eight GPUs, so many of them healthy; None: the node has none."""
    count = None if healthy is None else "8"
    allocatable = None if healthy is None else str(healthy)
    status = {"capacity": {GPUS: count}, "allocatable": {GPUS: allocatable}}
    patch = json.dumps({"status": status})
    cluster.ctl("patch", "node", node, "--subresource=status", f"--patch={patch}")


def clean_rounds(cluster: Cluster, node: str) -> int:
    return int(health(cluster, node).get("cleanRounds", 0))


def waits_for(cluster: Cluster, node: str, *signals: str) -> None:
    """Clean inspections, four times as many as are needed, do not uncordon the node, and people see why."""
    rounds = clean_rounds(cluster, node)
    until(lambda: clean_rounds(cluster, node) >= rounds + 8, "more clean inspections")
    assert cordoned_nodes(cluster) == {node}
    row = listed(cluster, node)
    assert len(row["others"]) == len(signals), row
    for signal, text in zip(signals, row["others"], strict=True):
        assert signal in text
        assert text in row["reason"]


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A node with a GPU that its driver has tainted."""
    name = min(entry["metadata"]["name"] for entry in cluster.get("nodes"))
    cluster.run(
        "annotate", "node", name, f"{OFFENCES}-"
    )  # each earlier time doubles what is needed
    try:
        publish(cluster, name, XID)
        if not taints(cluster):
            skips.skip("devicetaints", "the cluster keeps no taints of devices")
        yield name
    finally:
        cluster.run("delete", "resourceslices", NAME)
        cluster.run("delete", "devicetaintrules", NAME)
        count_gpus(cluster, name, None)
        cluster.run("annotate", "node", name, f"{OFFENCES}-")


@pytest.mark.usefixtures("controller")
def test_a_node_waits_for_what_others_say_of_its_gpus(
    cluster: Cluster, namespace: Namespace, node: str, tmp_path: Path
) -> None:
    del namespace
    operators = Namespace(cluster, home(cluster))
    names = [entry["metadata"]["name"] for entry in cluster.get("nodes")]
    try:
        with inspected(cluster, tmp_path) as broken:
            until(lambda: all_pass(cluster, names), "all nodes are inspected, and pass")
            policy(operators, node={"inspection": "All", "cleanRounds": 2})
            assert cordoned_nodes(cluster) == set(), "a taint of a driver cordons nothing"
            (broken / node).touch()
            until(lambda: cordoned_nodes(cluster) == {node}, "the node is cordoned")
            (broken / node).unlink()
            waits_for(cluster, node, "gpu-0 of gpu.example.com: taint gpu.nvidia.com/xid=79")
            assert taints(cluster) == [(XID["key"], "NoSchedule")]
            if cluster.serves("devicetaintrules.resource.k8s.io"):
                rule = {"deviceSelector": {"driver": DRIVER}, "taint": REPAIR}
                apply(cluster, "v1beta2", "DeviceTaintRule", rule)
                publish(cluster, node)
                waits_for(cluster, node, "taint example.com/repair:NoSchedule")
            with still(cluster, node):
                count_gpus(cluster, node, 7)
                publish(cluster, node)
                cluster.run("delete", "devicetaintrules", NAME)
                waits_for(cluster, node, "only 7 of 8 nvidia.com/gpu are allocatable")
                count_gpus(cluster, node, 8)
                until(lambda: not cordoned_nodes(cluster), "the node is at work again")
    finally:
        operators.ctl("delete", "faultpolicies", "--all")
