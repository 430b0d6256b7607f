"""A rank that is dying: announced by the signal that ends it, left alone while it dumps core."""

from __future__ import annotations

import signal

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.kernel import FatalSignal, ProcessExit, SignalSent
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Certainty, Verdict, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working, only_fault


def strike(stage: Stage, rank: int, number: int = signal.SIGSEGV) -> Proc:
    """The signal that ends a rank is delivered to it."""
    proc = stage.rank(rank)
    proc.alive = False
    pid = Pid(proc.pid)
    stage.feed(SignalSent(stage.now_ns, pid, Tid(proc.pid), number, Pid(0), ""))
    stage.feed(FatalSignal(stage.now_ns, pid, number, "python3"))
    return proc


def end(stage: Stage, proc: Proc, number: int = signal.SIGSEGV, *, dumped: bool = True) -> None:
    stage.feed(ProcessExit(stage.now_ns, Pid(proc.pid), 0, number, dumped, "python3"))


def latest(stage: Stage) -> Verdict:
    assert stage.tracker.latest is not None
    return stage.tracker.latest


def test_dying__a_crash_is_announced_before_its_core_is_written() -> None:
    stage = trained()
    strike(stage, 2)
    all_wait(stage, 2)
    stage.run(1)
    verdict = only_fault(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.SEGFAULT)
    assert verdict.certainty is Certainty.ANNOUNCED
    assert (verdict.culprit and verdict.culprit.rank, verdict.victims) == (2, (0, 1, 3))
    assert [evidence.text for evidence in verdict.evidence] == [
        "rank 2 (pid 102, python3) is dying of SIGSEGV",
        "rank 2 is dumping core after SIGSEGV, or still frees its memory",
    ]
    rows = {row.rank: row.wait for row in verdict.waits}
    assert rows[2] == "dumping core"
    assert stage.job.snapshot().processes[Pid(102)].state is State.DUMPING


def test_dying__a_job_is_ended_when_the_core_is_written_and_not_before() -> None:
    stage = trained()
    proc = strike(stage, 2)
    all_wait(stage, 2)
    stage.run(20)
    assert decide(latest(stage), Act.SHUTDOWN).act is Act.SNAPSHOT
    assert latest(stage).acts_why == "a core is being dumped"
    end(stage, proc)
    stage.run(0.5)
    assert decide(latest(stage), Act.SHUTDOWN).act is Act.SHUTDOWN
    text = "rank 2 (pid 102, python3) died by SIGSEGV, and its core was dumped"
    assert [evidence.text for evidence in latest(stage).evidence] == [text]
    # one fault, reported again because it ends the job sooner than was said
    first, again = not_working(stage)
    assert again.same_as(first)
    assert (again.acts_at_s or 0.0) < (first.acts_at_s or 0.0)


def test_dying__a_dump_that_does_not_end_is_cut_off_by_the_policy() -> None:
    stage = trained()
    strike(stage, 2)
    all_wait(stage, 2)
    stage.run(stage.policy.core_dump_patience_s + 2)
    assert decide(latest(stage), Act.SHUTDOWN).act is Act.SHUTDOWN


def test_dying__the_dump_of_a_victim_is_waited_for_as_well() -> None:
    stage = trained()
    stage.exit(stage.rank(0), 1)
    strike(stage, 2, signal.SIGABRT)
    stage.run(2)
    assert (latest(stage).cause, latest(stage).acts_why) == (
        Cause.EXITED,
        "a core is being dumped",
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_dying__what_dumps_no_core_is_not_waited_for(number: int) -> None:
    stage = trained()
    strike(stage, 2, number)
    stage.run(1)
    verdict = only_fault(stage)
    assert verdict.cause is Cause.KILLED
    assert decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_dying__the_exit_of_who_was_dying_is_no_second_failure() -> None:
    stage = trained()
    proc = strike(stage, 2)
    struck_ns = stage.now_ns
    stage.run(5)
    end(stage, proc)
    assert [failure.boottime_ns for failure in stage.job.announced.failures] == [struck_ns]
    view = stage.job.members.views[Pid(102)]
    assert view.exit is not None
    assert (view.exit.boottime_ns, view.exit.core_dumped, view.is_dying) == (struck_ns, True, False)


def test_dying__a_helper_counts_when_it_is_gone() -> None:
    stage = trained()
    stage.add(Proc(700, ppid=102, argv=("nvidia-smi",)))
    stage.run(2)
    stage.feed(FatalSignal(stage.now_ns, Pid(700), 11, "nvidia-smi"))
    stage.run(1)
    assert stage.job.members.views[Pid(700)].exit is None
    stage.exit(stage.procs[700], signal=11)
    stage.run(2)
    assert not_working(stage) == []


def test_dying__a_process_that_is_not_known_is_ignored() -> None:
    stage = trained()
    stage.feed(FatalSignal(stage.now_ns + NS, Pid(12345), 11, "python3"))
    assert Pid(12345) not in stage.job.members.views


@pytest.mark.parametrize("is_stop", [True, False])
@pytest.mark.parametrize("from_outside", [True, False])
def test_dying__the_sender_of_a_signal_is_said_to_be_outside_where_that_is_known(
    from_outside: bool, is_stop: bool
) -> None:
    stage = trained()
    victim = stage.rank(1)
    sender = Pid(9), "runc", from_outside
    number = signal.SIGSTOP if is_stop else signal.SIGKILL
    stage.feed(SignalSent(stage.now_ns, Pid(victim.pid), Tid(victim.pid), number, *sender))
    if is_stop:
        stage.become(victim, "stopped")
        all_wait(stage, 1)
    else:
        stage.exit(victim, signal=number)
    stage.run(8)
    texts = [evidence.text for evidence in not_working(stage)[-1].evidence]
    (said,) = [text for text in texts if "runc (9)" in text]
    assert said.endswith("runc (9), from outside of its container") is from_outside
