"""What recordings change about a verdict: who is named, with which line, and when they are not believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.evidence.collective_account import unread
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.facts.host import CollectiveRank
from kcover_ebpf.facts.recorders import RankRecord, RecordersSeen, UnreadRecorder
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts, Recordings
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Act
from testbed.driver.recorder_dumps import call, steps
from tests.unit.support.recorder_builders import record
from tests.unit.support.scripted_job import Stage

WAITS = steps(5, ends="all_reduce")
BEHIND = (*(record(rank, WAITS) for rank in (0, 1, 3)), record(2, steps(5)))
MISMATCH = (
    *(record(rank, WAITS) for rank in (0, 1, 3)),
    record(2, steps(5, ends="all_gather", line=57)),
)
JOINED = tuple(record(rank, WAITS) for rank in range(4))


def spinning() -> Stage:
    """All ranks wait busily: the host cannot determine which did not join."""
    stage = Stage()
    stage.run(60)
    for number in range(stage.world):
        stage.become(stage.rank(number), "spin")
    stage.run(15)
    return stage


def verdict_of(stage: Stage, records: tuple[RankRecord, ...]) -> Verdict:
    stage.feed(RecordersSeen(stage.now_ns, records))
    stage.run(20)
    assert stage.tracker.current is not None
    return stage.tracker.current


def collective(verdict: Verdict) -> str:
    texts = [
        evidence.text for evidence in verdict.evidence if evidence.kind is EvidenceKind.COLLECTIVE
    ]
    return "; ".join(texts)


def test_collective_account__the_rank_that_has_not_called_it_is_named_with_its_line() -> None:
    verdict = verdict_of(spinning(), BEHIND)
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.NOT_IN_COLLECTIVE)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.victims) == (2, (0, 1, 3))
    assert "which rank 2 has not called" in collective(verdict)
    assert "number 5 of group 0 at /jobs/train.py:40 (step)" in collective(verdict)
    assert verdict.certainty is Certainty.INFERRED


def test_collective_account__the_rank_that_called_something_else_is_named_with_its_line() -> None:
    verdict = verdict_of(spinning(), MISMATCH)
    assert (verdict.kind, verdict.cause) == (VerdictKind.DEADLOCK, Cause.COLLECTIVE_MISMATCH)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2
    assert "rank 2 called all_gather [16x4 Float] at /jobs/train.py:57 (step)" in collective(
        verdict
    )


def test_collective_account__a_tie_is_a_mismatch_and_names_no_rank() -> None:
    other = steps(5, ends="all_gather")
    sides = (record(0, WAITS), record(1, WAITS), record(2, other), record(3, other))
    verdict = verdict_of(spinning(), sides)
    assert (verdict.kind, verdict.culprit) == (VerdictKind.DEADLOCK, None)


def test_collective_account__ranks_that_have_all_joined_are_reported_and_not_ended() -> None:
    verdict = verdict_of(spinning(), JOINED)
    assert (verdict.cause, verdict.culprit) == (Cause.COLLECTIVE_STUCK, None)
    assert collective(verdict) == "", "a long step looks the same"
    assert any("all_reduce [16x4 Float] at /jobs/train.py:40" in e.text for e in verdict.evidence)
    assert decide(verdict, Act.SHUTDOWN).act is Act.SNAPSHOT


def test_judge__a_circle_of_groups_is_reported_and_is_no_second_kind_of_evidence() -> None:
    pair = {"9": ("pair", "[2, 3]")}
    inner = call(1, state="scheduled", group="9", purpose="pair", record=20, line=71)
    crossed = (
        *(record(rank, WAITS, groups=pair) for rank in (0, 1, 3)),
        record(2, [*steps(5), inner], groups=pair),
    )
    stage = spinning()
    scene = replace(stage.job.snapshot(), recordings=Recordings(0.0, crossed))
    found = judge(scene)
    assert (found.cause, found.rank) == (Cause.WAIT_CYCLE, None)
    assert any("group 9 (pair)" in evidence.text for evidence in found.evidence)
    assert found.certainty not in (Certainty.ANNOUNCED, Certainty.PROVEN)


@pytest.mark.parametrize("records", [BEHIND, MISMATCH], ids=["behind", "mismatch"])
def test_judge__recordings_older_than_what_a_rank_does_now_name_no_rank(
    records: tuple[RankRecord, ...],
) -> None:
    stage = spinning()
    stage.run(10)
    scene = replace(stage.job.snapshot(), recordings=Recordings(5.0, records))
    assert judge(scene).rank == 2
    moved = {**scene.processes, Pid(101): replace(scene.processes[Pid(101)], age_s=4.9)}
    assert judge(replace(scene, processes=moved)).rank is None


def test_collective_account__a_rank_that_is_behind_and_at_work_is_waited_for() -> None:
    """An evaluation on one rank: it reads its storage, and the others wait in the next collective."""
    stage = spinning()
    stage.become(stage.rank(2), "fault")
    stage.run(1)
    verdict = verdict_of(stage, BEHIND)
    assert verdict.kind is VerdictKind.WORKING


def test_judge__counts_come_first_and_recordings_that_agree_add_their_lines() -> None:
    stage = spinning()
    stage.run(10)
    scene = replace(stage.job.snapshot(), recordings=Recordings(0.0, BEHIND))
    late = CollectiveRank(2, 4, "h", Pid(102), 6, 7)
    counts = CollectiveCounts(0.0, 2.0, 3, behind=(late,))
    found = judge(replace(scene, collectives=counts))
    texts = [
        evidence.text for evidence in found.evidence if evidence.kind is EvidenceKind.COLLECTIVE
    ]
    assert "launched 6 operations, others 7" in texts[0]
    assert "which rank 2 has not called" in texts[1]
    other = replace(counts, behind=(replace(late, rank=1, pid=Pid(101)),))
    found = judge(replace(scene, collectives=other))
    assert found.rank == 1
    assert not any(
        "recorder" in evidence.text or "train.py" in evidence.text for evidence in found.evidence
    )
    silent = CollectiveCounts(0.0, trouble="no answer")
    assert judge(replace(scene, collectives=silent)).rank == 2


def test_unread__what_could_not_be_read_is_unobserved() -> None:
    missing = tuple(UnreadRecorder(Pid(100 + n), n, "it has not answered") for n in range(6))
    assert unread(None) == []
    assert unread(RecordersSeen(1, unread=missing)) == [
        *(f"the flight recorder of rank {number}: it has not answered" for number in range(4)),
        "the flight recorders of 2 more ranks",
    ]


def test_collective_account__recordings_of_one_stall_say_nothing_about_the_next() -> None:
    stage = spinning()
    stage.feed(RecordersSeen(stage.now_ns, BEHIND))
    assert stage.job.snapshot().recordings is not None
    for number in range(stage.world):
        stage.become(stage.rank(number), "train")
    stage.run(60)
    assert stage.job.snapshot().recordings is None
