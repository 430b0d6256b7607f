"""An Event about each pod that keeps GPUs and does nothing with them, once a day: the owner finds it at the pod.

Agents may write no Events. What one reports counts only for pods on its own node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kcover_ebpf.api.fault_report import IdlePod
from kcover_ebpf.api.pods import about_pod, pod_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import NotFound, ObjectError
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.paths import segment
from kcover_ebpf.tunables.controller import IDLE_EVENT_AGAIN_S

_LOG = logging.getLogger(__name__)
REASON = "KcoverGPUIdle"
_DAY_S, _HOUR_S = 86400.0, 3600.0
Publish = Callable[[dict[str, str], str, str, bool], None]


class IdleEvents:
    """Reconciles one node after the other; each node by one thread at a time."""

    def __init__(self, client: ApiClient, cache: ObjectCache, publish: Publish) -> None:
        self._session, self._store, self._publish = client, cache, publish
        self._reported: dict[str, float] = {}
        """Uid of a pod -> when an Event about it was written last."""

    def reconcile(self, node: str) -> None:
        """Publish what the node's last report says; raises `ApiError`."""
        received, now_s = self._store.host_reports.get(node), self._store.wall()
        if received is None or not received.report.idle or received.is_stale(now_s):
            return
        self._reported = {
            uid: at_s for uid, at_s in self._reported.items() if now_s - at_s < IDLE_EVENT_AGAIN_S
        }
        for idle_pod in received.report.idle:
            if idle_pod.uid not in self._reported:
                self._publish_for(idle_pod, received, now_s)
                # only now: where the API server failed, the next report tries again
                self._reported[idle_pod.uid] = now_s

    def _publish_for(self, idle: IdlePod, received: ReceivedReport, now_s: float) -> None:
        try:
            where, name = segment(idle.namespace), segment(idle.name)
            pod = pod_of(self._session.get(f"/api/v1/namespaces/{where}/pods/{name}"))
        except (NotFound, ObjectError):
            return
        if (pod.uid, pod.node) != (idle.uid, received.report.node):
            _LOG.warning(
                "node %s reports pod %s/%s of another node", received.report.node, where, name
            )
            return
        about = about_pod(pod.namespace, pod.name, pod.uid)
        text = text_of(idle, idle.age_s + received.since_made_s(now_s))
        _LOG.info("pod %s/%s: %s", pod.namespace, pod.name, text)
        self._publish(about, REASON, text, False)


def text_of(idle: IdlePod, idle_s: float) -> str:
    """For the owner."""
    long = f"{idle_s / _DAY_S:.1f} days" if idle_s >= _DAY_S else f"{idle_s / _HOUR_S:.1f} hours"
    count = len(idle.gpus)
    gpus = f"GPU {idle.gpus[0]}" if count == 1 else f"{count} GPUs ({', '.join(idle.gpus[:8])})"
    cpu = "its CPU usage is unknown"
    if idle.cpu_cores is not None:
        cpu = f"its containers use {idle.cpu_cores:.2f} CPUs"
    return (
        f"no kernel has run on {gpus} of this pod for {long}, and {cpu}; end it if it is not needed. "
        "No action is taken."
    )
