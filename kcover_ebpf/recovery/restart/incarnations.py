"""Which pods of a gang are of a run before: two runs of one job have the same labels, and must never be mixed. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.recovery.restart.context import GangPod


def earlier(pods: Iterable[GangPod], newest_s: float | None = None) -> frozenset[str]:
    """Pods (uids) that were deleted and are still there, although the job has continued with others since.

    What they do says nothing about the job, and no restart waits for them: the run that is to be restarted does not
    either. A pod that was made after the deletion of another shows that the job has continued. `newest_s` (unix
    seconds): when the newest pod of the run was made, where its pods may be gone by now; None: one of `pods` is it. The
    API server's clock counts whole seconds: what happened within one has no order.
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
    """When the newest of these was made; unix seconds, 0 without any."""
    return max((pod.pod.created_s for pod in pods), default=0.0)
