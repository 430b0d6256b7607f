"""Incidents on record under another policy: what would have been ended, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import Approval, FaultPolicy, Level
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.recovery.restart.guards import NOT_ARMED, ClusterLimits
from kcover_ebpf.recovery.simulation import Difference, PastIncident, SimulatedIncident, simulated
from kcover_ebpf.settings import RestartBudget
from tests.unit.support.judged import judged
from tests.unit.support.past_incidents import AT_S, INFERRED, STOPPED, of, opened, restarted

DEFAULTS = FaultPolicy()


def resolved(status: Status, after_s: float) -> Status:
    at_s = (status.since_s or 0.0) + after_s
    over = opened(status).enter(Phase.OBSERVED, at_s, "resolved on its own before any action")
    return replace(over, closed_s=at_s)


def tried(
    *statuses: Status, policy: FaultPolicy = DEFAULTS, armed: bool | None = True
) -> list[SimulatedIncident]:
    past = [PastIncident(of(status, f"i{at}"), armed) for at, status in enumerate(statuses)]
    return list(simulated(past, policy, ClusterLimits()))


def test_simulated__the_policy_that_held_gives_what_is_on_record() -> None:
    (one,) = tried(restarted(STOPPED))
    assert (one.ended_s, one.would_end_s) == (AT_S + 5.0, AT_S + 5.0)
    assert (one.difference, one.assumed) == (Difference.NONE, ())


@pytest.mark.parametrize(
    ("policy", "difference", "said"),
    [
        (FaultPolicy(action=Level.OBSERVE), Difference.SPARED, "the policy allows Observe only"),
        (FaultPolicy(dry_run=True), Difference.SPARED, "dry run: would restart it (InPlace)"),
        (FaultPolicy(approval=Approval.MANUAL), Difference.SPARED, "waiting for approval"),
        (FaultPolicy(restarts=RestartBudget(max=0)), Difference.SPARED, "the budget of 0 restarts"),
        (FaultPolicy(thresholds={"stopped": "30s"}), Difference.LATER, "stopping all ranks"),
        (FaultPolicy(ways=(RestartMethod.REPLACE,)), Difference.NONE, "replace: suspending"),
    ],
)
def test_simulated__a_policy_that_allows_less_spares_the_job_or_waits(
    policy: FaultPolicy, difference: Difference, said: str
) -> None:
    (one,) = tried(restarted(STOPPED), policy=policy)
    assert (one.difference, said in one.would) == (difference, True), one.would
    if difference is Difference.LATER:
        assert one.would_end_s == pytest.approx(AT_S + 30.0, abs=1.0)


def test_simulated__what_went_by_is_ended_by_a_policy_that_waits_for_less() -> None:
    lenient = resolved(judged(STOPPED, acts_at_s=AT_S + 60.0), 20.0)
    (one,) = tried(lenient)
    assert (one.difference, one.would_end_s) == (Difference.ENDED, AT_S + 5.0)
    (other,) = tried(lenient, policy=FaultPolicy(thresholds={"stopped": "30s"}))
    assert (other.difference, other.would_end_s) == (Difference.NONE, None), "it was over by then"
    assert "it is ended in" in other.would


def test_simulated__a_patience_from_the_jobs_own_past_is_kept_and_said() -> None:
    (one,) = tried(resolved(INFERRED, 90.0))
    assert one.would_end_s == AT_S + 40.0
    assert any("the patience is that of the record" in text for text in one.assumed)
    (other,) = tried(resolved(INFERRED, 90.0), policy=FaultPolicy(thresholds={"hard_limit": "15s"}))
    assert other.would_end_s == AT_S + 15.0


def test_simulated__a_job_that_was_not_armed_stays_so() -> None:
    (one,) = tried(opened(STOPPED).enter(Phase.OBSERVED, AT_S + 6.0, f"HUNG; {NOT_ARMED}"))
    assert (one.difference, one.would_end_s) == (Difference.NONE, None)
    (unknown,) = tried(resolved(STOPPED, 60.0), armed=None)
    assert unknown.difference is Difference.ENDED
    assert any("armed is not on record" in text for text in unknown.assumed)


def test_simulated__restarts_that_would_have_been_made_use_up_the_budget() -> None:
    hour = [
        judged(STOPPED, since_s=AT_S + 3600.0 * at, acts_at_s=AT_S + 3600.0 * at + 5.0)
        for at in range(3)
    ]
    found = tried(*map(restarted, hour), policy=FaultPolicy(restarts=RestartBudget(max=2)))
    assert [one.difference for one in found] == [
        Difference.NONE,
        Difference.NONE,
        Difference.SPARED,
    ]
    assert "the budget of 2 restarts is used up" in found[2].would


def test_simulated__what_a_person_asked_for_is_left_out() -> None:
    asked = judged(restarted(STOPPED), kind=VerdictKind.UNKNOWN, cause=Cause.REQUESTED)
    assert tried(asked) == []
