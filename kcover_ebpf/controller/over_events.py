"""An Event about each pod that exceeded a bound of its agent: agents themselves may not write Events.

An agent's report counts only for pods on its own node.
"""

from __future__ import annotations

from collections.abc import Callable

from kcover_ebpf.api.fault_report import OverPod
from kcover_ebpf.api.pods import about_pod, pod_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import NotFound, ObjectError, OverBound
from kcover_ebpf.host.over_bounds import BOUNDS, OF_PODS
from kcover_ebpf.kube.client import ApiClient, segment
from kcover_ebpf.tunables.controller import OVER_SAID_S

_ENDING = "the excess is not observed. docs/threat-model.md lists the bounds"
_Key = tuple[str, str]


class OverEvents:
    """Reconciles one node at a time; each node by one thread at a time."""

    def __init__(
        self, client: ApiClient, cache: ObjectCache, say: Callable[[OverBound], None]
    ) -> None:
        self._session, self._store, self._say = client, cache, say
        self._said: dict[_Key, float] = {}
        """(uid of a pod, bound) -> when the last Event was written."""

    def reconcile(self, node: str) -> None:
        """Publish what the node's last report contains; raises `ApiError`."""
        received, now_s = self._store.host_reports.get(node), self._store.wall()
        if received is None or not received.report.over or received.is_stale(now_s):
            return
        self._said = {
            key: at_s for key, at_s in list(self._said.items()) if now_s - at_s < OVER_SAID_S
        }
        for over_pod in received.report.over:
            fresh = [what for what in over_pod.what if self._is_new(over_pod, what)]
            if fresh:
                self._say_of(over_pod, node, fresh)
                # only now: if the API server failed, the next report tries again
                self._said |= {(over_pod.uid, what): now_s for what in fresh}

    def _is_new(self, over_pod: OverPod, what: str) -> bool:
        return what in OF_PODS and (over_pod.uid, what) not in self._said

    def _say_of(self, over_pod: OverPod, node: str, words: list[str]) -> None:
        try:
            where, name = segment(over_pod.namespace), segment(over_pod.name)
            pod = pod_of(self._session.get(f"/api/v1/namespaces/{where}/pods/{name}"))
        except (NotFound, ObjectError):
            return
        if (pod.uid, pod.node) != (over_pod.uid, node):
            return
        about = about_pod(pod.namespace, pod.name, pod.uid)
        for what in words:
            self._say(OverBound(what, about, f"{BOUNDS[what]}: {_ENDING}"))
