"""Finds the agent's pod of a node, which a client asks. Needs only the Kubernetes client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.errors import CannotObserve, Forbidden, NotFound, ObjectError
from kcover_ebpf.kube.client import ApiClient

LABELS = {"app.kubernetes.io/name": "kcover-ebpf", "app.kubernetes.io/component": "agent"}
"""The pod of an agent has these, whatever its release is called."""
_SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
AGENT_CONTAINER = "agent"


def agent_on(client: ApiClient, node: str, namespace: str | None) -> tuple[str, str]:
    """Namespace and name of the agent's pod on a node; `CannotObserve`, with advice, if there is none.

    `namespace`: where to search; None: everywhere. Any account that may create pods may give one the labels of an
    agent, and could then read requests and fake answers. So a pod counts as an agent only if a DaemonSet created it
    and it sees all processes of the node, which a tenant's pod may not (Pod Security Standards, baseline). If
    several namespaces have one, none is believed.
    """
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    query = {"labelSelector": _SELECTOR, "fieldSelector": f"spec.nodeName={node}"}
    try:
        found = client.list(path, query)
    except Forbidden as error:
        if namespace is not None:
            raise
        raise CannotObserve(
            "not allowed to list agents in all namespaces; name theirs with --agent-namespace"
        ) from error
    agents = _agents(found)
    places = sorted({pod.namespace for pod in agents})
    if len(places) > 1:
        raise CannotObserve(
            f"pods in several namespaces say that they are the agent on node {node} ({', '.join(places[:8])}); "
            "name the agents' one with --agent-namespace"
        )
    ready = [pod for pod in agents if pod.phase == "Running" and pod.deleted_s is None]
    if not ready:
        where = f" in namespace {namespace}" if namespace else ""
        state = f"; {agents[0].name} is {agents[0].phase}" if agents else ""
        raise CannotObserve(
            f"no agent of kcover-ebpf runs on node {node}{where}{state}: install the chart there, "
            "or run `kcover-ebpf` on the node itself"
        )
    return ready[0].namespace, ready[0].name


def namespace_of_agents(client: ApiClient) -> str | None:
    """The only namespace with agents, as `agent_on` recognises them; None also if it may not be read."""
    try:
        found = client.list("/api/v1/pods", {"labelSelector": _SELECTOR, "limit": "500"})
    except (Forbidden, NotFound):
        return None
    places = {pod.namespace for pod in _agents(found)}
    return places.pop() if len(places) == 1 else None


def _agents(found: Mapping[str, Any]) -> list[Pod]:
    return readable(item for item in found.get("items", []) if _is_of_daemon_set(item))


def _is_of_daemon_set(raw: Mapping[str, Any]) -> bool:
    owners = (raw.get("metadata") or {}).get("ownerReferences") or ()
    kinds = {owner.get("kind") for owner in owners if owner.get("controller") is True}
    return kinds == {"DaemonSet"} and (raw.get("spec") or {}).get("hostPID") is True


def readable(raw: Iterable[Mapping[str, Any]]) -> list[Pod]:
    """The pods among objects of the API; invalid or oversized objects are skipped."""
    pods = []
    for entry in raw:
        with contextlib.suppress(ObjectError):
            pods.append(pod_of(entry))
    return pods
