"""Whose word a node is cordoned on, where no device of it is known to be unfit. Not thread-safe.

That a job could not be restarted is what its own pods show, and a tenant can have its ranks appear to wait for a
driver. So one namespace alone has one node cordoned at a time, and none that passes its inspection.
"""

from __future__ import annotations

from kcover_ebpf.tunables.recovery import SUSPECT_CORDON_S

_MOST_NODES = 1000


class Suspicions:
    """What namespaces said of nodes within the time of such a cordon; unix seconds."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, float]] = {}
        """By node and namespace."""
        self._alone: dict[str, tuple[str, float]] = {}
        """By namespace, the node that was cordoned on its word alone."""

    def why_not(self, node: str, namespace: str, now_s: float, *, is_clean: bool) -> str | None:
        """Take a word about a node; why it is not cordoned, None where it may be.

        `is_clean`: its agent inspected it lately, and nothing failed.
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
            return f"node {known} was cordoned on the word of namespace {namespace} already"
        self._alone[namespace] = node, now_s
        return None
