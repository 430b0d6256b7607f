"""The verdict that an incident has on record. Pure."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.api.incident import Status
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind


def recorded_verdict(status: Status, job: str, name: str) -> Verdict:
    """The verdict in a status, at the time of its first line (unix seconds); UNKNOWN where it has none.

    `job`, `name`: of the job and of the incident.
    """
    first_s = status.timeline[0].time_s if status.timeline else 0.0
    verdict = status.verdict or Verdict(VerdictKind.UNKNOWN, Cause.UNKNOWN, since_s=first_s)
    return replace(verdict, time_s=first_s, job=job, incident=name)
