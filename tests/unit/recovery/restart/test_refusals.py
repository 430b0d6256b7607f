"""Calls that the API server refuses: a restart reports that, tries again, and ends; in a simulated cluster."""

from __future__ import annotations

import pytest

from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.recovery.restart import machine
from kcover_ebpf.recovery.restart.context import Call, Delete, Suspension
from kcover_ebpf.tunables.recovery import CALL_REFUSED_S
from tests.unit.support.simulated_cluster import Sim
from tests.unit.support.simulated_world import START_S

REPLACE = RestartMethod.REPLACE


def is_suspending(call: Call) -> bool:
    return isinstance(call, Suspension) and call.suspended


def texts(status: Status) -> list[str]:
    return [moment.text or "" for moment in status.timeline]


def test_refusals__a_job_that_may_not_be_suspended_stays_as_it_is_and_the_incident_says_why() -> (
    None
):
    sim = Sim(refused=is_suspending)
    before = {pod.uid for pod in sim.pods}
    sim.begin(REPLACE)
    sim.reconcile()
    noted = "refused by the API server, trying again: Suspension: 403 denied"
    assert sim.read().message == noted, "at once"
    status = sim.run(CALL_REFUSED_S + 10)
    assert status.phase is Phase.FAILED
    assert "the job cannot be suspended: Suspension: 403 denied" in status.message
    assert texts(status).count(noted) == 1
    assert {pod.uid for pod in sim.pods} == before
    assert sim.ended is None
    assert not sim.suspended


def test_refusals__a_call_that_is_allowed_again_in_time_is_made() -> None:
    sim = Sim()
    sim.refused = lambda call: is_suspending(call) and sim.now_s < START_S + CALL_REFUSED_S / 2
    sim.begin(REPLACE)
    status = sim.run()
    assert status.phase is Phase.RECOVERED, sim.log
    assert not sim.suspended


def test_refusals__a_job_that_we_suspended_is_resumed_however_long_that_is_refused() -> None:
    sim = Sim()
    sim.refused = lambda call: (
        isinstance(call, Suspension)
        and (not call.suspended and sim.now_s < START_S + 10 * CALL_REFUSED_S)
    )
    sim.begin(REPLACE)
    status = sim.run(20 * CALL_REFUSED_S)
    assert status.phase is Phase.RECOVERED, sim.log
    assert not sim.suspended
    assert any("trying again: Suspension: 403" in text for text in texts(status))


def test_refusals__pods_that_may_not_be_deleted_stay() -> None:
    sim = Sim("delete", refused=lambda call: isinstance(call, Delete))
    sim.begin(REPLACE)
    status = sim.run()
    assert status.phase is Phase.FAILED
    assert status.message == "the pods cannot be deleted: Delete: 403 denied"


def test_refusals__a_job_that_would_crash_for_ever_and_may_not_be_suspended() -> None:
    sim = Sim(refused=is_suspending)
    status = Status(Phase.DECIDED).enter(Phase.OPEN, sim.now_s, "")
    sim.write(machine.final_stop(sim.turn(status), "the budget of 3 restarts is used up"))
    status = sim.run()
    assert status.phase is Phase.FAILED
    assert status.message.startswith("the budget of 3 restarts is used up; the job cannot be")


@pytest.mark.parametrize("point", range(1, 12))
def test_refusals__a_request_that_was_carried_out_although_it_seemed_refused_is_undone(
    point: int,
) -> None:
    """As when a proxy fails after the API server has written."""
    sim = Sim(crashes={point})

    def is_answered_wrongly(call: Call) -> bool:
        if is_suspending(call) and sim.now_s >= START_S + CALL_REFUSED_S:
            sim._call(call)
        return is_suspending(call)

    sim.refused = is_answered_wrongly
    sim.begin(REPLACE)
    status = sim.run()
    assert status.phase in (Phase.FAILED, Phase.RECOVERED), sim.log
    assert not sim.suspended
