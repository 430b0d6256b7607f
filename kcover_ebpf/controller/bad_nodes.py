"""What users say of nodes: they write an Event about a pod of theirs, and operators find one about the node.

It is a user's word, and nothing is done for it: no node is cordoned, inspected or avoided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kcover_ebpf.api.pods import Pod
from kcover_ebpf.controller.cache import ObjectCache

_LOG = logging.getLogger(__name__)
_REASON = "KcoverBadNode"
_MOST_TEXT = 256
_Publish = Callable[[dict[str, str], str, str, bool], None]


class BadNodes:
    """Passes on what was said; only the leader does."""

    def __init__(
        self, cache: ObjectCache, publish: _Publish, leads: Callable[[], bool] = lambda: True
    ) -> None:
        """`publish`: an Event, by object, reason, text, and whether it is a warning."""
        self._store, self._publish, self._leads = cache, publish, leads

    def report(self, pod: Pod, node: str, why: str) -> None:
        """Who may write Events in the namespace of a pod says that its node is bad; of other nodes it is ignored."""
        raw = self._store.raw_nodes.get(node)
        if pod.node != node or raw is None or not self._leads():
            return
        about = {"apiVersion": "v1", "kind": "Node", "name": node}
        about["uid"] = str(raw["metadata"].get("uid", ""))
        said = "".join(text if text.isprintable() else " " for text in why[:_MOST_TEXT])
        _LOG.info("namespace %s says that node %s is bad: %s", pod.namespace, node, said)
        self._publish(about, _REASON, f"pod {pod.namespace}/{pod.name}: {said}", True)
