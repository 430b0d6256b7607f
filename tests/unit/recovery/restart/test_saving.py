"""What is done for the work of a job before it is ended: signals, running checkpoints, work that was not saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy, SavePolicy
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.api.log_report import AnnouncedPhase, ContainerLog, PrintedProgress
from kcover_ebpf.api.order import SaveSignal, Verb
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.verdict import Cause, Certainty
from kcover_ebpf.recovery.restart import advance, guards
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.recovery.restart.machine import RestartContext
from tests.unit.support.guard_inputs import SEEN, ask, world
from tests.unit.support.report_builders import NOW_S, SELECTOR, pod

HEALTHY, CULPRIT = pod(0).uid, pod(1).uid
ASKING = FaultPolicy(save=SavePolicy(signal=SaveSignal.USR1, seconds=60))


def logging(
    progress: PrintedProgress | None = None,
    uid: str = HEALTHY,
    phase: AnnouncedPhase | None = None,
) -> tuple[ReceivedReport, ...]:
    """The reports of a stopped rank; the log of one container shows this, and they are of this moment."""
    log = ContainerLog(uid, "main", 0, progress=progress, phase=phase)
    first, *others = SEEN
    return replace(first, report=replace(first.report, logs=(log,))), *others


def decided(seen: tuple[ReceivedReport, ...], policy: FaultPolicy, **more: Any) -> Status:
    """What is decided about the stopped rank 1 at first."""
    move = guards.decide(ask(replace(world(SEEN), reports=seen, **more), policy))
    assert move.status is not None
    return move.status


def later(
    status: Status,
    seconds: float,
    seen: tuple[ReceivedReport, ...],
    policy: FaultPolicy,
    **more: Any,
) -> Status | None:
    """What is written so much later; None: it is waited for."""
    now_s = NOW_S + seconds
    seen = tuple(replace(received, arrived_s=now_s) for received in seen)
    known: RestartInput = replace(world(SEEN), now_s=now_s, reports=seen, **more)
    context = RestartContext(status, known, policy, "inc", "ns/inc", SELECTOR)
    return advance.advance(context).status


def step(status: Status | None) -> str | None:
    return status.action.step if status is not None and status.action is not None else None


def test_saving__ranks_are_stopped_at_once_where_nothing_is_saved_and_none_is_asked_for() -> None:
    assert step(decided(logging(PrintedProgress(step=7)), FaultPolicy())) == "Stop"


def test_saving__healthy_ranks_get_the_signal_of_the_policy_and_the_culprit_none() -> None:
    status = decided(logging(), ASKING)
    assert (status.phase, step(status)) == (Phase.SHUTTING_DOWN, "Save")
    assert status.order is not None
    assert (status.order.verb, status.order.signal) == (Verb.SAVE, SaveSignal.USR1)
    assert status.order.spared == (CULPRIT,)
    assert status.order.created_before_s < NOW_S + 1


def test_saving__a_restart_begins_once_a_checkpoint_is_complete_that_was_asked_for() -> None:
    status = decided(logging(), ASKING)
    before = logging(PrintedProgress(checkpoint_step=7, checkpoint_age_s=9.0))
    assert later(status, 5, before, ASKING) is None, "it was complete before"
    saved = logging(PrintedProgress(checkpoint_step=8, checkpoint_age_s=1.0))
    begun = later(status, 5, saved, ASKING)
    assert step(begun) == "Stop"
    assert begun is not None
    assert begun.order is not None
    assert begun.order.verb is Verb.STOP
    assert any("a checkpoint is complete" in (line.text or "") for line in begun.timeline)


def test_saving__a_restart_begins_when_the_time_of_the_policy_is_over() -> None:
    status = decided(logging(), ASKING)
    assert later(status, 59, logging(), ASKING) is None
    begun = later(status, 60, logging(), ASKING)
    assert step(begun) == "Stop"
    assert begun is not None
    assert any(
        "no checkpoint was complete within 60 s" in (line.text or "") for line in begun.timeline
    )


@pytest.mark.parametrize(
    ("counts", "waits"), [((0, 0), False), ((1, 0), True), ((0,), True)], ids=str
)
def test_saving__is_not_awaited_where_all_nodes_say_that_no_rank_handles_the_signal(
    counts: tuple[int, ...], waits: bool
) -> None:
    status = decided(logging(), ASKING)
    assert status.order is not None
    seen = list(logging())
    for index, count in enumerate(counts):
        ack = Ack(status.order.id, Verb.SAVE, AckResult.DONE, count)
        seen[index] = replace(seen[index], report=replace(seen[index].report, acks=(ack,)))
    begun = later(status, 1, tuple(seen), ASKING)
    assert (begun is None) is waits


SAVING = PrintedProgress(step=9, saving_age_s=4.0)
CHECKPOINT = AnnouncedPhase("checkpoint", 100.0)


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        pytest.param(logging(SAVING), "Save", id="a healthy rank saves by its log"),
        pytest.param(logging(phase=CHECKPOINT), "Save", id="it announced the phase"),
        pytest.param(
            logging(phase=replace(CHECKPOINT, name="evaluation")), "Stop", id="another phase"
        ),
        pytest.param(
            logging(phase=replace(CHECKPOINT, refused=True)), "Stop", id="a phase that is refused"
        ),
        pytest.param(logging(SAVING, CULPRIT), "Stop", id="the culprit saves: that is the fault"),
        pytest.param(
            logging(replace(SAVING, saving_age_s=31.0)), "Stop", id="begun longer ago than awaited"
        ),
    ],
)
def test_saving__a_checkpoint_that_a_healthy_rank_is_writing_is_awaited(
    seen: tuple[ReceivedReport, ...], wanted: str
) -> None:
    status = decided(seen, FaultPolicy())
    assert step(status) == wanted
    if wanted == "Save":
        assert status.order is None, "no rank is signalled"
        assert later(status, 5, seen, FaultPolicy()) is None
        assert step(later(status, 30, seen, FaultPolicy())) == "Stop"
        assert step(later(status, 5, logging(), FaultPolicy())) == "Stop", "it saves no more"


def test_saving__a_policy_that_waits_no_second_waits_for_no_checkpoint() -> None:
    assert step(decided(logging(SAVING), FaultPolicy(save=SavePolicy(seconds=0)))) == "Stop"


def test_saving__nothing_is_ended_where_the_ranks_move_again_after_a_checkpoint() -> None:
    status = decided(logging(SAVING), FaultPolicy())
    over = later(status, 3, logging(), FaultPolicy(), gang_verdict=None)
    assert over is not None
    assert (over.phase, step(over), over.restarts) == (Phase.OBSERVED, "Done", ())


def test_saving__a_restart_that_was_called_off_begins_anew_with_new_orders() -> None:
    first = decided(logging(SAVING), FaultPolicy())
    over = later(first, 3, logging(), FaultPolicy(), gang_verdict=None)
    assert over is not None
    request = ask(replace(world(SEEN), reports=logging(SAVING)))
    context = replace(request.context, status=over)
    again = guards.decide(replace(request, context=context)).status
    assert again is not None
    assert (again.phase, step(again)) == (Phase.SHUTTING_DOWN, "Save")
    numbers = [status.action.attempt for status in (first, over, again) if status.action]
    assert numbers == [1, 1, 2]
    begun = later(again, 30, logging(SAVING), FaultPolicy())
    assert begun is not None
    assert begun.order is not None
    assert begun.order.id == "inc-3-stop"


def test_saving__what_ranks_do_that_were_asked_to_save_is_no_progress() -> None:
    status = decided(logging(), ASKING)
    assert later(status, 3, logging(), ASKING, gang_verdict=None) is None


def inferred(silent_s: float) -> GangVerdict:
    """An inferred fault whose own patience is over."""
    gang_verdict = world(SEEN).gang_verdict
    assert gang_verdict is not None
    verdict = replace(
        gang_verdict.verdict,
        cause=Cause.BLOCKED_UNKNOWN,
        certainty=Certainty.INFERRED,
        since_s=NOW_S - silent_s,
        acts_at_s=NOW_S - 1,
    )
    return GangVerdict(verdict)


@pytest.mark.parametrize(
    ("silent_s", "complete_age_s", "bound_s", "waits"),
    [
        pytest.param(20, 300, 0, False, id="the policy gives no patience for work"),
        pytest.param(20, 300, 120, True, id="much work would be lost"),
        pytest.param(20, 30, 120, False, id="less work would be lost than was waited"),
        pytest.param(130, 3000, 120, False, id="no longer than the bound"),
        pytest.param(20, None, 120, False, id="no checkpoint is known"),
    ],
)
def test_saving__work_that_was_not_saved_buys_an_inferred_fault_some_silence(
    silent_s: float, complete_age_s: float | None, bound_s: int, waits: bool
) -> None:
    progress = PrintedProgress(step=9, checkpoint_step=5, checkpoint_age_s=complete_age_s)
    policy = FaultPolicy(save=SavePolicy(unsaved_seconds=bound_s))
    status = decided(logging(progress), policy, gang_verdict=inferred(silent_s))
    assert (status.phase is Phase.OPEN) is waits, status.message
    if waits:
        assert "280 s of work since the last complete checkpoint would be lost" in status.message
        assert "ended after 120 s of silence" in status.message


def test_saving__work_that_was_not_saved_keeps_nothing_from_an_announced_fault() -> None:
    progress = PrintedProgress(step=9, checkpoint_step=5, checkpoint_age_s=3000.0)
    policy = FaultPolicy(save=SavePolicy(unsaved_seconds=600))
    assert step(decided(logging(progress), policy)) == "Stop", "a stopped rank is proven"


def test_saving__a_replacement_waits_as_well() -> None:
    ways = (RestartMethod.REPLACE,)
    policy = replace(ASKING, ways=ways)
    status = decided(logging(), policy)
    assert step(status) == "Save"
    assert step(later(status, 60, logging(), policy)) == "Suspend"


def test_saving__the_status_names_no_more_nodes_than_the_definition_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RestartInput, "nodes", tuple(f"n{number}" for number in range(2001)))
    assert len(decided(logging(), ASKING).nodes) == 2000
