"""From a verdict to what should be done about it. Pure, and deliberately short: read it whole."""

from __future__ import annotations

from dataclasses import dataclass

from kcover_ebpf.diagnosis.verdict import (
    EvidenceKind,
    Verdict,
    VerdictKind,
    independent_kinds,
    suffices,
)
from kcover_ebpf.settings import Act


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now; OBSERVE means nothing."""

    act: Act
    reason: str
    verdict: Verdict


def decide(
    verdict: Verdict,
    allowed: Act,
    hard_limit_s: float | None = None,
    link_patience_s: float = 0.0,
) -> Decision:
    """The action for a new verdict, no further than `allowed`.

    A job is ended only on an announced fault, or on two independent kinds of evidence (one of them
    says more than that time has passed); or when the policy's own hard limit has passed. A
    lost link is reported at once, and ends a job only after `link_patience_s` without a byte.
    """
    if not verdict.kind.is_fault or allowed is Act.OBSERVE:
        return Decision(Act.OBSERVE, "", verdict)
    if allowed is Act.SNAPSHOT:
        return Decision(Act.SNAPSHOT, "the policy allows a snapshot only", verdict)
    if verdict.kind is VerdictKind.LOST_LINK and verdict.time_s - verdict.since_s < link_patience_s:
        return Decision(Act.SNAPSHOT, "a flapping link recovers on its own", verdict)
    kinds = {each.kind for each in verdict.evidence}
    if verdict.kind is VerdictKind.CRASHED or EvidenceKind.EVENT in kinds:
        return Decision(allowed, "fault announced by the kernel", verdict)
    if suffices(kinds):
        names = " and ".join(sorted(each.value for each in independent_kinds(kinds)))
        return Decision(allowed, f"independent evidence: {names}", verdict)
    if hard_limit_s is not None and verdict.time_s - verdict.since_s >= hard_limit_s:
        return Decision(allowed, "hard limit of the policy", verdict)
    return Decision(Act.SNAPSHOT, "one kind of evidence is not enough to shut a job down", verdict)
