"""The recorded verdict of an incident, and whether it is still true. Pure."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind


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
