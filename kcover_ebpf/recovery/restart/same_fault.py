"""Whether a fault is the one of an incident, or began in the run that followed its restart. Pure."""

from __future__ import annotations

from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.recovery.restart.steps import RestartDetail
from kcover_ebpf.tunables.recovery import CLOCKS_APART_S


def is_same(status: Status, gang_verdict: GangVerdict, restart_input: RestartInput) -> bool:
    """True if the fault is that of an incident that is over. `status`: of the incident."""
    if status.phase is Phase.RECOVERED and status.action is not None:
        returned_s = RestartDetail.read(status.action.detail).returned_s or status.last_s
        return not is_of_new_run(gang_verdict, restart_input, returned_s)
    return gang_verdict.verdict.since_s <= status.last_s or _is_still_slow(status, gang_verdict)


def is_of_new_run(
    gang_verdict: GangVerdict, restart_input: RestartInput, returned_s: float
) -> bool:
    """True if a fault began after the restart of its job.

    `returned_s`: when all pods were running again (unix seconds). A rank may hang or fail before that, while other pods
    are still starting. A node that reports a hang after the return means a rank that exists, and so a new one. The end
    of an old process is reported for some time, so an end must be later than the start of its pod. Starts are by the
    clocks of kubelets.
    """
    verdict, culprit = gang_verdict.verdict, gang_verdict.culprit
    if verdict.since_s >= returned_s:
        return True
    uid = culprit.pod_uid if culprit is not None else None
    pods = [pod for pod in restart_input.live if uid in (None, pod.pod.uid)]
    starts = [pod.started_s for pod in pods if pod.started_s is not None]
    if not starts:
        return False
    if verdict.kind is VerdictKind.CRASHED:
        is_process = culprit is not None and culprit.pid is not None
        return is_process and verdict.since_s >= min(starts) + CLOCKS_APART_S
    nodes = {pod.pod.node for pod in pods}
    spoke_s = [seen.spoke_s for seen in restart_input.reports if seen.report.node in nodes]
    is_present = bool(spoke_s) and min(spoke_s) > returned_s
    return is_present and verdict.since_s >= min(starts) - CLOCKS_APART_S


def _is_still_slow(status: Status, gang_verdict: GangVerdict) -> bool:
    """True if the named rank has been slow since then: shares of waiting do not show since when."""
    was, culprit = status.culprit, gang_verdict.culprit
    if (
        gang_verdict.verdict.kind is not VerdictKind.SLOW
        or status.is_closed
        or not (was and culprit)
    ):
        return False
    return (status.kind, was.pod_uid, was.pid) == (
        VerdictKind.SLOW,
        culprit.pod_uid,
        culprit.pid,
    )
