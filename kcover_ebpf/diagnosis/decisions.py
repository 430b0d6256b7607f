"""From a verdict to the action that follows from it. Pure, and deliberately short: read it whole."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.settings import Act


@dataclass(frozen=True, slots=True)
class Decision:
    """The action to take now; OBSERVE means none."""

    act: Act
    reason: str
    verdict: Verdict


def decide(verdict: Verdict, act: Act) -> Decision:
    """The action for a verdict now, at most `act`.

    The verdict contains its certainty, and the time from which a job may be ended for it (`certainty.acts_at`).
    """
    if not verdict.kind.is_fault or act is Act.OBSERVE:
        return Decision(Act.OBSERVE, "", verdict)
    if act is Act.SNAPSHOT:
        return Decision(Act.SNAPSHOT, "the policy allows a snapshot only", verdict)
    certainty = "" if verdict.certainty is None else verdict.certainty.value
    reason = f"{certainty}: {verdict.acts_why}"
    if verdict.acts_at_s is None:
        return Decision(Act.SNAPSHOT, reason, verdict)
    left_s = verdict.acts_at_s - verdict.time_s
    if left_s > 0:
        return Decision(
            Act.SNAPSHOT, f"{reason}; it is ended in {left_s:.0f} s if nothing moves", verdict
        )
    return Decision(act, reason, verdict)
