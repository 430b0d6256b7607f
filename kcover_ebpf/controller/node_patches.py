"""Patches of a Node: its annotations, its taints, and whether it is schedulable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.recovery.nodes.node_health import CORDONED_FOR
from kcover_ebpf.recovery.nodes.node_plan import CORDONED, CORDONED_BY, TAINT, UNTIL, NodeView


def release(client: ApiClient, node: NodeView) -> dict[str, Any]:
    """Undo our cordon and our taint of a node; a cordon of others stays. Raises `ApiError`."""
    notes = dict.fromkeys((CORDONED, CORDONED_BY, UNTIL, CORDONED_FOR))
    spec: dict[str, Any] = {"taints": others_taints(node)}
    if not node.cordoned_by_others:
        spec["unschedulable"] = None
    return change(client, node, notes, spec)


def others_taints(node: NodeView) -> list[Mapping[str, Any]]:
    """All taints of a node except ours."""
    return [taint for taint in node.taints if taint.get("key") != TAINT]


def annotate(client: ApiClient, node: NodeView, notes: Mapping[str, str]) -> dict[str, Any]:
    """Set annotations of a node. Raises `ApiError`."""
    return client.merge_patch(f"/api/v1/nodes/{node.name}", {"metadata": {"annotations": notes}})


def change(
    client: ApiClient,
    node: NodeView,
    notes: Mapping[str, str | None],
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Change annotations and fields of `spec`; `Conflict` if another client changed the node since it was read."""
    # a list of taints is replaced whole
    metadata = {"resourceVersion": node.resource_version, "annotations": dict(notes)}
    body = {"metadata": metadata} | ({} if spec is None else {"spec": dict(spec)})
    return client.merge_patch(f"/api/v1/nodes/{node.name}", body)
