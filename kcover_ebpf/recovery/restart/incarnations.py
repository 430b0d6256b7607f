"""Which pods of a gang are of a run before: two runs of one job have the same labels, and must never be mixed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kcover_ebpf.recovery.restart.context import GangPod


def earlier(pods: Iterable[GangPod], before_s: float = math.inf) -> frozenset[str]:
    """Pods (uids) that were deleted and are still there, although the job has continued with others since.

    What they do says nothing about the job, and no restart waits for them: the run that is to be restarted does not
    either. A pod that was made after the deletion of another shows that the job has continued; only one that was made
    before `before_s` (unix seconds), for a controller may make one more pod while its job is being restarted. The API
    server's clock counts whole seconds: what happened within one has no order.
    """
    known = list(pods)
    newest_s = max(
        (pod.pod.created_s for pod in known if pod.pod.created_s < before_s), default=-math.inf
    )
    return frozenset(
        pod.pod.uid
        for pod in known
        if pod.pod.deletion_asked_s is not None and pod.pod.deletion_asked_s + 1 <= newest_s
    )
