"""What an incident records of its fault, when the fault is over, and when it need no longer be kept. Pure.

Recovered incidents are over by themselves. One that was only reported (Observed, Refused, Failed) stays open until an
agent sees the job train again, or end; otherwise alerts about it would never be resolved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.gang import gang_pace
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.recovery.restart.context import TopOwner
from kcover_ebpf.tunables.recovery import (
    FAULT_SILENT_S,
    INCIDENT_KEPT_S,
    INCIDENTS_PER_JOB,
    INCIDENTS_PER_NAMESPACE,
    RECOVERED_STABLE_S,
    RESTART_COUNTED_S,
)


def recorded_verdict(status: Status, job: str, name: str) -> Verdict:
    """The verdict in a status, at the time of its first line (unix seconds); UNKNOWN if it has none.

    `job`, `name`: of the job and of the incident.
    """
    first_s = status.timeline[0].time_s if status.timeline else 0.0
    verdict = status.verdict or Verdict(VerdictKind.UNKNOWN, Cause.UNKNOWN, since_s=first_s)
    return replace(verdict, time_s=first_s, job=job, incident=name)


def still_so(status: Status) -> str:
    """Whether the verdict is still true, as the controller knew when it wrote this status.

    Evidence is as old as the verdict. An incident without action is closed once its ranks move or no node reports
    it.
    """
    if status.closed_s is not None:
        return f"no, it was over at {rfc3339.in_seconds(status.closed_s)}"
    if status.phase is Phase.RECOVERED:
        since_s = status.at(Phase.RECOVERED) or status.last_s
        return f"no, the job makes progress again since {rfc3339.in_seconds(since_s)}"
    if status.phase.is_acting:
        return "no, the ranks that it saw are being ended and started again"
    if status.phase is Phase.FAILED:
        return "not known: its restart failed"
    return "yes, as far as the nodes report: this incident is open"


def why_calm(status: Status, reports: Sequence[ReceivedReport]) -> str | None:
    """Reason why the fault is over, by the present reports of the job's nodes; None while it may continue."""
    since_s = status.last_s + RECOVERED_STABLE_S
    trains = all(report.report.trained for report in reports) and not is_suspected(reports)
    if trains and all(report.current_s > since_s for report in reports):
        return "the ranks are making progress again"
    return None


def why_gone(status: Status, top: TopOwner | None, now_s: float) -> str | None:
    """Reason why the fault of a job that no node reports any more is over; None while it may continue.

    `top`: the job, None if it is gone.
    """
    if top is None:
        return "the job is gone"
    if top.ended:
        return f"the job is {top.ended}"
    if now_s - status.last_s > FAULT_SILENT_S:
        return "it is no longer being reported"
    return None


def is_suspected(reports: Sequence[ReceivedReport]) -> bool:
    """True if the nodes of a job report anything wrong with it, single nodes or all together."""
    return any(map(_is_suspect, reports)) or gang_pace.may_lag(reports)


def _is_suspect(received: ReceivedReport) -> bool:
    verdict = received.report.verdict
    has_news = received.report.suspicious or (verdict is not None and verdict.opens_incident)
    # a log in which a policy expects more; whether another container printed it is not known here
    return has_news or any(reading.broken for log in received.report.logs for reading in log.rules)


def close(status: Status, why: str, now_s: float) -> Status:
    """The status of a closed incident: its phase stays, and the message says why it is over."""
    # no line in the timeline: its last one shows until when faults belong to this incident
    return replace(
        status, message=f"{status.message[: 1000 - len(why)]}; closed: {why}", closed_s=now_s
    )


def outdated(incidents: Iterable[Incident], now_s: float, window_s: float) -> list[Incident]:
    """Closed incidents that need not be kept. `window_s`: seconds for which budgets count restarts."""
    by_job: defaultdict[tuple[str, str, str], list[Incident]] = defaultdict(list)
    for incident in incidents:
        if incident.status is not None and incident.status.is_closed:
            by_job[incident.namespace, incident.job.kind, incident.job.name].append(incident)
    old: list[Incident] = []
    kept: defaultdict[str, list[Incident]] = defaultdict(list)
    for closed in by_job.values():
        closed.sort(key=_closed_s, reverse=True)
        for index, incident in enumerate(closed):
            is_old = index >= INCIDENTS_PER_JOB or now_s - _closed_s(incident) > INCIDENT_KEPT_S
            (old if is_old else kept[incident.namespace]).append(incident)
    for newest in kept.values():
        newest.sort(key=_closed_s, reverse=True)
        old += newest[INCIDENTS_PER_NAMESPACE:]
    since_s = now_s - min(window_s, RESTART_COUNTED_S)
    return [incident for incident in old if not _counts(incident, since_s)]


def _closed_s(incident: Incident) -> float:
    assert incident.status is not None
    return incident.status.closed_s or incident.status.last_s


def _counts(incident: Incident, since_s: float) -> bool:
    assert incident.status is not None
    return any(restart.time_s >= since_s for restart in incident.status.restarts)
