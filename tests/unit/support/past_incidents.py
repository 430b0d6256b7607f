"""Incidents on record, for tests of what another policy would have done."""

from __future__ import annotations

from kcover_ebpf.api.incident import Incident, JobRef, Phase, RestartMethod, Status
from kcover_ebpf.model.verdict import Cause, Certainty, Culprit, Verdict, VerdictKind
from tests.unit.support.judged import judged

AT_S = 1_700_000_000.0
STOPPED = Status(
    Phase.OPEN,
    verdict=Verdict(
        kind=VerdictKind.HUNG,
        cause=Cause.STOPPED,
        certainty=Certainty.PROVEN,
        since_s=AT_S,
        acts_at_s=AT_S + 5.0,
        culprit=Culprit(rank=1, pod="llm-1", node="n1"),
    ),
    nodes=("n0", "n1"),
)
INFERRED = judged(
    STOPPED,
    cause=Cause.BLOCKED_LOCK,
    certainty=Certainty.INFERRED,
    acts_at_s=AT_S + 40.0,
    acts_why="its own past",
)


def of(status: Status, name: str = "a", after_s: float = 2.0) -> Incident:
    ref = JobRef("Job", "llm", "uid-llm", "batch/v1")
    since_s = status.since_s or 0.0
    return Incident("ml", name, ref, {"k": "llm"}, status=status, created_s=since_s + after_s)


def opened(status: Status) -> Status:
    return status.enter(Phase.OPEN, (status.since_s or 0.0) + 2.0, "seen")


def restarted(status: Status, after_s: float = 5.0) -> Status:
    at_s = (status.since_s or 0.0) + after_s
    begun = opened(status).enter(Phase.SHUTTING_DOWN, at_s, "in place: stopping all ranks")
    return begun.begin(RestartMethod.IN_PLACE, at_s).enter(Phase.RECOVERED, at_s + 9.0, "trains")
