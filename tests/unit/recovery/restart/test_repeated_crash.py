"""The same traceback at the same step after a restart is a bug of the program: no further restart, and it says so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.api.codec import decode, encode
from kcover_ebpf.api.incident import Incident, JobRef, Phase, RestartMethod, Status
from kcover_ebpf.api.incident_parts import CrashRecord, LoggedWork
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.event_recorder import EventRecorder
from kcover_ebpf.controller.telemetry import ControllerTelemetry
from kcover_ebpf.gang.job_rules import LoggedProgress
from kcover_ebpf.model.verdict import Cause, EvidenceKind, FailureClass, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import advance, guards
from kcover_ebpf.recovery.restart.context import Suspension
from kcover_ebpf.recovery.restart.repeated_crash import why_hopeless, work_of
from kcover_ebpf.recovery.restart.steps import Step
from tests.unit.support.crash_inputs import STEP_30, asked, crashed, record
from tests.unit.support.guard_inputs import without_rule, world
from tests.unit.support.judged import judged
from tests.unit.support.log_builders import BUG, log, seen
from tests.unit.support.report_builders import NOW_S


def test_decide__the_first_crash_is_restarted_and_remembered() -> None:
    move = guards.decide(asked(crashed(STEP_30, start=0)))
    assert move.status is not None
    assert move.status.phase is Phase.SHUTTING_DOWN
    assert move.status.failure is FailureClass.PROGRAM
    (crash,) = move.status.crashes
    assert (crash.pod_uid, crash.start, crash.step, crash.place) == ("uid-1", 0, 30, "train.py:71")
    assert decode(Status, encode(move.status)).crashes == (crash,), "another controller knows it"


def test_decide__the_same_crash_is_not_restarted_again() -> None:
    move = guards.decide(asked(crashed(STEP_30, pods=without_rule()), record()))
    assert move.status is not None
    assert move.status.phase is Phase.REFUSED
    assert "the same traceback at train.py:71 at step 30 as before the restart" in (
        move.status.message
    )
    assert "no further restart" in move.status.message
    assert move.status.restarts == ()


def test_advance__a_gang_that_its_kubelets_would_restart_for_ever_is_suspended() -> None:
    at = crashed(STEP_30)
    move = guards.decide(asked(at, record()))
    assert move.status is not None
    assert (move.status.phase, move.status.restarts) == (Phase.SHUTTING_DOWN, ())
    turn = replace(asked(at).context, status=move.status)
    (suspension,) = advance.advance(turn).calls
    assert isinstance(suspension, Suspension)
    assert suspension.suspended
    assert at.top is not None
    assert at.top.target is not None
    target = replace(at.top.target, suspended=True)
    done = advance.advance(replace(turn, world=replace(at, top=replace(at.top, target=target))))
    assert done.status is not None
    assert done.status.phase is Phase.FAILED
    assert "a bug of the program" in done.status.message
    assert "stays suspended until it is resumed by hand" in done.status.message


def test_decide__a_person_who_approves_has_it_restarted() -> None:
    at = crashed(STEP_30, pods=without_rule())
    move = guards.decide(asked(at, record(), approved=True))
    assert move.status is not None
    assert move.status.phase is Phase.SHUTTING_DOWN


OTHER = {
    "another step": record(step=31),
    "another epoch": record(epoch=2),
    "another traceback": record(fingerprint="0" * 16),
    "the same start, in which another rank failed with it": record(start=1),
    "another pod of the same start": record(pod_uid="uid-3", time_s=NOW_S - 3),
}


@pytest.mark.parametrize("earlier", OTHER.values(), ids=OTHER)
def test_decide__another_crash_is_restarted(earlier: CrashRecord) -> None:
    move = guards.decide(asked(crashed(STEP_30), earlier))
    assert move.status is not None
    assert move.status.phase is Phase.SHUTTING_DOWN
    assert move.status.action is not None
    assert move.status.action.way is RestartMethod.IN_PLACE


def status(*crashes_record: CrashRecord) -> Status:
    return Status(
        Phase.OPEN,
        verdict=Verdict(kind=VerdictKind.CRASHED, cause=Cause.EXITED),
        crashes=crashes_record,
    )


AGAIN = record(start=1, time_s=NOW_S - 2)
PAIRS = {
    "the same pod, started again": (record(), AGAIN, True),
    "a pod that was made after the crash": (record(), replace(AGAIN, pod_uid="new", start=0), True),
    "a pod of which it is not known when it started": (
        record(), replace(AGAIN, pod_uid="new", start=0, after_s=None), False,
    ),
    "no step is known, and both failed while they started": (
        record(step=None, after_s=20.0), replace(AGAIN, step=None, after_s=25.0), True,
    ),
    "no step is known, and it had run for long": (
        record(step=None, after_s=20.0), replace(AGAIN, step=None, after_s=900.0), False,
    ),
    "an error of CUDA on the same node may be its GPU": (
        record(rules=("cuda_program_error",)), replace(AGAIN, rules=("cuda_program_error",)), False,
    ),
    "an error of CUDA on another node is the program's": (
        record(rules=("cuda_program_error",)),
        replace(AGAIN, rules=("cuda_program_error",), node="a", pod_uid="new", start=0), True,
    ),
    "a loss that is not finite on the same node may be its GPU": (
        record(rules=("loss_not_finite",)), replace(AGAIN, rules=("loss_not_finite",)), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "last", "same"), PAIRS.values(), ids=PAIRS)
def test_why_hopeless__which_crashes_are_the_same(
    first: CrashRecord, last: CrashRecord, same: bool
) -> None:
    assert (why_hopeless(status(first, last), ()) is not None) is same
    assert (why_hopeless(status(last), (first,)) is not None) is same, "of another incident"


def test_why_hopeless__one_crash_alone_is_never_hopeless() -> None:
    assert why_hopeless(status(record()), ()) is None
    hung = judged(status(record(), AGAIN), kind=VerdictKind.HUNG)
    assert why_hopeless(hung, ()) is None


def test_decide__the_log_of_a_second_crash_is_awaited_and_not_for_long() -> None:
    move = guards.decide(asked(crashed(), record()))
    assert (move.status, move.calls) == (None, ())
    assert move.wake_s is not None
    late = guards.decide(asked(crashed(age_s=4.0), record()))
    assert late.status is not None
    assert late.status.phase is Phase.SHUTTING_DOWN
    first = guards.decide(asked(crashed()))
    assert first.status is not None, "the first crash waits for no log"


def test_decide__a_crash_is_compared_when_its_log_was_read_to_the_end() -> None:
    """What a program printed just before it raised may be read after the traceback."""
    early = guards.decide(asked(crashed(replace(BUG, step=29), age_s=0.4), record()))
    assert (early.status, early.calls) == (None, ())
    assert early.wake_s is not None
    move = guards.decide(asked(crashed(STEP_30, pods=without_rule()), record()))
    assert move.status is not None
    assert move.status.phase is Phase.REFUSED
    first = guards.decide(asked(crashed(replace(BUG, step=29), age_s=0.4)))
    assert first.status is not None, "the first crash waits for no log"


def test_decide__a_crash_that_is_remembered_has_the_step_that_its_log_shows_by_now() -> None:
    first = guards.decide(asked(crashed(replace(BUG, step=29), start=0), armed=False))
    assert first.status is not None
    assert [crash.step for crash in first.status.crashes] == [29]
    later = asked(crashed(STEP_30, start=0), armed=False)
    second = guards.decide(replace(later, context=replace(later.context, status=first.status)))
    assert second.status is not None
    assert [crash.step for crash in second.status.crashes] == [30]
    third = guards.decide(replace(later, context=replace(later.context, status=second.status)))
    assert third.status is None, "and is written once"


@pytest.mark.parametrize("step", [Step.SETTLE, Step.PROGRESS])
def test_advance__a_crash_that_is_repeated_before_any_progress_ends_the_restart(step: Step) -> None:
    begun = guards.decide(asked(crashed(STEP_30, start=0)))
    assert begun.status is not None
    assert begun.status.action is not None
    acting = judged(
        replace(
            begun.status,
            phase=Phase.RECOVERING if step is Step.PROGRESS else Phase.SHUTTING_DOWN,
            action=replace(begun.status.action, step=step.value),
        ),
        since_s=NOW_S - 20,
    )
    turn = replace(asked(crashed(STEP_30)).context, status=acting)
    noted = advance.advance(turn)
    assert noted.status is not None
    assert [crash.start for crash in noted.status.crashes] == [0, 1]
    assert noted.status.phase is acting.phase, "it is written before anything follows from it"
    ended = advance.advance(replace(turn, status=noted.status))
    assert ended.status is not None
    assert ended.status.action is not None
    assert ended.status.action.step == Step.FINAL_STOP.value
    assert "the same traceback" in ended.status.message


def restarting(*crashes_record: CrashRecord, step: Step = Step.PROGRESS) -> Status:
    """The status of a job that is being restarted since its crash 20 s ago."""
    begun = guards.decide(asked(crashed(STEP_30, start=0))).status
    assert begun is not None
    assert begun.action is not None
    phase = Phase.RECOVERING if step is Step.PROGRESS else Phase.SHUTTING_DOWN
    action = replace(begun.action, step=step.value)
    return judged(
        replace(begun, phase=phase, action=action, crashes=crashes_record), since_s=NOW_S - 20
    )


@pytest.mark.parametrize("step", [Step.SETTLE, Step.RETURN, Step.PROGRESS])
def test_advance__a_repeated_crash_is_compared_when_its_log_was_read_to_the_end(step: Step) -> None:
    known = record(time_s=NOW_S - 21)
    early = crashed(STEP_30, age_s=0.4)
    turn = replace(asked(early).context, status=restarting(known, step=step))
    noted = advance.advance(turn).status
    assert noted is not None
    assert len(noted.crashes) == 2
    move = advance.advance(replace(turn, status=noted))
    assert (move.status, move.calls) == (None, ())
    assert move.wake_s is not None
    late = replace(crashed(replace(STEP_30, step=31)), now_s=early.now_s)
    read = advance.advance(replace(turn, status=noted, world=late)).status
    assert read is not None
    assert [crash.step for crash in read.crashes] == [30, 31]
    ended = advance.advance(replace(turn, status=read, world=late)).status
    assert ended is None or "the same traceback" not in ended.message


def test_advance__the_log_of_a_repeated_crash_is_awaited_and_not_for_long() -> None:
    status = restarting(record(time_s=NOW_S - 21))
    assert advance.advance(replace(asked(crashed()).context, status=status)).status is None
    late = advance.advance(replace(asked(crashed(age_s=4.0)).context, status=status)).status
    assert late is not None
    assert "again before any progress" in late.message
    unread = advance.advance(replace(asked(crashed()).context, status=replace(status, crashes=())))
    assert unread.status is not None, "nothing is known that it could repeat"


def test_advance__a_traceback_that_a_running_start_caught_ends_nothing() -> None:
    begun = guards.decide(asked(crashed(STEP_30, start=0)))
    assert begun.status is not None
    acting = judged(begun.status, since_s=NOW_S - 20)
    first, second = seen(log(1, STEP_30, start=1))
    turn = replace(asked(crashed()).context, status=acting, world=world((first, second)))
    assert turn.world.gang_verdict is not None
    move = advance.advance(turn)
    assert (move.status, move.calls) == (None, ())


def test_decide__the_class_of_a_crash_comes_when_its_log_was_read() -> None:
    first = guards.decide(asked(crashed(), armed=False))
    assert first.status is not None
    assert (first.status.phase, first.status.failure) == (Phase.OBSERVED, FailureClass.UNKNOWN)
    later = asked(crashed(BUG), armed=False)
    later = replace(later, context=replace(later.context, status=first.status))
    second = guards.decide(later)
    assert second.status is not None
    assert second.status.failure is FailureClass.PROGRAM
    assert EvidenceKind.LOG in {evidence.kind for evidence in second.status.evidence}
    third = guards.decide(replace(later, context=replace(later.context, status=second.status)))
    assert third.status is None, "and is written once"


def test_decide__an_event_says_where_the_cause_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(EventRecorder, "publish", lambda *words: said.append(words[4]))
    writer: Any = SimpleNamespace(event=print)
    story = ControllerTelemetry(ObjectCache(print), writer, lambda: NOW_S)
    begun = guards.decide(asked(crashed(STEP_30, start=0))).status
    assert begun is not None
    story.publish(Incident("ns", "inc", JobRef("Job", "j", "uid", "batch/v1"), {}), None, begun)
    assert said[0].startswith("inc: [program] in place: ")
    unknown = replace(begun, failure=FailureClass.UNKNOWN)
    story.publish(Incident("ns", "inc", JobRef("Job", "j", "uid", "batch/v1"), {}), None, unknown)
    assert said[-2].startswith("inc: in place: ")


# --- what a restart costs

AT_FAULT = LoggedProgress(step=1200, unsaved_steps=200, step_s=2.0, loss=1.5, first_step=1, first_s=5.0)  # fmt: skip
WORK = LoggedWork(1200, 200, None, 2.0, 1.5)


def restarted() -> Status:
    status = replace(Status(Phase.OPEN), work=WORK).enter(Phase.SHUTTING_DOWN, 1000.0, "x")
    return status.begin(RestartMethod.IN_PLACE, 1000.0)


def test_work_of__as_it_was_at_the_fault() -> None:
    found = work_of(Status(Phase.OPEN), AT_FAULT)
    assert found == WORK
    assert (WORK.lost_steps, WORK.lost_s) == (200, 400.0)
    assert work_of(Status(Phase.OPEN), LoggedProgress()) is None


def test_work_of__the_old_start_is_none_that_does_steps_again() -> None:
    assert work_of(restarted(), replace(AT_FAULT, first_s=999.0)) == WORK


def test_work_of__what_the_new_start_does_again() -> None:
    again = LoggedProgress(step=1010, first_step=1001, first_s=1020.0)
    found = work_of(restarted(), again)
    assert found is not None
    assert (found.redone_steps, found.lost_steps, found.lost_s) == (200, 200, 400.0)
    ahead = work_of(restarted(), replace(again, first_step=1300))
    assert ahead is not None
    assert ahead.redone_steps == 0
    known = replace(restarted(), work=found)
    assert work_of(known, replace(again, first_step=1)) is found
