"""From findings to verdicts: reported once, under a stable name, in unix time, WORKING at the end."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, Culprit, VerdictKind
from kcover_ebpf.tunables.sampling import ACTS_MOVED_S
from tests.unit.support.scripted_job import BARRIER, LOCK, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


def train_again(stage: Stage, seconds: float = 15) -> None:
    for proc in stage.procs.values():
        stage.become(proc, "train")
    stage.run(seconds)


def stop_rank(stage: Stage, rank: int) -> None:
    stage.become(stage.rank(rank), "stopped")
    all_wait(stage, rank)
    stage.run(7)


def test_tracker__a_verdict_is_reported_once_while_it_lasts() -> None:
    stage = trained()
    stop_rank(stage, 1)
    stage.run(60)
    # a suspicion first, and a fault once the policy says so
    assert [(verdict.kind, verdict.cause) for verdict in not_working(stage)] == [
        (VerdictKind.UNKNOWN, Cause.STOPPED),
        (VerdictKind.HUNG, Cause.STOPPED),
    ]


def test_tracker__healthy_training_is_reported_once() -> None:
    stage = trained(seconds=120)
    assert [verdict.cause for verdict in stage.verdicts] == [Cause.STARTING, Cause.TRAINING]
    assert {verdict.incident for verdict in stage.verdicts} == {""}


def test_tracker__the_next_fault_has_another_name() -> None:
    stage = trained()
    for rank in (1, 1, 2):
        stop_rank(stage, rank)
        train_again(stage)
    named = dict.fromkeys(verdict.incident for verdict in not_working(stage))
    assert list(named) == ["job-1", "job-2", "job-3"]
    assert stage.verdicts[-1].kind is VerdictKind.WORKING
    assert stage.verdicts[-1].incident == ""


def test_tracker__a_fault_that_ends_for_a_moment_only_is_one_incident() -> None:
    stage = trained()
    stop_rank(stage, 1)
    train_again(stage, 0.5)
    stop_rank(stage, 1)
    assert {verdict.incident for verdict in not_working(stage)} == {"job-1"}
    assert stage.verdicts[-1].kind in (VerdictKind.HUNG, VerdictKind.UNKNOWN)


def test_tracker__a_hang_that_ends_in_a_crash_is_one_incident() -> None:
    stage = trained()
    stop_rank(stage, 1)
    stage.exit(stage.rank(1), signal=9)
    stage.run(3)
    assert [(verdict.kind, verdict.incident) for verdict in not_working(stage)] == [
        (VerdictKind.UNKNOWN, "job-1"),
        (VerdictKind.HUNG, "job-1"),
        (VerdictKind.CRASHED, "job-1"),
    ]


def test_tracker__a_better_cause_is_reported_under_the_same_name() -> None:
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(8)
    stage.become(stage.rank(1), "stopped")
    stage.run(5)
    assert [(verdict.cause, verdict.incident) for verdict in not_working(stage)] == [
        (Cause.BLOCKED_LOCK, "job-1"),
        (Cause.STOPPED, "job-1"),
    ]


def test_tracker__a_fault_must_hold_before_it_is_reported() -> None:
    stage = trained()
    stage.become(stage.rank(1), "stopped")
    all_wait(stage, 1)
    while stage.job.finding() is None or stage.job.finding().kind is VerdictKind.WORKING:  # type: ignore[union-attr]
        stage.one_pass(NS // 4)
    assert not_working(stage) == []
    stage.one_pass(NS // 4)
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.STOPPED]


def test_tracker__an_announced_fault_is_reported_at_once() -> None:
    stage = trained()
    stage.exit(stage.rank(1), 1)
    stage.now_ns += NS
    tracker = Tracker("job", "host")
    stage.job.now_ns = stage.now_ns
    verdict = tracker.update(stage.job, 0.0)
    assert verdict is not None
    assert verdict.kind is VerdictKind.CRASHED


def test_tracker__times_are_unix_seconds_and_the_host_is_named() -> None:
    stage = trained()
    stop_rank(stage, 1)
    verdict = Tracker("job", "node-7").snapshot(stage.job, 1_700_000_000.5)
    assert verdict.time_s == stage.now_ns / NS + 1_700_000_000.5
    assert 6 <= verdict.time_s - verdict.since_s <= 8
    assert verdict.culprit is not None
    assert (verdict.culprit.host, verdict.culprit.rank) == ("node-7", 1)


def test_tracker__a_job_that_cannot_be_judged_is_unknown_in_a_snapshot_and_silent_otherwise() -> (
    None
):
    stage = trained()
    reported = len(stage.verdicts)
    stage.one_pass(NS, late=True)
    assert stage.tracker.snapshot(stage.job, 0.0).kind is VerdictKind.UNKNOWN
    assert len(stage.verdicts) == reported


def test_tracker__the_deadline_is_that_of_the_library_on_the_stacks() -> None:
    stage = trained()
    stop_rank(stage, 1)
    verdict = not_working(stage)[-1]
    assert verdict.deadline_s is not None
    assert verdict.deadline_s - verdict.since_s == 1800  # libtorch, measured on its ranks
    assert (
        next(
            other_verdict
            for other_verdict in stage.verdicts
            if other_verdict.kind is VerdictKind.WORKING
        ).deadline_s
        is None
    )


def test_tracker__a_mismatch_may_take_over_from_a_hang_without_a_new_name() -> None:
    stage = trained()
    stage.become(stage.rank(2), "futex", stack=BARRIER)
    all_wait(stage, 2)
    stage.run(20)
    assert {verdict.incident for verdict in not_working(stage)} == {"job-1"}


@pytest.mark.parametrize(
    ("kind", "cause", "explains"),
    [
        (VerdictKind.WORKING, Cause.SLEEPING, True),
        (VerdictKind.UNKNOWN, Cause.BLOCKED_LOCK, True),
        (VerdictKind.UNKNOWN, Cause.WAIT_CYCLE, False),
    ],
)
def test_tracker__what_ends_an_explanation_is_not_acted_on_at_once(
    monkeypatch: pytest.MonkeyPatch, kind: VerdictKind, cause: Cause, explains: bool
) -> None:
    stage = trained()
    now_ns = stage.job.now_ns
    began_ns = now_ns - 300 * NS
    for finding in (
        Finding(kind, cause, began_ns),
        Finding(VerdictKind.HUNG, Cause.BLOCKED_LOCK, began_ns, Culprit(1, 101)),
    ):
        monkeypatch.setattr(stage.job, "finding", lambda finding=finding: finding)
        stage.run(2)
    verdict = stage.verdicts[-1]
    assert verdict.kind is VerdictKind.HUNG
    assert verdict.acts_at_s is not None
    is_later = verdict.acts_at_s >= now_ns / NS + stage.job.policy.act_floor_s
    assert is_later is explains


def test_tracker__a_moment_that_a_log_moves_later_is_reported_again_when_it_comes() -> None:
    stage = trained()
    stage.become(stage.rank(2), "futex", stack=LOCK)
    all_wait(stage, 2)
    stage.run(10)
    (first,) = not_working(stage)
    assert first.acts_at_s is not None
    for _ in range(150):
        stage.job.observe(LogSeen(stage.now_ns, moved_ns=stage.now_ns))
        stage.run(1)
    reported = not_working(stage)
    # with 120 s of patience: the first moment, and the one that is reported before it comes
    assert len(reported) == 2
    assert reported[1].time_s == pytest.approx(first.acts_at_s - ACTS_MOVED_S, abs=1.5)
    assert reported[1].acts_at_s is not None
    assert reported[1].acts_at_s > first.acts_at_s + 60
    assert reported[1].same_as(first)
