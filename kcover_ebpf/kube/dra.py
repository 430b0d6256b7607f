"""Reads ResourceSlices and DeviceTaintRules in the versions that the cluster serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcover_ebpf.api.dra import DraDevice, devices_of
from kcover_ebpf.errors import NotFound
from kcover_ebpf.kube.client import ApiClient

RESOURCE = "/apis/resource.k8s.io"
RULE_VERSIONS = ("v1", "v1beta2", "v1alpha3")
"""Versions of DeviceTaintRule, newest first: Kubernetes 1.37, 1.36, 1.33."""


def devices(client: ApiClient, node: str | None = None) -> tuple[DraDevice, ...]:
    """Devices of a node, or of all nodes; empty if the cluster has no DRA. Raises `ApiError`."""
    query = {"fieldSelector": f"spec.nodeName={node}"} if node is not None else None
    try:
        preferred = client.get(RESOURCE).get("preferredVersion")
        if not preferred:
            return ()
        found = client.list(f"/apis/{preferred['groupVersion']}/resourceslices", query)
    except NotFound:
        return ()
    return tuple(device for item in found.get("items") or () for device in devices_of(item))


def taint_rules(
    client: ApiClient, query: Mapping[str, str] | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """Path and objects of DeviceTaintRules; empty if the cluster has no such resource. Raises `ApiError`."""
    for version in RULE_VERSIONS:
        path = f"{RESOURCE}/{version}/devicetaintrules"
        try:
            return path, client.list(path, query).get("items") or []
        except NotFound:
            continue
    return "", []
