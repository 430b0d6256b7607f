"""What of a gang is on a device or a node that is at fault."""

from __future__ import annotations

from kcover_ebpf.model.verdict import Cause
from kcover_ebpf.recovery.restart.context import GangPod, RestartInput

CAUSES_OF_NODES = frozenset({Cause.DRIVER_STUCK, Cause.PEER_GONE, Cause.PREFLIGHT})
"""Causes that lie with a node whatever its programs do, so that it is cordoned when a restart there did not help. A
device that is unfit has its node cordoned by what the agent reports about the device itself."""


def unhealthy_pods(restart_input: RestartInput) -> tuple[GangPod, ...]:
    """The live pods with a device that its plug-in or driver calls unhealthy, whatever the gang's fault is."""
    return tuple(pod for pod in restart_input.live if pod.pod.unhealthy)


def moved_pods(restart_input: RestartInput) -> tuple[GangPod, ...]:
    """The live pods on what is at fault, where that is a device or a node; the others could stay."""
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
