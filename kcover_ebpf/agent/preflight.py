"""Pods of this node that wait because the node is bad: a fault of the node, reported for their job.

A container's report about its node is not enough, because any tenant can write one: the agent's own inspection must
have failed too. The bandwidth between the pods of a job cannot be inspected from one node; the job's own bandwidth
check is believed only if the operator allows it. Both checks are init containers, recognised by their names.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.api.pods import ContainerKind, Pod
from kcover_ebpf.facts.health import Result
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.host import PREFLIGHT_PASSES_S

CONTAINER = "kcover-preflight"
"""Name of the container that admission adds (charts/kcover-ebpf/templates/admission/preflight.yaml)."""
BANDWIDTH = "kcover-bandwidth"
"""Name of the next one, added if the job asks for it: it measures between all pods of the job (plugins/bandwidth)."""
FAILED = 81
"""Exit code of the check on a bad node: no shell, runtime or framework uses this one."""
_MOST_REASON = 512
_SLOW = (
    "which is slower than the floor of the job's own bandwidth check; "
    f"the figures are in the log of container {BANDWIDTH}"
)


def is_kept_waiting(pod: Pod, now_s: float) -> bool:
    """True if the preflight has run for longer than a passing check takes. `now_s`: unix seconds."""
    return pod.deleted_s is None and any(
        container.started_s is not None and now_s - container.started_s > PREFLIGHT_PASSES_S
        for container in pod.containers
        if (container.name, container.kind) == (CONTAINER, ContainerKind.INIT)
    )


def is_slow(pod: Pod) -> bool:
    """True while the bandwidth check that last ended with `FAILED` has not been started again."""
    return pod.deleted_s is None and any(
        container.started_s is None
        and container.last_end is not None
        and container.last_end.code == FAILED
        for container in pod.containers
        if (container.name, container.kind) == (BANDWIDTH, ContainerKind.INIT)
    )


class PreflightWatch:
    """Remembers since when each pod has been waiting."""

    def __init__(self, node: str, *, believes_bandwidth: bool = False) -> None:
        self._node, self._believes_bandwidth = node, believes_bandwidth
        self._since_s: dict[str, float] = {}

    def verdict(
        self, pods: Iterable[Pod], health: NodeHealth | None, now_s: float
    ) -> Verdict | None:
        """The verdict on the job of these pods; None if none of them waits on a bad node.

        `health`: of this node, after the last inspection; `now_s`: unix seconds.
        """
        pods = list(pods)
        if health is not None and health.result is Result.FAIL:
            reason = (health.reason or "its inspection failed")[:_MOST_REASON]
            waiting = [pod for pod in pods if is_kept_waiting(pod, now_s)]
            if waiting:
                return self._of(waiting, f"which failed its inspection: {reason}", now_s)
        if self._believes_bandwidth:
            waiting = [pod for pod in pods if is_slow(pod)]
            if waiting:
                return self._of(waiting, _SLOW, now_s)
        return None

    def _of(self, waiting: list[Pod], why: str, now_s: float) -> Verdict:
        for pod in waiting:
            self._since_s.setdefault(pod.uid, now_s)
        first = min(waiting, key=lambda pod: (self._since_s[pod.uid], pod.name))
        text = f"pod {first.name} is not started on node {self._node}, {why}"
        return Verdict(
            kind=VerdictKind.DEVICE_FAULT,
            cause=Cause.PREFLIGHT,
            since_s=min(self._since_s[first.uid], now_s),
            culprit=Culprit(pod=first.name, pod_uid=first.uid, node=self._node),
            evidence=(Evidence(EvidenceKind.EVENT, text, self._node),),
        )

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all pods except these."""
        known = set(uids)
        self._since_s = {uid: at_s for uid, at_s in self._since_s.items() if uid in known}
