"""Reads facts from a Node object of the API. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""Labels set by the feature discovery of the vendors' device plug-ins."""


def gpu_product(api: Mapping[str, Any]) -> str:
    """Product name of the node's GPUs; empty if no label states it."""
    labels = (api.get("metadata") or {}).get("labels") or {}
    return next((str(labels[label])[:63] for label in PRODUCT_LABELS if label in labels), "")


def is_out_of_service(spec: Mapping[str, Any]) -> bool:
    """True if the node has the out-of-service taint, with which Kubernetes also fences nodes."""
    return any(taint.get("key") == _OUT_OF_SERVICE for taint in spec.get("taints") or ())


def is_ready(api: Mapping[str, Any]) -> bool:
    """True if the kubelet of the node reports Ready."""
    conditions = (api.get("status") or {}).get("conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in conditions
    )


_RACKS = (
    "topology.kubernetes.io/rack",
    "network.topology.nvidia.com/leaf",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.provider.com/topology-rack",
)
"""Labels of nodes under one switch: one in wide use, those of topograph, GKE and EKS, and of Kueue's guide."""


def rack_of(labels: Mapping[str, str]) -> str | None:
    """Rack of a node, from the first of the usual labels that it has; None without one."""
    return next((labels[name] for name in _RACKS if labels.get(name)), None)
