"""Ranks that all wait: for one that left, or for one that has sent least."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.judge.all_waiting import standstill
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Certainty
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.scripted_job import COLLECTIVE, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


def acted(stage: Stage, seconds: float) -> bool:
    """Whether an armed job would be ended within this time."""
    found = False
    for _ in range(round(4 * seconds)):
        stage.run(0.25)
        latest = stage.tracker.latest
        found |= latest is not None and decide(latest, Act.SHUTDOWN).act is Act.SHUTDOWN
    return found


@pytest.mark.parametrize(("trained_on_s", "ended"), [(0, True), (1, False), (2, False), (3, False)])
def test_all_waiting__a_rank_that_left_announces_nothing_once_the_others_trained_on(
    trained_on_s: float, *, ended: bool
) -> None:
    stage = trained(seconds=60)
    stage.exit(stage.rank(3))
    stage.run(trained_on_s)
    all_wait(stage, -1)
    assert acted(stage, 8) is ended
    (verdict,) = not_working(stage)
    certainty = Certainty.ANNOUNCED if ended else Certainty.INFERRED
    assert (verdict.cause, verdict.certainty) == (Cause.LEFT_EARLY, certainty)


def waiting(
    number: int, *, sends_alike: bool | None = None, sent_s: float | None = 30.0
) -> RankSnapshot:
    return RankSnapshot(
        Pid(number),
        Role.RANK,
        State.PEERS,
        rank=number,
        age_s=30.0,
        threshold_s=2.0,
        stack=COLLECTIVE,
        sent_age_s=sent_s,
        sends_alike=sends_alike,
    )


def left(sent_s: float | None) -> RankSnapshot:
    gone = replace(waiting(3), state=State.LEFT, exit="code 0", age_s=30.0)
    return replace(gone, sent_age_s=sent_s, stack=())


def job_snapshot(*ranks: RankSnapshot) -> JobSnapshot:
    processes = {rank.pid: rank for rank in ranks}
    return JobSnapshot(1_000 * NS, Policy(), processes, EndpointIndex(()))


@pytest.mark.parametrize(
    ("sent_s", "others_sent_s", "certainty"),
    [
        (30.5, 30.0, Certainty.ANNOUNCED),
        (600.0, 30.0, Certainty.INFERRED),
        (None, 30.0, Certainty.INFERRED),
        (None, None, Certainty.ANNOUNCED),
    ],
    ids=["it did", "not any more", "it alone did not", "not seen of any rank"],
)
def test_all_waiting__only_who_took_part_until_it_left_is_announced_as_missed(
    sent_s: float | None, others_sent_s: float | None, certainty: Certainty
) -> None:
    ranks = [waiting(number, sent_s=others_sent_s) for number in range(3)]
    finding = standstill(job_snapshot(*ranks, left(sent_s)), ranks)
    assert finding is not None
    assert (finding.cause, finding.rank, finding.certainty) == (Cause.LEFT_EARLY, 3, certainty)


@pytest.mark.parametrize(
    ("alike", "rank", "certainty"),
    [
        ((True, True, True), 1, Certainty.INFERRED),
        ((True, None, None), 1, Certainty.INFERRED),
        ((None, None, None), 1, Certainty.SUSPECTED),
        ((True, False, None), None, Certainty.SUSPECTED),
        ((False, False, False), None, Certainty.SUSPECTED),
    ],
)
def test_all_waiting__the_order_of_sending_counts_where_all_sent_at_once_while_healthy(
    alike: tuple[bool | None, ...], rank: int | None, certainty: Certainty
) -> None:
    ranks = [
        waiting(number, sends_alike=known, sent_s=45.0 if number == 1 else 30.0)
        for number, known in enumerate(alike)
    ]
    finding = standstill(job_snapshot(*ranks), ranks)
    assert finding is not None
    assert (finding.rank, finding.certainty) == (rank, certainty)
