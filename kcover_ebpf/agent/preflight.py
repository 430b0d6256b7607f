"""Pods of this node that wait because the node is bad: a fault of the node, reported for their job.

What a container says is not believed alone, for anyone may name one so: the agent's own inspection must have failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.api import preflight
from kcover_ebpf.api.fault_report import LocalVerdict
from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.diagnosis.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.facts.health import Result

_MOST_REASON = 512


class PreflightWatch:
    """Remembers since when each pod waits."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._since_s: dict[str, float] = {}

    def verdict(
        self, pods: Iterable[Pod], health: NodeHealth | None, now_s: float
    ) -> LocalVerdict | None:
        """The verdict on the job of these pods; None where none of them waits on a node that is bad.

        `health`: of this node, after the last inspection; `now_s`: unix seconds.
        """
        waiting = [pod for pod in pods if preflight.failed(pod)]
        if not waiting or health is None or health.result is not Result.FAIL:
            return None
        for pod in waiting:
            self._since_s.setdefault(pod.uid, now_s)
        first = min(waiting, key=lambda pod: (self._since_s[pod.uid], pod.name))
        reason = (health.reason or "its inspection failed")[:_MOST_REASON]
        text = f"pod {first.name} is not started on node {self._node}, which failed its inspection: {reason}"
        return LocalVerdict(
            verdict=VerdictKind.DEVICE_FAULT,
            cause=Cause.PREFLIGHT,
            age_s=round(max(0.0, now_s - self._since_s[first.uid]), 3),
            culprit=Culprit(pod=first.name, pod_uid=first.uid, node=self._node),
            evidence=(Evidence(EvidenceKind.EVENT, text, self._node),),
        )

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all pods but these."""
        known = set(uids)
        self._since_s = {uid: at_s for uid, at_s in self._since_s.items() if uid in known}
