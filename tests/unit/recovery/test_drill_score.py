"""The scorecard of a drill, by incidents whose times are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.drill import DrillEnd, DrillFault, DrillOver, Injected
from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.recovery.drill_score import score
from tests.unit.support import report_builders as build
from tests.unit.support.judged import judged

INJECTED = Injected(DrillFault.STOP, 77, 1000.0, rank=3)
HIT = replace(build.pod(3), name="j-3", node="n1", address="10.1.0.3")
OVER = DrillOver(DrillEnd.GONE, 1006.0)
PHASES = {
    Phase.OPEN: 1002.5,
    Phase.DECIDED: 1003.0,
    Phase.SHUTTING_DOWN: 1003.1,
    Phase.RECOVERING: 1005.0,
    Phase.RECOVERED: 1010.0,
}


def incident(culprit: Culprit | None, last: Phase = Phase.RECOVERED) -> Incident:
    status = Status(
        Phase.OPEN, verdict=Verdict(kind=VerdictKind.HUNG, cause=Cause.STOPPED, culprit=culprit)
    )
    for phase, at_s in PHASES.items():
        status = status.enter(phase, at_s, "x")
    if last is not Phase.RECOVERED:
        status = status.enter(last, 1011.0, "x")
    return Incident("ns", "i", JobRef("Job", "j", "u"), {}, status=status)


def test_score__each_phase_is_counted_from_the_fault() -> None:
    card = score(INJECTED, HIT, incident(Culprit(rank=3, pod="j-3")), OVER)
    times = (card.named_after_s, card.stopped_after_s, card.running_after_s, card.training_after_s)
    assert times == pytest.approx((2.5, 3.1, 5.0, 10.0))
    assert (card.right, card.fault_end, card.passed) == (True, "gone", True)
    assert card.outcome == "Recovered: x"


@pytest.mark.parametrize(
    ("culprit", "right"),
    [
        (Culprit(rank=2, pod="j-2"), False),
        (Culprit(rank=2, pod="j-3"), False),
        (Culprit(pod="j-3"), True),
        (Culprit(rank=0, or_rank=3, pod="j-0"), True),
        (Culprit(rank=0, or_rank=1, pod="j-0"), False),
        (Culprit(node="n1"), None),
        (None, None),
    ],
)
def test_score__a_name_is_right_wrong_or_missing(
    culprit: Culprit | None, right: bool | None
) -> None:
    card = score(INJECTED, HIT, incident(culprit), OVER)
    assert card.right is right
    assert card.passed is (right is True)
    assert (card.named_after_s is None) is (right is None)


@pytest.mark.parametrize(
    ("fault", "text", "right"),
    [
        (
            DrillFault.PARTITION,
            "rank 3 (10.1.0.3:41) -> rank 0 (10.1.0.1:9): 96 B unanswered",
            True,
        ),
        (DrillFault.PARTITION, "rank 2 (10.1.0.33:41) -> rank 0 (10.1.0.1:9)", None),
        (DrillFault.STOP, "rank 3 (10.1.0.3:41) -> rank 0 (10.1.0.1:9)", None),
    ],
)
def test_score__a_lost_link_is_named_by_its_ends(
    fault: DrillFault, text: str, right: bool | None
) -> None:
    found = incident(None)
    assert found.status is not None
    evidence = (Evidence(EvidenceKind.EDGE, text),)
    status = judged(found.status, kind=VerdictKind.LOST_LINK, evidence=evidence)
    card = score(replace(INJECTED, fault=fault), HIT, replace(found, status=status), OVER)
    assert (card.right, card.passed) == (right, right is True)
    assert card.named_after_s == (2.5 if right else None)


def test_score__a_restart_that_failed_and_a_fault_that_was_not_seen_pass_no_drill() -> None:
    named = Culprit(rank=3, pod="j-3")
    assert not score(INJECTED, HIT, incident(named, Phase.FAILED), OVER).passed
    unseen = score(INJECTED, HIT, None, None)
    assert (unseen.passed, unseen.incident, unseen.fault_end) == (False, None, None)


def test_score__what_an_incident_did_before_the_fault_does_not_count() -> None:
    late = Injected(DrillFault.STOP, 77, 1004.5, rank=3)
    card = score(late, HIT, incident(Culprit(rank=3, pod="j-3")), OVER)
    assert (card.stopped_after_s, card.training_after_s) == (None, 5.5)
