"""Two jobs of several ranks in one pod, or under one launcher: each is judged by itself."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Policy
from tests.unit.support.link_builders import edge
from tests.unit.support.scripted_job import LOCK, Proc, Stage
from tests.unit.support.seen_verdicts import ended, faults, not_working

PORTS = 29_501, 29_502
HUNG = 202
"""Rank 1 of the second."""


def two_jobs(policy: Policy | None = None, seconds: float = 40) -> Stage:
    """Two worlds of three ranks below a launcher, which have trained for a while."""
    stage = Stage(world=3, here=0, policy=policy or Policy())
    stage.add(Proc(90, argv=("bash", "sweep.sh")))
    for first, port in zip((101, 201), PORTS, strict=True):
        for rank in range(3):
            stage.add(Proc(first + rank, ppid=90, rank=rank, port=port))
    stage.run(seconds)
    assert not_working(stage) == []
    return stage


def hang(stage: Stage, culprit: int) -> None:
    """The other ranks of its world wait for it."""
    first = culprit // 100 * 100
    for pid in range(first + 1, first + 4):
        stage.become(stage.procs[pid], "futex", last_send_ns=stage.now_ns)
    stage.become(stage.procs[culprit], "futex", stack=LOCK)


def last_fault(stage: Stage) -> Verdict:
    found = faults(stage)
    assert found
    return found[-1]


def test_sub_jobs__a_hang_in_one_is_named_while_the_other_trains() -> None:
    stage = two_jobs()
    hang(stage, HUNG)
    stage.run(10)
    verdict = last_fault(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.BLOCKED_LOCK)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pid) == (1, HUNG)
    assert verdict.victims == (0, 2)
    (apart,) = (
        evidence.text for evidence in verdict.evidence if evidence.kind is EvidenceKind.APART
    )
    assert apart.startswith("it is the sub-job of 3 ranks (port 29502)")
    assert apart.endswith("what continues: that of 3 ranks (port 29501)")


def test_sub_jobs__a_hang_in_one_does_not_end_the_other() -> None:
    stage = two_jobs()
    hang(stage, HUNG)
    stage.run(400)
    verdict = stage.tracker.latest
    assert verdict is not None
    assert (verdict.certainty, verdict.acts_at_s) == (Certainty.SUSPECTED, None)
    assert not any(map(ended, faults(stage)))


def test_sub_jobs__a_stopped_rank_of_one_does_not_end_the_other() -> None:
    stage = two_jobs()
    hang(stage, HUNG)
    stage.become(stage.procs[HUNG], "stopped")
    stage.run(60)
    assert last_fault(stage).cause is Cause.STOPPED
    assert not any(map(ended, [*faults(stage), stage.tracker.latest or last_fault(stage)]))


def test_sub_jobs__the_hard_limit_of_a_policy_ends_both() -> None:
    stage = two_jobs(Policy(hard_limit_s=60))
    hang(stage, HUNG)
    stage.run(50)
    assert stage.tracker.latest is not None
    assert not ended(stage.tracker.latest)
    stage.run(20)
    assert ended(stage.tracker.latest)


def test_sub_jobs__where_none_is_well_the_job_is_ended() -> None:
    stage = two_jobs()
    hang(stage, HUNG)
    stage.run(20)
    hang(stage, 103)
    stage.run(200)
    verdict = stage.tracker.latest
    assert verdict is not None
    assert verdict.certainty is Certainty.INFERRED
    assert ended(verdict)


def test_sub_jobs__one_that_crashes_does_not_end_the_other() -> None:
    stage = two_jobs()
    stage.exit(stage.procs[HUNG], 1)
    for pid in (201, 203):
        stage.become(stage.procs[pid], "futex")
    stage.run(20)
    assert last_fault(stage).kind is VerdictKind.CRASHED
    assert not ended(last_fault(stage))


def test_sub_jobs__one_that_fails_is_given_time_to_end() -> None:
    stage = two_jobs()
    for pid in (201, 202, 203):
        stage.exit(stage.procs[pid], 1)
        stage.run(3)
    assert faults(stage) == []


@pytest.mark.parametrize("code", [0, 1])
def test_sub_jobs__one_that_has_ended_is_missed_by_none(code: int) -> None:
    stage = two_jobs()
    for pid in (201, 202, 203):
        stage.exit(stage.procs[pid], code)
    stage.run(60)
    assert faults(stage) == []
    hang(stage, 102)
    stage.run(200)
    verdict = last_fault(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.pid) == (Cause.BLOCKED_LOCK, 102)
    assert stage.tracker.latest is not None
    assert ended(stage.tracker.latest)


def test_sub_jobs__one_that_starts_later_is_a_job_of_its_own() -> None:
    stage = two_jobs()
    for pid in (201, 202, 203):
        stage.exit(stage.procs[pid])
    for rank in range(3):
        stage.add(Proc(301 + rank, ppid=90, rank=rank, port=29_503))
    stage.run(40)
    hang(stage, 302)
    stage.run(10)
    assert last_fault(stage).culprit is not None
    assert {fault.culprit and fault.culprit.pid for fault in faults(stage)} == {302}


def test_sub_jobs__the_start_of_one_may_take_as_long_as_the_job_ever_did() -> None:
    stage = Stage(world=3, here=0)
    memory = JobMemory(start_s=30.0, step_s=0.5)
    stage.job.remember(memory)
    stage.add(Proc(90, argv=("bash", "sweep.sh")))
    for first, port in zip((101, 201), PORTS, strict=True):
        for rank in range(3):
            stage.add(Proc(first + rank, ppid=90, rank=rank, port=port))
    stage.run(2)
    parts = [part.job for part in stage.job.sub_jobs.parts]
    assert len(parts) == 2
    for job in parts:
        assert all(job.pace.threshold_s(pid) == 45.0 for pid in job.members.ranks)
        assert job.pace.memory is not memory
        assert job.silences is memory.silences


def test_sub_jobs__worlds_that_are_connected_are_one_job() -> None:
    """A trainer and the engine that it asks wait for each other."""
    stage = two_jobs()
    assert len(stage.job.sub_jobs.parts) == 2
    ends = {101: ("127.0.0.1", 40_101), 201: ("127.0.0.1", 40_201)}
    for pid, peer in ((101, 201), (201, 101)):
        stage.feed(
            edge(
                Pid(pid),
                peer,
                boottime_ns=stage.now_ns,
                local=ends[pid],
                remote=ends[peer],
                acked_bytes=10,
                received_bytes=10,
                last_send_ns=stage.now_ns,
                last_receive_ns=stage.now_ns,
            )
        )
    hang(stage, HUNG)
    stage.run(10)
    assert stage.job.sub_jobs.parts == []
    assert faults(stage, stage.now_ns / NS - 10) == []


def test_sub_jobs__ranks_of_one_world_are_one_job() -> None:
    stage = Stage()
    stage.run(20)
    assert stage.job.sub_jobs.parts == []
