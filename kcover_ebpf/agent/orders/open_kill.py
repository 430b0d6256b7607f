"""An order to kill pods that are being deleted. In force until it expires, as pods may be marked for deletion later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.agent.orders import stop_and_kill
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.job_kinds import Gang
from kcover_ebpf.api.order import Order
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass

_PODS_REPORTED = 64
"""The most pods that the schema allows (crds/faultreports.yaml, spec.acks.pods)."""


@dataclass(slots=True)
class OpenKill:
    """A KillTerminating order, and its results so far."""

    order: Order
    gang: Gang
    ended: set[str] = field(default_factory=set)
    """Uids of pods that ran here and in which no process can run code any more."""
    sent: dict[str, int] = field(default_factory=dict)
    """Uid of a pod -> number of processes that SIGKILL was sent to the first time."""
    reported_ack: Ack | None = None

    def is_fresh(self, pods: Sequence[Pod]) -> bool:
        """True if one of these pods is being deleted and was not killed yet."""
        return any(
            pod.deleted_s is not None and pod.uid not in self.sent and pod.uid not in self.ended
            for pod in pods
        )

    def carry_out(
        self, pods: Sequence[Pod], of_work: Callable[[Pod], Sequence[RunningContainer]]
    ) -> Ack:
        """Kill those of `pods` that are being deleted; returns what to report about all of them."""
        left: list[int] = []
        for pod in pods:
            if pod.deleted_s is None or pod.uid in self.ended:
                continue
            outcome = stop_and_kill.kill_all(of_work(pod))
            left += outcome.left
            self.sent[pod.uid] = self.sent.get(pod.uid, 0) or outcome.count
            # a pod that never had a process here may run its rank where we cannot see it
            if self.sent[pod.uid] and not outcome.left:
                self.ended.add(pod.uid)
        waiting = sum(pod.deleted_s is None for pod in pods)
        text = f"{waiting} pods are not marked for deletion yet" if waiting else None
        if left:
            text = f"these processes cannot be killed: {', '.join(map(str, left[:16]))}"
        return Ack(
            order=self.order.id,
            verb=self.order.verb,
            result=AckResult.PARTIAL if waiting or left else AckResult.DONE,
            processes=sum(self.sent.values()),
            text=text,
            pods=tuple(sorted(self.ended))[:_PODS_REPORTED],
        )
