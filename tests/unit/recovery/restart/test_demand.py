"""A restart that a person asks for: what is said and done, and until when the request holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import Approval, FaultPolicy, Level
from kcover_ebpf.api.incident import Incident, JobRef, Phase, RestartMethod, Status
from kcover_ebpf.api.order import Verb
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Certainty, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import guards
from kcover_ebpf.recovery.restart.demand import RestartDemand, Trigger, demanded, is_spent
from kcover_ebpf.tunables.controller import TRIGGER_S
from tests.unit.support.guard_inputs import ask, without_rule, world
from tests.unit.support.report_builders import NOW_S, case, pod, rank, report

DEMAND = RestartDemand(NOW_S - 1.0, "restart requested by an Event of kubectl-kcover: x")
TRAINS = GangVerdict(Verdict(VerdictKind.WORKING, Cause.TRAINING))


def asked(demand: RestartDemand = DEMAND, **more):
    return world(gang_verdict=demanded(TRAINS, demand), demand=demand, **more)


def test_demanded__a_healthy_job_is_stopped_and_killed_like_any_other() -> None:
    status = guards.decide(ask(asked())).status
    assert status is not None
    assert status.phase is Phase.SHUTTING_DOWN
    assert status.action is not None
    assert status.action.way is RestartMethod.IN_PLACE
    assert status.order is not None
    assert status.order.verb is Verb.STOP
    assert (status.kind, status.cause) == (VerdictKind.UNKNOWN, Cause.REQUESTED)
    assert status.message.startswith("in place: stopping all ranks")
    assert status.timeline[0].text == DEMAND.text


def test_demanded__a_fault_that_is_there_keeps_its_verdict_and_is_no_longer_waited_for() -> None:
    seen = (report("a", rank(0), rank(2)), report("b", rank(1, State.STOPPED), rank(3)))
    judged = merge(case(*seen))
    assert judged.verdict.kind.is_fault
    slow = replace(judged.verdict, certainty=Certainty.SUSPECTED, acts_at_s=None)
    found = demanded(GangVerdict(slow, depends=True), DEMAND)
    assert (found.verdict.kind, found.verdict.cause) == (slow.kind, slow.cause)
    assert found.culprit == judged.culprit
    status = guards.decide(ask(world(seen, gang_verdict=found, demand=DEMAND))).status
    assert status is not None
    assert status.phase is Phase.SHUTTING_DOWN
    assert status.evidence[0].text == DEMAND.text


def test_demanded__in_place_only_replaces_nothing() -> None:
    only = replace(DEMAND, method=RestartMethod.IN_PLACE)
    status = guards.decide(ask(asked(only, pods=without_rule()))).status
    assert status is not None
    assert status.phase is Phase.REFUSED
    assert "a restart in place was requested" in status.message
    assert "RestartAllContainers" in status.message
    status = guards.decide(ask(asked(pods=without_rule()))).status
    assert status is not None
    assert status.action is not None
    assert status.action.way is RestartMethod.REPLACE


@pytest.mark.parametrize(
    ("policy", "armed", "earlier", "phase", "text"),
    [
        (FaultPolicy(), False, 0, Phase.OBSERVED, "not armed"),
        (FaultPolicy(dry_run=True), True, 0, Phase.OBSERVED, "dry run"),
        (FaultPolicy(action=Level.OBSERVE), True, 0, Phase.OBSERVED, "Observe only"),
        (FaultPolicy(), True, 3, Phase.REFUSED, "the budget of 3 restarts is used up"),
        (FaultPolicy(approval=Approval.MANUAL), True, 0, Phase.DECIDED, "waiting for approval"),
    ],
)
def test_demanded__the_guards_hold(
    policy: FaultPolicy, armed: bool, earlier: int, phase: Phase, text: str
) -> None:
    status = guards.decide(ask(asked(), policy, earlier, armed=armed)).status
    assert status is not None
    assert status.phase is phase
    assert text in status.message


def test_decide__a_request_that_expired_says_so() -> None:
    request = ask(asked())
    waiting = guards.decide(replace(request, approved=False)).status
    assert waiting is not None
    turn = replace(
        request.context,
        status=replace(waiting, phase=Phase.DECIDED),
        world=replace(request.context.world, gang_verdict=TRAINS, demand=None),
    )
    status = guards.decide(replace(request, context=turn, stable_s=100.0)).status
    assert status is not None
    assert status.phase is Phase.OBSERVED
    assert "expired" in status.message


@pytest.mark.parametrize(
    ("phase", "last_s", "spent"),
    [
        (Phase.SHUTTING_DOWN, DEMAND.at_s - 9.0, True),
        (Phase.RECOVERING, DEMAND.at_s + 1.0, True),
        (Phase.RECOVERED, DEMAND.at_s + 1.0, True),
        (Phase.RECOVERED, DEMAND.at_s - 1.0, False),
        (Phase.FAILED, DEMAND.at_s + 1.0, True),
        (Phase.DECIDED, DEMAND.at_s + 1.0, False),
        (Phase.OBSERVED, DEMAND.at_s + 1.0, False),
        (Phase.REFUSED, DEMAND.at_s + 1.0, False),
    ],
)
def test_is_spent__a_restart_answers_every_request_made_before_its_end(
    phase: Phase, last_s: float, spent: bool
) -> None:
    status = Status(Phase.OPEN).enter(phase, last_s, "x")
    incident = Incident("ns", "i", JobRef("Job", "j", "u"), {}, status=status)
    assert is_spent(DEMAND, [incident]) is spent


@pytest.mark.parametrize(
    ("about", "created_s", "by_program", "by_person"),
    [
        ("uid-0", (5.0, 5.0), True, True),
        ("gone", (-60.0, -60.0), True, True),
        ("gone", (-60.0, 5.0), False, True),
        ("gone", (5.0, 5.0), False, False),
        ("gone", (-1.0, -1.0), False, False),
        ("stray", (-60.0, -60.0), False, False),
    ],
)
def test_trigger__is_about_the_run_that_it_was_written_for(
    about: str, created_s: tuple[float, float], *, by_program: bool, by_person: bool
) -> None:
    """`created_s`: when two pods of the run were created, in seconds after the Event."""
    run = [replace(pod(number), created_s=NOW_S + at_s) for number, at_s in enumerate(created_s)]
    said = Trigger(NOW_S, TRAINS, about)
    assert said.is_about(run, {"stray"}) is by_program
    assert replace(said, demand=DEMAND).is_about(run, {"stray"}) is by_person


@pytest.mark.parametrize(
    ("later_s", "is_over"),
    [(0.0, False), (TRIGGER_S - 1.0, False), (TRIGGER_S, True), (-1.0, False), (-60.0, True)],
)
def test_trigger__is_over_once_it_is_old_or_its_age_is_not_known(
    later_s: float, *, is_over: bool
) -> None:
    assert Trigger(NOW_S, TRAINS, "uid-0").is_over(NOW_S + later_s, ()) is is_over
