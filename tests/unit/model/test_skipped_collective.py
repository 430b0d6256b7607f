"""A rank that skipped a collective makes an innocent peer fail."""

from __future__ import annotations

import signal

import pytest

from kcover_ebpf.diagnosis.history.senders import Senders
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, EvidenceKind, Verdict, VerdictKind
from tests.unit.support.scripted_job import BARRIER, LOCK, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


def aborted_while_waiting(world: int, odd: int) -> Verdict:
    """Rank `odd` waits in another collective; one of the others then aborts."""
    stage = trained(world=world)
    for rank in range(world):
        stack = {"stack": BARRIER} if rank == odd else {}
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns, **stack)
    stage.run(1.5)
    stage.exit(stage.rank(0), signal=signal.SIGABRT)
    stage.run(2)
    return next(verdict for verdict in not_working(stage) if verdict.kind is VerdictKind.CRASHED)


@pytest.mark.parametrize("odd", [1, 3])
def test_skipped_collective__of_four_ranks_the_one_with_another_stack_skipped_the_collective(
    odd: int,
) -> None:
    verdict = aborted_while_waiting(4, odd)
    assert verdict.cause is Cause.COLLECTIVE_MISMATCH
    assert verdict.culprit is not None
    assert verdict.culprit.rank == odd
    assert EvidenceKind.STACK in {evidence.kind for evidence in verdict.evidence}


@pytest.mark.parametrize(
    ("lead_s", "alike", "rank"), [(0.2, True, 2), (0.01, True, 0), (0.2, False, 0), (0.2, None, 0)]
)
def test_skipped_collective__of_three_ranks_that_send_alike_the_survivor_that_sent_last_skipped_it(
    lead_s: float, alike: bool | None, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Senders, "are_alike", alike)
    stage = trained(world=3)
    for number in (0, 1, 2):
        stage.become(stage.rank(number), "futex", last_send_ns=stage.now_ns)
    stage.become(
        stage.rank(2), "futex", stack=BARRIER, last_send_ns=stage.now_ns + int(lead_s * NS)
    )
    stage.run(1.5)
    stage.exit(stage.rank(0), signal=signal.SIGABRT)
    stage.run(2)
    verdict = next(
        other_verdict
        for other_verdict in not_working(stage)
        if other_verdict.kind is VerdictKind.CRASHED
    )
    assert verdict.culprit is not None
    assert verdict.culprit.rank == rank
    mismatch = rank == 2
    assert verdict.cause is (Cause.COLLECTIVE_MISMATCH if mismatch else Cause.ABORTED)


def test_skipped_collective__a_survivor_that_has_not_come_to_the_collective_skipped_none() -> None:
    stage = trained()
    for rank in (0, 2, 3):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns)
    stage.become(stage.rank(1), "sleep", stack=LOCK)
    stage.run(1.5)
    stage.exit(stage.rank(3), signal=signal.SIGABRT)
    stage.run(2)
    verdict = next(
        other_verdict
        for other_verdict in not_working(stage)
        if other_verdict.kind is VerdictKind.CRASHED
    )
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.ABORTED, 3)


def test_skipped_collective__survivors_in_the_same_collective_are_all_victims() -> None:
    stage = trained()
    all_wait(stage, -1)
    stage.run(1.5)
    stage.exit(stage.rank(2), signal=signal.SIGABRT)
    stage.run(2)
    verdict = next(
        other_verdict
        for other_verdict in not_working(stage)
        if other_verdict.kind is VerdictKind.CRASHED
    )
    assert (verdict.cause, verdict.victims) == (Cause.ABORTED, (0, 1, 3))
