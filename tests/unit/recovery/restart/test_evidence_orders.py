"""Evidence is kept however a job comes to its end: which order each kind of end has, and that agents obey it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.agent.orders.order_scope import is_one_in
from kcover_ebpf.api.fault_policy import FaultPolicy, Level
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.api.order import Verb
from kcover_ebpf.archive.node_part import EvidenceTrigger
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.restart.context import RestartInput
from kcover_ebpf.recovery.restart.guards import ClusterLimits, RestartRequest, decide
from kcover_ebpf.recovery.restart.replacement import suspend
from tests.unit.support.guard_inputs import SEEN, ask, without_rule, world
from tests.unit.support.report_builders import local, rank, report

CAP_S = FaultPolicy().settings().act_cap_s


def seen(kind: VerdictKind, cause: Cause) -> tuple[ReceivedReport, ...]:
    verdict = local(kind, cause, 1, 1.0, EvidenceKind.EVENT)
    return SEEN[0], report("b", rank(1), rank(3), verdict=verdict)


def suspected(lasted_s: float, policy: FaultPolicy | None = None, **more) -> RestartRequest:
    """A stall that may be none: no date is set on which the job is ended."""
    found = world()
    assert found.gang_verdict is not None
    verdict = found.gang_verdict.verdict
    verdict = replace(
        verdict,
        certainty=Certainty.SUSPECTED,
        acts_at_s=None,
        acts_why="nothing proves it",
        since_s=verdict.time_s - lasted_s,
    )
    found = replace(found, gang_verdict=replace(found.gang_verdict, verdict=verdict))
    return ask(found, policy, **more)


def replaced(restart_input: RestartInput) -> RestartRequest:
    """Of a gang that cannot be restarted in place."""
    return ask(replace(restart_input, pods=without_rule()))


CRASH = world(seen(VerdictKind.CRASHED, Cause.KILLED))
DEVICE = world(seen(VerdictKind.DEVICE_FAULT, Cause.DEVICE))
KEPT = {
    "a hang, in place": (ask(world()), Phase.SHUTTING_DOWN, Verb.STOP),
    "a device fault, in place": (ask(DEVICE), Phase.SHUTTING_DOWN, Verb.STOP),
    "a hang, replaced": (replaced(world()), Phase.SHUTTING_DOWN, Verb.SNAPSHOT),
    "a device fault, replaced": (replaced(DEVICE), Phase.SHUTTING_DOWN, Verb.SNAPSHOT),
    "a crash that the kubelets restart": (ask(CRASH), Phase.SHUTTING_DOWN, Verb.SNAPSHOT),
    "a crash, its budget used up": (
        ask(replace(CRASH, pods=without_rule()), earlier=10), Phase.REFUSED, Verb.SNAPSHOT,
    ),
    "action: Snapshot": (
        ask(world(), FaultPolicy(action=Level.SNAPSHOT)), Phase.OBSERVED, Verb.SNAPSHOT,
    ),
    "a device fault, action: Snapshot": (
        ask(DEVICE, FaultPolicy(action=Level.SNAPSHOT)), Phase.OBSERVED, Verb.SNAPSHOT,
    ),
    "a suspicion that has lasted": (suspected(CAP_S), Phase.OPEN, Verb.SNAPSHOT),
}  # fmt: skip


def decided(request: RestartRequest) -> Status:
    status = decide(request).status
    assert status is not None
    return status


@pytest.mark.parametrize("name", KEPT)
def test_decide__each_end_has_an_order_that_agents_obey(name: str) -> None:
    request, phase, verb = KEPT[name]
    status = decided(request)
    assert status.phase is phase
    assert status.order is not None
    assert status.order.verb is verb
    assert is_one_in(status.order, status.phase.value)
    assert EvidenceTrigger(verb.value) is not EvidenceTrigger.UNKNOWN


def test_decide__what_is_replaced_has_its_order_before_its_pods_are_marked() -> None:
    """Its ranks end with the mark; the order is still there when the job has been suspended."""
    request = replaced(world())
    status = decided(request)
    assert status.action is not None
    assert (status.action.way, status.action.step) == (RestartMethod.REPLACE, "Suspend")
    found = request.context.world
    assert found.top is not None
    assert found.top.target is not None
    target = replace(found.top.target, suspended=True, suspended_by=request.context.mark)
    suspended = replace(found, top=replace(found.top, target=target))
    after = suspend(replace(request.context, status=status, world=suspended)).status
    assert after is not None
    assert after.action is not None
    assert after.action.step == "Terminate"
    assert after.order == status.order


def test_decide__a_suspicion_has_its_order_once_and_stays_open() -> None:
    request = suspected(CAP_S)
    status = decided(request)
    again = replace(request, context=replace(request.context, status=status))
    assert decide(again).status is None
    ack = Ack("inc-snapshot", Verb.SNAPSHOT, AckResult.DONE, bundle="/state/x")
    reported = replace(SEEN[0], report=replace(SEEN[0].report, acks=(ack,)))
    found = replace(again.context.world, reports=(reported, SEEN[1]))
    kept = decided(replace(again, context=replace(again.context, world=found)))
    assert (kept.phase, kept.bundles) == (Phase.OPEN, ("a:/state/x",))


@pytest.mark.parametrize(
    "request_",
    [
        suspected(CAP_S - 1.0),
        suspected(CAP_S, armed=False),
        suspected(CAP_S, limits=ClusterLimits(dry_run=True)),
        suspected(CAP_S, FaultPolicy(action=Level.OBSERVE)),
    ],
    ids=["too early", "not armed", "dry run", "observe"],
)
def test_decide__no_other_suspicion_has_one(request_: RestartRequest) -> None:
    status = decided(request_)
    assert (status.phase, status.order) == (Phase.OPEN, None)


def test_decide__each_crash_that_the_kubelets_restart_has_an_order_with_its_own_name() -> None:
    first = decided(ask(CRASH))
    request = ask(CRASH)
    later = replace(request.context.status, restarts=first.restarts)
    second = decided(replace(request, context=replace(request.context, status=later)))
    assert first.order is not None
    assert second.order is not None
    assert first.order.id != second.order.id
    assert all(order.id.startswith("inc-") for order in (first.order, second.order))
