"""What NCCL's own counts change about a verdict: who is named, who is spared, what is not overruled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.diagnosis.judge.nccl import unobserved
from kcover_ebpf.facts.host import CollectiveRank, CollectiveSide, CollectivesSeen, WaitedFile
from kcover_ebpf.ids import NS, Inode, Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.verdict import Cause, Certainty, Culprit, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.output.formatting import fact_text
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import COLLECTIVE, LOCK, Stage


def rank(number: int, *, pid: int | None = None, size: int = 4, host: str = "h") -> CollectiveRank:
    return CollectiveRank(number, size, host, None if pid is None else Pid(pid), 6, 7)


def spinning(stage: Stage, mode: str = "spin") -> Stage:
    """All ranks wait busily: the host cannot determine which did not join."""
    stage.run(60)
    for number in range(stage.world):
        stage.become(stage.rank(number), mode)
    stage.run(3)
    return stage


def reported(stage: Stage, **fields: object) -> Verdict:
    """NCCL says so, again and again."""
    for _ in range(12):
        fact = CollectivesSeen(stage.now_ns, stage.now_ns - 2 * NS, 3)
        stage.feed(replace(fact, **fields))  # type: ignore[arg-type]
        stage.run(1)
    assert stage.tracker.current is not None
    return stage.tracker.current


def test_nccl__without_a_report_from_nccl_no_rank_is_named() -> None:
    verdict = spinning(Stage()).run(20)
    assert verdict is not None
    assert (verdict.kind, verdict.cause, verdict.culprit) == (
        VerdictKind.HUNG,
        Cause.WAIT_CYCLE,
        None,
    )


def test_nccl__the_rank_that_did_not_join_is_named() -> None:
    verdict = reported(spinning(Stage()), behind=(rank(2, pid=102),))
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.NOT_IN_COLLECTIVE)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pid, verdict.culprit.host) == (2, 102, "host")
    assert verdict.victims == (0, 1, 3)
    kinds = {evidence.kind for evidence in verdict.evidence}
    assert {EvidenceKind.COLLECTIVE, EvidenceKind.TIME} <= kinds
    # who is behind may come yet
    assert verdict.certainty is Certainty.INFERRED
    assert decide(verdict, Act.SHUTDOWN).act is Act.SNAPSHOT


def test_judge__no_rank_is_named_while_a_rank_has_come_to_its_wait_just_now() -> None:
    stage = spinning(Stage())
    stage.run(20)
    fact = CollectiveCounts(0.0, 60.0, 3, behind=(rank(2, pid=102),))
    scene = replace(stage.job.snapshot(), collectives=fact)
    assert judge(scene).cause is Cause.NOT_IN_COLLECTIVE
    late = replace(scene.processes[Pid(100)], age_s=0.5)
    scene = replace(scene, processes={**scene.processes, Pid(100): late})
    assert judge(scene).cause is not Cause.NOT_IN_COLLECTIVE


def test_nccl__numbers_of_a_communicator_over_all_ranks_are_the_jobs() -> None:
    verdict = reported(spinning(Stage()), behind=(rank(1),))
    assert verdict.culprit is not None
    assert verdict.culprit.pid == 101


def test_judge__a_rank_of_another_host() -> None:
    """Two of the four ranks are here; who did not join is not."""
    stage = spinning(Stage())
    stage.run(50)
    here = dict(list(stage.job.snapshot().ranks.items())[:2])
    fact = CollectiveCounts(0.0, 60.0, 3, behind=(rank(3, host="10.0.0.9"),))
    snapshot = replace(stage.job.snapshot(), processes=here, collectives=fact)
    assert judge(snapshot).cause is not Cause.NOT_IN_COLLECTIVE, "it may well be at work"
    later = {pid: rank_snapshot.later(300) for pid, rank_snapshot in here.items()}
    found = judge(replace(snapshot, processes=later))
    assert (found.kind, found.cause) == (VerdictKind.HUNG, Cause.NOT_IN_COLLECTIVE)
    assert found.culprit == Culprit(3, host="10.0.0.9")
    assert found.victims == (100, 101)


def test_nccl__a_missing_rank_is_named() -> None:
    verdict = reported(spinning(Stage()), missing=(rank(3, pid=103),))
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 3
    assert "did not answer" in verdict.evidence[0].text


def test_nccl__two_that_did_not_join_are_reported_and_none_is_blamed() -> None:
    verdict = reported(spinning(Stage()), behind=(rank(1, pid=101), rank(2, pid=102)))
    assert (verdict.cause, verdict.culprit) == (Cause.NOT_IN_COLLECTIVE, None)
    assert verdict.victims == (0, 3)


def test_nccl__all_joined_is_no_circle() -> None:
    stage = spinning(Stage())
    for kind in (VerdictKind.UNKNOWN, VerdictKind.HUNG):
        verdict = reported(stage)
        assert (verdict.kind, verdict.cause) == (kind, Cause.COLLECTIVE_STUCK)
        assert verdict.culprit is None


def test_nccl__counts_that_move_end_a_suspicion() -> None:
    stage = spinning(Stage())
    assert reported(stage, moving=True).kind is VerdictKind.WORKING
    assert {verdict.kind for verdict in stage.verdicts} == {VerdictKind.WORKING}


def test_nccl__a_rank_that_computes_is_behind_and_rightly_so() -> None:
    stage = spinning(Stage())
    stage.become(stage.rank(2), "run")
    stage.run(3)
    verdict = reported(stage, behind=(rank(2, pid=102),))
    assert not verdict.kind.is_fault


def test_nccl__busy_waiters_pass_for_computations() -> None:
    """Who is behind sleeps on a lock, so the others, which burn their CPUs, wait for it."""
    stage = Stage()
    stage.run(60)
    for number in range(4):
        stage.become(stage.rank(number), "futex" if number == 2 else "run")
    stage.rank(2).stack = LOCK
    stage.run(3)
    verdict = reported(stage, behind=(rank(2, pid=102),))
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.culprit.rank) == (VerdictKind.HUNG, 2)


@pytest.mark.parametrize("behind", [(), (rank(1, pid=101),)])
def test_nccl__a_stopped_rank_stays_the_culprit(behind: tuple[CollectiveRank, ...]) -> None:
    stage = spinning(Stage())
    stage.become(stage.rank(2), "stopped")
    verdict = reported(stage, behind=behind)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.STOPPED, 2)


def test_nccl__two_witnesses_of_the_same_culprit() -> None:
    stage = spinning(Stage())
    stage.become(stage.rank(2), "stopped")
    verdict = reported(stage, missing=(rank(2, pid=102),))
    assert verdict.cause is Cause.STOPPED
    assert stage.tracker.latest is not None
    assert EvidenceKind.COLLECTIVE in {evidence.kind for evidence in stage.tracker.latest.evidence}


def test_nccl__no_answer_is_said() -> None:
    verdict = reported(spinning(Stage()), trouble="no listener")
    assert verdict.cause is Cause.WAIT_CYCLE
    assert any("no listener" in text for text in verdict.unobserved)


def repeated(stage: Stage, seconds: int, **fields: object) -> list[Verdict]:
    """What is reported while NCCL says so for so long."""
    count = len(stage.verdicts)
    for _ in range(seconds):
        fact = CollectivesSeen(stage.now_ns, stage.now_ns - 2 * NS, 3)
        stage.feed(replace(fact, **fields))  # type: ignore[arg-type]
        stage.run(1)
    return stage.verdicts[count:]


OUTSIDE = WaitedFile(50, "socket", "socket:[9]", Inode(9), "", "")
ELSEWHERE = {
    "its device, asleep in a poll": ("poll", {}),
    "an answer over HTTP": ("poll", {"files": (OUTSIDE,)}),
    "a place where ranks waited while healthy": ("futex", {"stack": COLLECTIVE}),
    "its own computation": ("run", {}),
    "its own loop with pauses": ("sleep", {}),
}
WAITERS = ["run", "futex", "yield"]


@pytest.mark.parametrize("others", WAITERS)
@pytest.mark.parametrize(("mode", "more"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_nccl__a_rank_that_waits_elsewhere_is_behind_and_may_come(
    mode: str, more: dict[str, object], others: str
) -> None:
    stage = Stage(world=8)
    stage.run(60)
    for number in range(1, 8):
        stage.become(stage.rank(number), others)
    stage.become(stage.rank(0), mode, **{"stack": LOCK, **more})
    stage.run(2)
    verdicts = repeated(stage, 40, behind=(rank(0, pid=100, size=8),))
    acted = [verdict for verdict in verdicts if decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN]
    assert acted == []


@pytest.mark.parametrize("others", ["run", "yield"])
def test_nccl__behind_at_a_lock_with_no_thread_left_to_wake_it_is_a_hang_where_that_is_known_too(
    others: str,
) -> None:
    """It is given the patience of what is inferred, and no more: each lock of Python's looks like all others."""
    stage = Stage(world=8)
    stage.run(60)
    for number in range(1, 8):
        stage.become(stage.rank(number), others)
    stage.become(stage.rank(0), "futex", stack=COLLECTIVE)
    stage.run(2)
    verdict = repeated(stage, 15, behind=(rank(0, pid=100, size=8),))[-1]
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.culprit.rank) == (VerdictKind.HUNG, 0)
    assert (verdict.cause, verdict.certainty) == (Cause.NOT_IN_COLLECTIVE, Certainty.INFERRED)
    assert decide(verdict, Act.SHUTDOWN).act is not Act.SHUTDOWN


@pytest.mark.parametrize("others", ["spin", *WAITERS[1:]])
def test_nccl__a_rank_that_the_host_names_is_not_spared_for_being_behind(others: str) -> None:
    stage = Stage()
    stage.run(60)
    for number in range(4):
        stage.become(stage.rank(number), "pause" if number == 2 else others, stack=LOCK)
    verdict = repeated(stage, 12, behind=(rank(2, pid=102),))[-1]
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.culprit.rank) == (VerdictKind.HUNG, 2)
    assert verdict.cause is Cause.BLOCKED_SLEEP


def test_nccl__a_rank_asleep_in_the_driver_is_behind_and_may_come() -> None:
    stage = Stage(world=8)
    stage.run(60)
    for number in range(8):
        stage.become(stage.rank(number), "run" if number else "ioctl")
    verdicts = repeated(stage, 40, behind=(rank(0, pid=100, size=8),))
    assert not any(verdict.kind.is_fault for verdict in verdicts)


def test_nccl__who_waits_for_something_outside_the_collective_is_not_believed_for_ever() -> None:
    stage = Stage(world=8)
    stage.run(60)
    for number in range(8):
        stage.become(stage.rank(number), "run" if number else "poll", stack=LOCK)
    verdict = repeated(stage, 310, behind=(rank(0, pid=100, size=8),))[-1]
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.NOT_IN_COLLECTIVE, 0)
    assert 59 < verdict.time_s - 1060 < 306


SIDES = (
    CollectiveSide("AllGather 50, AllReduce 101", 7, (0, 1, 2, 3, 4, 5, 6)),
    CollectiveSide("AllGather 51, AllReduce 100", 1, (7,)),
)


@pytest.mark.parametrize("waiters", ["run", "yield", "spin", "futex"])
@pytest.mark.parametrize("odd", [(rank(7, pid=107, size=8),), ()])
def test_nccl__a_mismatch_is_called_one_and_never_the_hardwares(
    waiters: str, odd: tuple[CollectiveRank, ...]
) -> None:
    stage = Stage(world=8)
    stage.run(60)
    for number in range(8):
        stage.become(stage.rank(number), waiters)
    stage.run(2)
    verdict = repeated(stage, 20, odd=odd, sides=SIDES, equal=False)[-1]
    assert (verdict.kind, verdict.cause) == (VerdictKind.DEADLOCK, Cause.COLLECTIVE_MISMATCH)
    assert (verdict.culprit and verdict.culprit.rank) == (7 if odd else None)
    texts = " ".join(evidence.text for evidence in verdict.evidence)
    assert "rank 7 of the communicator launched AllGather 51, AllReduce 100" in texts
    assert "device" not in texts


@pytest.mark.parametrize("count", [1, 2])
def test_nccl__an_error_of_a_communicator_names_its_end(count: int) -> None:
    failed = tuple(
        replace(rank(number, pid=100 + number), trouble="system error") for number in range(count)
    )
    stage = spinning(Stage(), "run")
    verdict = repeated(stage, 15, failed=failed)[-1]
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.COLLECTIVE_FAILED)
    assert (verdict.culprit and verdict.culprit.rank) == (0 if count == 1 else None)
    assert "failed (system error)" in verdict.evidence[0].text


def test_nccl__counts_that_differ_crosswise_are_not_called_equal() -> None:
    verdict = repeated(spinning(Stage()), 20, equal=False)[-1]
    assert verdict.cause is Cause.WAIT_CYCLE
    assert EvidenceKind.COLLECTIVE not in {evidence.kind for evidence in verdict.evidence}


def test_nccl__equal_counts_are_no_evidence_beside_the_time() -> None:
    """A long step looks the same: no rank has moved."""
    verdict = reported(spinning(Stage()))
    assert EvidenceKind.COLLECTIVE not in {evidence.kind for evidence in verdict.evidence}


def test_unobserved__that_nccl_was_not_asked_is_said_of_a_job_that_uses_it() -> None:
    assert unobserved(None, {"python3.11"}) == []
    assert unobserved(CollectiveCounts(1.0, 1.0, 3), {"libnccl.so.2"}) == []
    (said,) = unobserved(None, {"libnccl.so.2"})
    assert "NCCL was not queried" in said
    stage = Stage()
    for proc in stage.procs.values():
        proc.stack = ("libnccl.so.2+100", *COLLECTIVE)
    verdict = spinning(stage).run(20)
    assert verdict is not None
    assert said in verdict.unobserved


def test_fact_text__what_nccl_said_is_a_sentence() -> None:
    assert fact_text(CollectivesSeen(1, 1, 3)) == "NCCL: no rank differs from the others"
    failed = replace(rank(2), trouble="system error")
    said = fact_text(CollectivesSeen(1, 1, 3, failed=(failed,), sides=SIDES))
    assert said == (
        "NCCL: rank 2 of 4: system error, 7 rank(s) launched AllGather 50, AllReduce 101, "
        "1 rank(s) launched AllGather 51, AllReduce 100"
    )


def test_certainty__a_rank_in_storage_that_nothing_proves_stuck_ends_no_job() -> None:
    """A long close or fsync of rank 0 while the others are in the next collective: its count is behind, of course."""
    stage = Stage(world=8)
    stage.run(60)
    for number in range(8):
        stage.become(stage.rank(number), "run" if number else "write")
    said = repeated(stage, 400, behind=(rank(0, pid=100, size=8),))
    assert [
        verdict for verdict in said if verdict.certainty in (Certainty.ANNOUNCED, Certainty.PROVEN)
    ] == []
    assert stage.tracker.current is not None
    assert not stage.tracker.current.kind.is_fault
