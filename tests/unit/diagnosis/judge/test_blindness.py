"""What cannot be observed blinds whom it concerns, never an announced fault, and never passes for health."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.judge.blindness import unseen
from kcover_ebpf.facts.kernel import Fact, ProcessExec, ProcessExit, ProcessFork, ProcessTotals
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.scripted_job import Proc, Stage, all_wait, trained


class Crowded(Stage):
    """The sampler has no room for some threads of these ranks."""

    unseen: frozenset[int] = frozenset()

    def feed(self, fact: Fact) -> None:
        if isinstance(fact, ProcessTotals) and fact.pid - 100 in self.unseen:
            fact = replace(fact, unseen_count=44)
        super().feed(fact)


def crowded(*ranks: int) -> Crowded:
    stage = Crowded()
    stage.run(30)
    assert stage.job.pace.trained
    stage.unseen = frozenset(ranks)
    return stage


def late_passes(stage: Stage, seconds: int) -> None:
    for _ in range(seconds // 3):
        stage.one_pass(3 * NS, late=True)


@pytest.mark.parametrize("seconds_blind", [0, 3, 60])
def test_blindness__an_announced_fault_is_judged_however_blind_the_sensor_is(
    seconds_blind: int,
) -> None:
    stage = trained()
    late_passes(stage, seconds_blind)
    stage.exit(stage.rank(0), signal=11)
    late_passes(stage, 6)
    verdict = stage.tracker.current
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.SEGFAULT)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 0


def test_blindness__records_lost_by_others_cost_a_job_nothing() -> None:
    stage = trained()
    stage.become(stage.rank(1), "stopped")
    all_wait(stage, 1)
    for _ in range(40):
        stage.one_pass(NS // 4, lost=44)
    assert stage.verdicts[-1].cause is Cause.STOPPED


def test_blindness__a_sensor_that_is_late_for_ten_seconds_says_that_it_cannot_observe() -> None:
    stage = trained()
    late_passes(stage, 9)
    assert stage.verdicts[-1].kind is VerdictKind.WORKING
    late_passes(stage, 9)
    verdict = stage.verdicts[-1]
    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.evidence[0].text.startswith("cannot observe for")
    assert "no pass for 3.0 s" in verdict.evidence[0].text
    stage.run(10)
    assert stage.verdicts[-1].kind is VerdictKind.WORKING


def test_blindness__a_silent_rank_with_unseen_threads_is_not_blamed_and_not_healthy() -> None:
    # one of the unseen threads may be at work for all that is known
    stage = crowded(1)
    stage.become(stage.rank(1), "read")
    all_wait(stage, 1)
    stage.run(30)
    assert {verdict.kind for verdict in stage.verdicts} == {
        VerdictKind.WORKING,
        VerdictKind.UNKNOWN,
    }
    assert stage.verdicts[-1].kind is VerdictKind.UNKNOWN
    assert "no room to sample 44 threads of process 101" in stage.verdicts[-1].evidence[0].text


def test_blindness__what_is_seen_again_is_judged_by_what_is_seen_from_then_on() -> None:
    stage = crowded(1)
    stage.become(stage.rank(1), "stopped")
    all_wait(stage, 1)
    stage.run(30)
    stage.unseen = frozenset()
    stage.run(1)
    assert stage.verdicts[-1].kind is VerdictKind.UNKNOWN, "the silence before says nothing"
    stage.run(10)
    assert stage.verdicts[-1].cause is Cause.STOPPED


def test_blindness__a_job_that_is_seen_to_continue_is_working_though_some_threads_are_unseen() -> (
    None
):
    stage = crowded(1, 2)
    stage.run(30)
    assert stage.verdicts[-1].cause is Cause.TRAINING


def test_blindness__a_rank_whose_end_was_missed_is_gone_and_never_taken_for_one_that_left() -> None:
    stage = trained()
    all_wait(stage, 1)
    gone = stage.rank(1)
    gone.alive = False
    pid = Pid(gone.pid)
    stage.feed(ProcessExit(stage.now_ns, pid, 0, 0, core_dumped=False, comm="", known=False))
    stage.exit(stage.rank(2), code=1)
    stage.run(5)
    (verdict,) = [
        other_verdict
        for other_verdict in stage.verdicts
        if other_verdict.kind is VerdictKind.CRASHED
    ]
    assert verdict.cause is Cause.EXITED, "it is not known that rank 1 left before"


def test_blindness__peers_that_wait_for_a_rank_whose_end_was_missed_hang() -> None:
    stage = trained()
    all_wait(stage, 1)
    gone = stage.rank(1)
    gone.alive = False
    pid = Pid(gone.pid)
    stage.feed(ProcessExit(stage.now_ns, pid, 0, 0, core_dumped=False, comm="", known=False))
    stage.run(20)
    assert stage.verdicts[-1].kind.is_fault


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "read as a shell"])
def test_blindness__what_a_parent_runs_that_was_not_read_yet_may_fail(*, is_read: bool) -> None:
    """Such as grep in a shell that a helper of Ray started: the shell was too young to be read, and grep was not.

    Or it was read when it was not grep yet.
    """
    stage = Stage(world=0)
    stage.add(Proc(800, argv=("python3", "agent.py")))
    stage.run(1)
    stage.feed(ProcessFork(stage.now_ns, Pid(800), Pid(801), "sh"))
    words = ("grep", "live") if is_read else ("sh", "-c", "cat state | grep live")
    found = stage.add(Proc(802, ppid=801, argv=words))
    if not is_read:
        stage.run(1)
        stage.feed(ProcessExec(stage.now_ns, Pid(802), "grep"))
    stage.exit(found, code=1)
    stage.run(3)
    assert not [verdict for verdict in stage.verdicts if verdict.kind is not VerdictKind.WORKING]


def test_unseen__a_process_whose_turn_does_not_come_is_not_sampled() -> None:
    class Missing(Stage):
        missing = False

        def feed(self, fact: Fact) -> None:
            if not (self.missing and isinstance(fact, ProcessTotals) and fact.pid == 101):
                super().feed(fact)

    stage = Missing()
    stage.run(30)
    views = stage.job.members.owned.values()
    stage.missing = True
    stage.run(10)
    assert unseen(views, stage.now_ns) == ""
    stage.run(13)
    assert unseen(views, stage.now_ns) == "process 101 is not sampled"
