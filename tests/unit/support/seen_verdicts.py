"""What a scripted job was found to have."""

from __future__ import annotations

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.model.verdict import Verdict, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import Stage


def not_working(stage: Stage) -> list[Verdict]:
    """All verdicts but WORKING."""
    return [verdict for verdict in stage.verdicts if verdict.kind is not VerdictKind.WORKING]


def faults(stage: Stage, since_s: float = 0.0) -> list[Verdict]:
    """Those after which a job does not continue by itself, from a moment on (unix seconds)."""
    return [
        verdict for verdict in stage.verdicts if verdict.kind.is_fault and verdict.time_s >= since_s
    ]


def only_fault(stage: Stage) -> Verdict:
    """The only verdict that is not WORKING."""
    (verdict,) = not_working(stage)
    return verdict


def ended(verdict: Verdict) -> bool:
    """Whether the job is ended for it."""
    return decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN
