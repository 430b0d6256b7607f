"""Pods of a gang on a faulty device or node, and pods of an earlier run. Pure.

Two runs of one job have the same labels, and must never be confused.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.model.verdict import Cause
from kcover_ebpf.recovery.restart.context import GangPod, RestartInput

CAUSES_OF_NODES = frozenset({Cause.DRIVER_STUCK, Cause.PEER_GONE, Cause.PREFLIGHT})
"""Causes that lie with a node whatever its programs do, so that it is cordoned when a restart there did not help. For
an unfit device, the agent's report about the device has the node cordoned."""


def unhealthy_pods(restart_input: RestartInput) -> tuple[GangPod, ...]:
    """The live pods with a device that its plug-in or driver calls unhealthy, whatever the gang's fault is."""
    return tuple(pod for pod in restart_input.live if pod.pod.unhealthy)


def moved_pods(restart_input: RestartInput) -> tuple[GangPod, ...]:
    """The live pods on the faulty device or node, if that is the fault; the others could stay."""
    uids = {pod.pod.uid for pod in (*_at_fault(restart_input), *unhealthy_pods(restart_input))}
    return tuple(pod for pod in restart_input.live if pod.pod.uid in uids)


def _at_fault(restart_input: RestartInput) -> tuple[GangPod, ...]:
    gang_verdict = restart_input.gang_verdict
    culprit = gang_verdict.culprit if gang_verdict is not None else None
    if gang_verdict is None or culprit is None or not culprit.node:
        return ()
    here = tuple(pod for pod in restart_input.live if pod.pod.node == culprit.node)
    if gang_verdict.verdict.cause in CAUSES_OF_NODES:
        return here
    if culprit.device is None:
        return ()
    own = tuple(pod for pod in here if pod.pod.uid == culprit.pod_uid)
    return own or here


def earlier(pods: Iterable[GangPod], newest_s: float | None = None) -> frozenset[str]:
    """Uids of pods that were deleted and still exist, although the job has continued with other pods since.

    Their state says nothing about the job, and no restart waits for them, because the run that is to be restarted does
    not either. A pod that was created after the deletion of another shows that the job has continued. `newest_s` (unix
    seconds): when the newest pod of the run was created, if its pods may be gone by now; None: it is one of `pods`. The
    API server's clock counts whole seconds: events within one have no order.
    """
    known = list(pods)
    if newest_s is None:
        newest_s = newest(known)
    return frozenset(
        pod.pod.uid
        for pod in known
        if pod.pod.deletion_asked_s is not None and pod.pod.deletion_asked_s + 1 <= newest_s
    )


def newest(pods: Iterable[GangPod]) -> float:
    """Creation time of the newest of these pods; unix seconds, 0 without any."""
    return max((pod.pod.created_s for pod in pods), default=0.0)
