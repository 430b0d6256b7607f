"""Nodes on which a restart of a job failed, without a known unfit device: when and how they are cordoned.

That a job could not be restarted is shown only by its own pods, and a tenant can make its ranks appear to wait for
a driver. So one namespace alone can have one node cordoned at a time, and no node that passes its inspection. Pure.
"""

from __future__ import annotations

from kcover_ebpf.api.fault_policy import NodeActions
from kcover_ebpf.recovery.nodes.node_plan import NodePlan, NodeView
from kcover_ebpf.tunables.recovery import SUSPECT_CORDON_S

_MOST_NODES = 1000


class Suspicions:
    """Suspicions of namespaces within the duration of such a cordon; unix seconds. Not thread-safe."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, float]] = {}
        """Node -> namespace -> time of its last suspicion."""
        self._alone: dict[str, tuple[str, float]] = {}
        """Namespace -> (node, time) that was cordoned on its suspicion alone."""

    def why_not(self, node: str, namespace: str, now_s: float, *, is_clean: bool) -> str | None:
        """Record a suspicion; returns why the node is not cordoned, None if it may be.

        `is_clean`: its agent inspected it recently, and no check failed.
        """
        since_s = now_s - SUSPECT_CORDON_S
        self._said = {
            name: {text: at_s for text, at_s in said.items() if at_s > since_s}
            for name, said in list(self._said.items())[-_MOST_NODES:]
        }
        said = self._said.setdefault(node, {})
        said[namespace] = now_s
        if len(said) > 1:
            return None
        if is_clean:
            return "its inspection passes, and no other namespace suspects it"
        known, at_s = self._alone.get(namespace, (node, 0.0))
        if known != node and at_s > since_s:
            return f"node {known} was already cordoned because namespace {namespace} alone suspected it"
        self._alone[namespace] = node, now_s
        return None


def suspect(
    node: NodeView, reason: str, now_s: float, actions: NodeActions, room: bool
) -> NodePlan:
    """What to do about a node on which a restart of a job failed, though no device of it is known to be unfit."""
    if node.ours or node.cordoned or not actions.cordon:
        return NodePlan()
    if not room:
        return NodePlan(refused=f"{reason}, but the breaker allows no more nodes to be cordoned")
    return NodePlan(reason=reason, cordon=True, until_s=now_s + SUSPECT_CORDON_S)
