"""One rank computes and all others wait: it is named once that lasts longer than anything before; nothing is ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.blocked_ranks import sitting_in
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained

WAIT4 = 61
SAID = VerdictKind.UNKNOWN, Cause.COMPUTING


def alone(world: int = 4, rank: int = 2) -> Stage:
    """A job that trained, in which one rank computes and all others wait for it."""
    stage = trained(world, seconds=60)
    stage.become(stage.rank(rank), "run")
    all_wait(stage, rank)
    return stage


def reported(stage: Stage) -> list[Verdict]:
    return [verdict for verdict in stage.verdicts if verdict.kind is not VerdictKind.WORKING]


def test_certainty__the_rank_that_computes_is_named_after_a_minute_and_nothing_is_ended() -> None:
    stage = alone()
    began_s = stage.now_ns / NS
    stage.run(55)
    assert reported(stage) == []
    stage.run(125)
    (verdict,) = reported(stage)
    assert (verdict.kind, verdict.cause) == SAID
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pid, verdict.victims) == (2, 102, (0, 1, 3))
    assert 60 < verdict.time_s - began_s < 70
    assert verdict.since_s == pytest.approx(began_s, abs=2)
    assert decide(verdict, Act.SHUTDOWN).act is Act.OBSERVE
    assert verdict.certainty not in (Certainty.ANNOUNCED, Certainty.PROVEN)


def test_lone_worker__what_is_not_known_and_what_to_do_is_said() -> None:
    stage = alone()
    stage.run(90)
    (verdict,) = reported(stage)
    (where,) = [
        evidence.text for evidence in verdict.evidence if evidence.kind is EvidenceKind.SINK
    ]
    assert where.startswith("rank 2 computes (running in user space) while all 3 other ranks wait")
    assert "not known: whether that ends" in where
    assert "kcover-ebpf trace" in where


def test_lone_worker__an_evaluation_that_ends_is_followed_by_training() -> None:
    stage = alone()
    stage.run(100)
    for proc in stage.procs.values():
        stage.become(proc, "train")
    stage.run(30)
    assert [(verdict.kind, verdict.cause) for verdict in stage.verdicts[-2:]] == [
        SAID,
        (VerdictKind.WORKING, Cause.TRAINING),
    ]


def test_lone_worker__no_rank_is_named_while_two_compute() -> None:
    stage = alone()
    stage.become(stage.rank(3), "run")
    stage.run(180)
    assert reported(stage) == []


def test_lone_worker__no_rank_is_named_while_another_waits_for_what_is_not_known() -> None:
    stage = alone()
    stage.become(stage.rank(3), "read")
    stage.run(180)
    assert SAID not in [(verdict.kind, verdict.cause) for verdict in reported(stage)]


def test_lone_worker__a_job_that_never_trained_may_compute_on_one_rank() -> None:
    stage = Stage(world=4)
    stage.become(stage.rank(2), "run")
    all_wait(stage, 2)
    stage.run(300)
    assert SAID not in [(verdict.kind, verdict.cause) for verdict in stage.verdicts]


def snapshot(stage: Stage) -> JobSnapshot:
    found = stage.job.snapshot()
    assert found.ranks[Pid(102)].state is State.COMPUTING
    return found


def named(found_snapshot: JobSnapshot) -> int | None:
    finding = judge(found_snapshot)
    return finding.rank if (finding.kind, finding.cause) == SAID else None


def with_ranks(found_snapshot: JobSnapshot, **changes: Any) -> JobSnapshot:
    changed = {
        pid: replace(process, **changes) for pid, process in found_snapshot.processes.items()
    }
    return replace(found_snapshot, processes=changed)


def test_judge__a_job_of_long_steps_is_given_several_of_them() -> None:
    stage = alone()
    stage.run(100)
    found = snapshot(stage)
    assert named(found) == 2
    assert named(with_ranks(found, threshold_s=45.0)) == 2
    assert named(with_ranks(found, threshold_s=55.0)) is None


def test_judge__no_rank_is_named_while_others_are_not_observed() -> None:
    stage = alone()
    stage.run(100)
    found = snapshot(stage)
    assert named(with_ranks(found, world_size=5)) is None
    unsized = with_ranks(found, world_size=None)
    assert named(unsized) == 2
    assert named(replace(unsized, whole=False)) is None
    assert named(replace(found, cadence_known=False)) is None
    assert named(replace(found, starting=True)) is None


def test_judge__the_ranks_that_wait_for_their_devices_wait_as_well() -> None:
    stage = alone()
    stage.run(100)
    found = snapshot(stage)
    on_device = {
        pid: replace(process, state=State.ON_DEVICE, stack=()) if pid != 102 else process
        for pid, process in found.processes.items()
    }
    assert named(replace(found, processes=on_device)) == 2


def test_judge__a_rank_that_began_to_wait_a_moment_ago_shows_that_the_job_continues() -> None:
    stage = alone()
    stage.run(100)
    found = snapshot(stage)
    young = {
        pid: replace(process, age_s=5.0) if pid == 101 else process
        for pid, process in found.processes.items()
    }
    assert named(replace(found, processes=young)) is None


def sleep_anew(stage: Stage, seconds: int, pid: int = 102) -> None:
    """Each sleep of rank 2, or of its child, begins a moment ago."""
    for _ in range(seconds // 2):
        stage.run(2)
        stage.procs[pid].mode_since_ns = stage.now_ns


@pytest.mark.parametrize("state", ["sleep", "nap"])
def test_lone_worker__a_loop_that_tries_again_for_ever_is_suspected_in_the_end(state: str) -> None:
    stage = trained(seconds=60)
    stage.become(stage.rank(2), state, naps_per_s=100)
    all_wait(stage, 2)
    sleep_anew(stage, seconds=50)
    assert reported(stage) == []
    sleep_anew(stage, seconds=30)
    (verdict,) = reported(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.SLEEPING)
    assert (verdict.culprit and verdict.culprit.rank) == 2
    assert decide(verdict, Act.SHUTDOWN).act is Act.OBSERVE


@pytest.mark.parametrize("mode", ["retry", "sleep"])
def test_lone_worker__bytes_that_the_loop_moves_between_its_sleeps_are_no_checkpoint(
    mode: str,
) -> None:
    """A full volume: each try writes what there is room for, fails, removes it and sleeps."""
    stage = trained(seconds=60)
    stage.become(stage.rank(2), mode, io_bytes_s=2 << 20)
    all_wait(stage, 2)
    sleep_anew(stage, seconds=50)
    assert reported(stage) == []
    sleep_anew(stage, seconds=30)
    assert [
        (verdict.kind, verdict.cause, verdict.culprit and verdict.culprit.rank)
        for verdict in reported(stage)
    ] == ([(VerdictKind.UNKNOWN, Cause.SLEEPING, 2)] if mode == "retry" else [])
    assert all(decide(verdict, Act.SHUTDOWN).act is Act.OBSERVE for verdict in reported(stage))


def test_lone_worker__a_child_that_tries_again_for_ever_is_suspected_with_its_rank() -> None:
    stage = trained(seconds=60)
    child = stage.add(Proc(500, ppid=102, argv=("writer",)))
    stage.run(10)
    stage.become(child, "retry", io_bytes_s=2 << 20)
    with sitting_in(WAIT4):
        stage.become(stage.rank(2), "read", stack=LOCK)
        all_wait(stage, 2)
        sleep_anew(stage, seconds=50, pid=500)
        assert reported(stage) == []
        sleep_anew(stage, seconds=40, pid=500)
    (verdict,) = reported(stage)
    assert (verdict.kind, verdict.culprit and verdict.culprit.rank) == (VerdictKind.UNKNOWN, 2)
    assert decide(verdict, Act.SHUTDOWN).act is Act.OBSERVE


def test_lone_worker__one_long_sleep_ends_by_itself_and_is_believed_for_longer() -> None:
    stage = trained(seconds=60)
    stage.become(stage.rank(2), "sleep")
    all_wait(stage, 2)
    stage.run(int(stage.policy.storage_patience_s) - 20)
    assert reported(stage) == []
    stage.run(40)
    (verdict,) = reported(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.SLEEPING)


def test_lone_worker__a_loop_in_a_job_of_long_steps_is_given_several_of_them() -> None:
    stage = trained(seconds=60)
    stage.become(stage.rank(2), "sleep")
    all_wait(stage, 2)
    sleep_anew(stage, seconds=100)
    found = stage.job.snapshot()
    assert judge(found).rank == 2
    assert judge(with_ranks(found, threshold_s=60.0)).kind is VerdictKind.WORKING
