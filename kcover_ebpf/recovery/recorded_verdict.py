"""The verdict that an incident has on record. Pure."""

from __future__ import annotations

from kcover_ebpf.api.incident import Status
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind


def recorded_verdict(status: Status, job: str, name: str) -> Verdict:
    """The verdict in a status, at the time of its first line (unix seconds); UNKNOWN where it has none.

    `job`, `name`: of the job and of the incident.
    """
    first_s = status.timeline[0].time_s if status.timeline else 0.0
    return Verdict(
        kind=status.verdict or VerdictKind.UNKNOWN,
        cause=status.cause or Cause.UNKNOWN,
        time_s=first_s,
        since_s=first_s if status.since_s is None else status.since_s,
        job=job,
        incident=name,
        culprit=status.culprit,
        evidence=status.evidence,
        victims=status.victims,
        deadline_s=status.deadline_s,
        unobserved=status.unobserved,
        graph=status.graph,
        certainty=status.certainty,
        acts_at_s=status.acts_at_s,
        acts_why=status.acts_why,
    )
