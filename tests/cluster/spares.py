"""Devices that nodes seem to have, and a placeholder that keeps one of them free, as docs/examples/spare.yaml does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.driver.cluster import ROOT, Cluster, Namespace

DEVICE = "example.com/gpu"
_EXAMPLE = ROOT / "docs/examples/spare.yaml"


@contextmanager
def one_device_a_node(cluster: Cluster) -> Iterator[None]:
    """Each node has one device, as its plug-in would report it."""
    path = f"/status/capacity/{DEVICE.replace('/', '~1')}"
    names = [node["metadata"]["name"] for node in cluster.get("nodes")]

    def patch(**change: str) -> None:
        body = json.dumps([{"path": path, **change}])
        for name in names:
            words = ("patch", "node", name, "--subresource=status", "--type=json")
            cluster.ctl(*words, f"--patch={body}")

    patch(op="add", value="1")
    try:
        yield
    finally:
        patch(op="remove")


@contextmanager
def spare(namespace: Namespace) -> Iterator[None]:
    """The placeholder has the one device that is free; it is gone at the end."""
    text = _EXAMPLE.read_text().replace("nvidia.com/gpu", DEVICE).replace('"8"', '"1"')
    text = text.replace("registry.k8s.io/pause:3.10", "localhost/kcover-train:1").replace(
        "- name: placeholder", "- name: placeholder\n        command: [sleep, infinity]"
    )
    namespace.apply(text)
    try:
        until_placed(namespace)
        yield
    finally:
        namespace.ctl("delete", "deployment/spare")
        namespace.cluster.run("delete", "priorityclass", "spare")


def until_placed(namespace: Namespace) -> str:
    """The node that the placeholder keeps free, once it runs there."""
    namespace.wait("deployment/spare", "condition=Available")
    (placeholder,) = (
        pod for pod in namespace.pods("app=spare") if "deletionTimestamp" not in pod["metadata"]
    )
    node: str = placeholder["spec"]["nodeName"]
    return node
