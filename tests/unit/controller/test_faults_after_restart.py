"""A rank that hangs around the end of its job's restart: it is acted on like any other."""

from __future__ import annotations

import pytest

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.incident import Incident, Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.model.process_state import State
from kcover_ebpf.recovery.restart.steps import RestartDetail
from tests.unit.support.report_builders import SELECTOR, rank, report
from tests.unit.support.reporting_job import KEY, MOVES, REF, Cluster


def returned(cluster: Cluster) -> None:
    """The job has been restarted in place, and all of its pods run since now."""
    now_s = cluster.now_s
    detail = RestartDetail(pods=4, returned_s=now_s).words()
    action = RestartAction(RestartMethod.IN_PLACE, "Progress", 1, now_s, "HUNG stopped", detail)
    status = Status(Phase.OPEN, action=action).enter(Phase.OPEN, now_s - 40.0, "x")
    status = status.enter(Phase.SHUTTING_DOWN, now_s - 30.0, "x")
    status = status.begin(RestartMethod.IN_PLACE, now_s - 28.0)
    status = status.enter(Phase.RECOVERING, now_s, "all pods are running again")
    made = Incident("ns", "old", REF, SELECTOR, status=status, uid="old", created_s=now_s - 40.0)
    cluster.store.put(made)


def stopped(cluster: Cluster, since_s: float) -> tuple[FaultReport, ...]:
    """What is reported in the next second if a rank is stopped since then."""
    age_s = cluster.now_s + 1.0 - since_s
    others = [rank(number, age_s=age_s - 0.1) for number in (0, 2, 3)]
    culprit = rank(1, State.STOPPED, age_s)
    return (
        report("a", *others[:2], trained=False).report,
        report("b", culprit, others[2], trained=False).report,
    )


@pytest.mark.parametrize("after_s", [-5.0, 5.0])
def test_gang_reconciler__a_rank_that_hangs_before_the_last_pod_is_ready_is_acted_on(
    after_s: float,
) -> None:
    cluster = Cluster(armed=True)
    returned(cluster)
    since_s = cluster.now_s + after_s
    cluster.now_s += 6.0
    for _ in range(30):
        cluster.run(1, *stopped(cluster, since_s))
    status = cluster.store.incidents["ns", "old"].status
    assert status is not None
    assert any("again before any progress" in (line.text or "") for line in status.timeline)


@pytest.mark.parametrize("before_s", [2.0, -2.0])
def test_gang_reconciler__a_rank_that_hangs_just_before_its_recovery_is_written_is_acted_on(
    before_s: float,
) -> None:
    cluster = Cluster(armed=True)
    returned(cluster)
    cluster.now_s += 20.0
    cluster.run(1, *MOVES)
    recovered = cluster.store.incidents["ns", "old"].status
    assert recovered is not None
    assert recovered.phase is Phase.RECOVERED
    since_s = cluster.now_s - before_s
    cluster.now_s += 3.0
    for _ in range(30):
        cluster.run(1, *stopped(cluster, since_s))
    assert len(cluster.store.of_gang(KEY)) == 2
