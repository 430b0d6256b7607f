"""The guards before a restart: each one alone stops it, and says why."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from kcover_ebpf.api import incident
from kcover_ebpf.api.fault_policy import Approval, FaultPolicy, Level
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.api.incident_parts import LoggedWork
from kcover_ebpf.api.order import Verb
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.model.verdict import Cause, Certainty, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.recovery.restart.guards import (
    ClusterLimits,
    RestartRequest,
    decide,
    describe,
    method_of,
)
from kcover_ebpf.settings import RestartBudget
from tests.unit.support.guard_inputs import SEEN, ask, top, without_rule, world
from tests.unit.support.report_builders import LOCK, NOW_S, SELECTOR, local, rank, report

CRASH = local(VerdictKind.CRASHED, Cause.KILLED, 1, 1.0, EvidenceKind.EVENT)
CRASHED = (SEEN[0], report("b", rank(1), rank(3), verdict=CRASH))


def weak(gang_verdict: GangVerdict | None) -> GangVerdict:
    assert gang_verdict is not None
    only = (Evidence(EvidenceKind.TIME, "for long"),)
    said = replace(gang_verdict.verdict, evidence=only, certainty=Certainty.SUSPECTED)
    return replace(gang_verdict, verdict=replace(said, acts_at_s=None, acts_why="a suspicion"))


AHEAD = (SEEN[0], replace(SEEN[1], report=replace(SEEN[1].report, time_s=NOW_S + 9.5)))
STOPS = {
    "not armed": (ask(world(), armed=False), Phase.OBSERVED, "not armed"),
    "the policy only observes": (
        ask(world(), FaultPolicy(action=Level.OBSERVE)), Phase.OBSERVED, "allows Observe only",
    ),
    "dry run of the policy": (
        ask(world(), FaultPolicy(dry_run=True)), Phase.OBSERVED, "dry run: would restart it (InPlace)",
    ),
    "dry run of the cluster": (ask(world(), limits=ClusterLimits(dry_run=True)), Phase.OBSERVED, "dry run"),
    "the job is over": (ask(world(top=top(ended="Failed"))), Phase.OBSERVED, "the job is Failed"),
    "the job is gone": (ask(world(top=None)), Phase.OBSERVED, "the job is gone"),
    "a suspicion": (
        ask(world(gang_verdict=weak(world().gang_verdict))), Phase.OPEN, "suspected: a suspicion",
    ),
    "a node is silent": (
        ask(world((report("b", rank(1, State.LOCK, 7, stack=LOCK), rank(3)),))),
        Phase.OPEN, "waiting: node a did not report",
    ),
    "a node that has not spoken since": (
        ask(world((SEEN[0], report("b", rank(1, State.STOPPED, 3.8), rank(3, State.STOPPED, 3.8),
                                   arrived_s=NOW_S - 2.4)))),
        Phase.OPEN, "waiting: whether it is still so on b",
    ),
    "approval": (
        ask(world(), FaultPolicy(approval=Approval.MANUAL)), Phase.DECIDED, "kubectl kcover approve inc",
    ),
    "the breaker": (ask(world(), limits=ClusterLimits(acting=20)), Phase.DECIDED, "20 jobs"),
    "the breaker of the namespace": (
        ask(world(), limits=ClusterLimits(acting_here=5, most_here=5)),
        Phase.DECIDED,
        "5 jobs of this namespace",
    ),
    "the pause": (
        ask(world(), earlier=1, last_restart_s=NOW_S - 3), Phase.DECIDED, "waiting: back-off before restart",
    ),
    "the budget": (ask(world(), earlier=3), Phase.REFUSED, "budget of 3 restarts"),
    "bare pods": (
        ask(world(top=top(method=None, target=None, ref=incident.JobRef("Pod", "p", "u", "v1")),
                  pods=without_rule())),
        Phase.REFUSED, "bare pods",
    ),
    "an unknown kind": (
        ask(world(top=top(method=None, target=None, ref=incident.JobRef("Deployment", "d", "u", "apps/v1")),
                  pods=without_rule())),
        Phase.REFUSED, "Deployment is not a kind",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "phase", "words"), STOPS.values(), ids=STOPS)
def test_decide__each_guard_stops_a_restart(asked, phase, words):
    move = decide(asked)
    assert move.status is not None
    assert (move.status.phase, words in move.status.message) == (phase, True), move.status.message
    assert move.calls == ()
    assert move.status.restarts == ()
    again = decide(replace(asked, context=replace(asked.context, status=move.status)))
    assert again.status is None, "the same is not written every second"


METHODS = {
    "in place where every pod carries the rule": (ask(world()), RestartMethod.IN_PLACE, "Stop"),
    "replaced where a pod does not": (ask(world(pods=without_rule())), RestartMethod.REPLACE, "Suspend"),
    "replaced where a node has no agent": (ask(world(agents=frozenset("a"))), RestartMethod.REPLACE, "Suspend"),
    "replaced where the policy says so": (
        ask(world(), FaultPolicy(ways=(RestartMethod.REPLACE,))), RestartMethod.REPLACE, "Suspend",
    ),
    "replaced where the job would pay for it": (
        ask(world(top=top(costs_in_place=True))), RestartMethod.REPLACE, "Suspend",
    ),
    "a crash restarts by itself": (ask(world(CRASHED)), RestartMethod.IN_PLACE, "Settle"),
    "a second crash waits outside": (
        ask(world(CRASHED), earlier=1, last_restart_s=NOW_S - 3), RestartMethod.REPLACE, "Suspend",
    ),
    "a second crash much later restarts by itself": (
        ask(world(CRASHED), earlier=1, last_restart_s=NOW_S - 300), RestartMethod.IN_PLACE, "Settle",
    ),
    "the last crash is the end": (ask(world(CRASHED), earlier=3), RestartMethod.NONE, "FinalStop"),
    "a person may go beyond the budget": (ask(world(), earlier=3, approved=True), RestartMethod.IN_PLACE, "Stop"),
    "up to the operator's bound": (ask(world(), earlier=9, approved=True), RestartMethod.IN_PLACE, "Stop"),
    "after the pause": (ask(world(), earlier=1, last_restart_s=NOW_S - 11), RestartMethod.IN_PLACE, "Stop"),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "method", "step"), METHODS.values(), ids=METHODS)
def test_decide__the_method_that_is_taken(asked, method, step):
    status = decide(asked).status
    assert status is not None
    assert status.phase is Phase.SHUTTING_DOWN
    assert status.action is not None
    assert (status.action.way, status.action.step) == (method, step)
    assert [moment.phase for moment in status.timeline] == ["Open", "Decided", "ShuttingDown"][
        : len(status.timeline)
    ] or method is RestartMethod.NONE
    if step == "Stop":
        assert status.order is not None
        assert status.order.verb is Verb.STOP
        assert status.order.created_before_s == NOW_S - 309


def test_decide__a_verdict_must_hold_before_it_counts():
    assert decide(ask(world(), stable_s=0.1)).status is None
    assert decide(ask(world(CRASHED), stable_s=0.0)).status is not None, (
        "what was announced is true at once"
    )


def test_decide__a_fault_that_passes_is_reported_as_over():
    asked = ask(world())
    calm = replace(
        asked, context=replace(asked.context, world=replace(asked.context.world, gang_verdict=None))
    )
    assert decide(replace(calm, stable_s=1.0)).status is None
    status = decide(replace(calm, stable_s=9.0)).status
    assert status is not None
    assert (status.phase, status.message) == (
        Phase.OBSERVED,
        "resolved on its own before any action",
    )


@pytest.mark.parametrize(("earlier", "pause_s"), [(0, 0), (1, 10), (2, 20), (3, 40), (30, 600)])
def test_restart_budget__the_pause_doubles_up_to_its_limit(earlier, pause_s):
    assert RestartBudget().pause_s(earlier) == pause_s


def test_decide__a_node_whose_clock_is_ahead_is_given_no_order_that_must_be_heard_in_time() -> None:
    """It would hear each order to stop after its end: the gang is replaced, which needs no clock."""
    found = decide(ask(world(AHEAD), armed=True)).status
    assert found is not None
    assert found.action is not None
    assert found.action.way is RestartMethod.REPLACE
    slow = replace(SEEN[1], report=replace(SEEN[1].report, time_s=NOW_S - 60.0))
    behind = decide(ask(world((SEEN[0], slow)))).status
    assert behind is not None
    assert behind.action is not None
    assert behind.action.way is RestartMethod.IN_PLACE, (
        "it hears orders, and its agent bounds a stop by itself"
    )


def test_decide__a_policy_that_stops_at_a_snapshot_has_evidence_kept_once() -> None:
    policy = FaultPolicy(action=Level.SNAPSHOT)
    asked = ask(world(), policy)
    found = decide(asked).status
    assert found is not None
    assert found.phase is Phase.OBSERVED
    assert found.order is not None
    assert (found.order.verb, found.order.selector) == (Verb.SNAPSHOT, SELECTOR)
    again = replace(asked, context=replace(asked.context, status=found))
    assert decide(again).status is None, "it is asked for once"
    ack = Ack("inc-snapshot", Verb.SNAPSHOT, AckResult.DONE, bundle="/state/x")
    reported = replace(SEEN[0], report=replace(SEEN[0].report, acks=(ack,)))
    kept = decide(
        replace(again, context=replace(again.context, world=world((reported, SEEN[1]))))
    ).status
    assert kept is not None
    assert kept.bundles == ("a:/state/x",)
    assert kept.timeline == found.timeline, "where evidence lies is no line of the story"


def patient(acts_at_s: float, status: Status | None = None) -> RestartRequest:
    """A fault that is acted on at this time, unless something moves."""
    hung = world().gang_verdict
    assert hung is not None
    verdict = replace(hung.verdict, acts_at_s=acts_at_s, acts_why="no silence was longer")
    asked = ask(world(gang_verdict=replace(hung, verdict=verdict)))
    return replace(asked, context=replace(asked.context, status=status)) if status else asked


def test_decide__the_seconds_that_are_left_are_no_line_of_the_story() -> None:
    found = decide(patient(NOW_S + 90.0)).status
    assert found is not None
    assert "it is ended in" in found.message
    assert decide(patient(NOW_S + 88.0, found)).status is None
    later = decide(patient(NOW_S + 60.0, found)).status
    assert later is not None, "the time itself is another one"


def test_decide__a_time_that_older_definitions_drop_is_not_written_again_and_again() -> None:
    found = decide(patient(NOW_S + 90.0)).status
    assert found is not None
    assert found.verdict is not None
    as_read = replace(found, verdict=replace(found.verdict, acts_at_s=None, certainty=None))
    assert decide(patient(NOW_S + 89.0, as_read)).status is None


def test_describe__a_fault_that_went_by_is_not_the_beginning_of_the_next_one() -> None:
    hung = world().gang_verdict
    assert hung is not None
    begin_s, work = hung.verdict.since_s, LoggedWork(step=24)
    status = Status(phase=Phase.OBSERVED, verdict=hung.verdict, work=work)
    later = replace(hung, verdict=replace(hung.verdict, since_s=begin_s + 500.0))
    same = describe(status, later, ("a",))
    assert (same.since_s, same.work) == (begin_s, work)
    other = describe(replace(status, closed_s=NOW_S), later, ("a",))
    assert (other.since_s, other.work) == (begin_s + 500.0, None)


def test_describe__what_the_nodes_knew_of_the_job_stays_when_the_job_has_left_them() -> None:
    hung = world().gang_verdict
    assert hung is not None
    known = SilenceSummary(24 * 3600, 1, 70.0, step_s=4.5)
    first = describe(Status(phase=Phase.OPEN), replace(hung, silences=known), ("a",))
    moved = describe(first, replace(hung, silences=SilenceSummary(60.0)), ("b",))
    assert first.silences == moved.silences == known


@pytest.mark.parametrize(
    "asked",
    [
        ask(world(), FaultPolicy(action=Level.SNAPSHOT), armed=False),
        ask(world(), FaultPolicy(action=Level.SNAPSHOT, dry_run=True)),
        ask(world(), FaultPolicy(action=Level.SNAPSHOT), limits=ClusterLimits(dry_run=True)),
        ask(world(), FaultPolicy(action=Level.OBSERVE)),
    ],
    ids=["not armed", "dry run", "dry run of the cluster", "observe"],
)
def test_decide__nothing_is_kept_where_nothing_is_to_be_done(asked: RestartRequest) -> None:
    found = decide(asked).status
    assert found is not None
    assert (found.phase, found.order) == (Phase.OBSERVED, None)


def test_decide__of_what_is_not_restarted_evidence_is_kept() -> None:
    """A job whose budget is used up, and one that has failed already: its pods and their logs may go at any moment."""
    spent = decide(ask(world(), earlier=10)).status
    assert spent is not None
    assert spent.phase is Phase.REFUSED
    assert spent.order is not None
    assert spent.order.verb is Verb.SNAPSHOT
    failed = world()
    assert failed.top is not None
    failed = replace(failed, top=replace(failed.top, ended="Failed"))
    crashed = decide(ask(failed)).status
    assert crashed is not None
    assert crashed.phase is Phase.OBSERVED
    assert crashed.order is not None
    assert crashed.order.verb is Verb.SNAPSHOT


@pytest.mark.parametrize("earlier", [10, 50])
def test_decide__who_approves_goes_no_further_than_the_operator(earlier: int) -> None:
    status = decide(ask(world(), earlier=earlier, approved=True)).status
    assert status is not None
    assert status.phase is Phase.REFUSED
    assert "the budget of 10 restarts is used up" in status.message


def test_decide__who_approves_waits_for_the_operators_shortest_pause() -> None:
    asked = ask(world(), earlier=5, approved=True, last_restart_s=NOW_S - 1)
    asked = replace(asked, limits=replace(asked.limits, shortest_pause_s=10.0))
    assert decide(asked).wake_s == pytest.approx(9.0)
    again = replace(asked, last_restart_s=NOW_S - 11)
    status = decide(again).status
    assert status is not None
    assert status.phase is Phase.SHUTTING_DOWN


def test_decide__a_fault_that_only_grows_older_is_not_written_again() -> None:
    """Its sentences count the seconds: 24 writes in three seconds of an incident that waited for its time."""
    restart_input = world()
    assert restart_input.gang_verdict is not None
    verdict = replace(restart_input.gang_verdict.verdict, kind=VerdictKind.UNKNOWN)

    def after(lasted_s: float) -> incident.Status | None:
        said = Evidence(EvidenceKind.STATE, f"rank 1 is stopped, for {lasted_s:.1f} s")
        older = replace(verdict, time_s=NOW_S + lasted_s, evidence=(said,))
        later = replace(restart_input, now_s=NOW_S + lasted_s, gang_verdict=GangVerdict(older))
        known = ask(replace(later, gang_verdict=GangVerdict(verdict))).context.status
        asked = ask(later)
        return decide(replace(asked, context=replace(asked.context, status=known))).status

    assert [after(3.3 + 0.1 * number) for number in range(5)] == [None] * 5


@pytest.mark.parametrize(
    ("restart_input", "method"),
    [
        (world(), RestartMethod.IN_PLACE),
        (world(pods=without_rule()), RestartMethod.REPLACE),
    ],
)
def test_method_of__the_order_of_the_list_has_no_effect(
    restart_input: RestartInput, method: RestartMethod
) -> None:
    orders = permutations((RestartMethod.IN_PLACE, RestartMethod.REPLACE))
    requests = [ask(restart_input, FaultPolicy(ways=order)) for order in orders]
    assert [method_of(request.context)[0] for request in requests] == [method, method]
