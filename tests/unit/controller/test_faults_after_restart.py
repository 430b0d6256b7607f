"""A rank that hangs around the end of its job's restart: it is acted on like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import FaultReport, ReportedJob
from kcover_ebpf.api.incident import Incident, Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.recovery.restart.steps import RestartDetail
from tests.unit.support.report_builders import LOCK, SELECTOR, rank, report
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


def stopped(
    cluster: Cluster, since_s: float, labels: Mapping[str, str] = SELECTOR
) -> tuple[FaultReport, ...]:
    """What is reported in the next second if a rank is stopped since then."""
    return hung(rank(1, State.STOPPED, cluster.now_s + 1.0 - since_s), labels)


def at_a_lock(
    cluster: Cluster, since_s: float, labels: Mapping[str, str]
) -> tuple[FaultReport, ...]:
    """What is reported in the next second if a rank waits for a lock since then: it is not acted on at once."""
    age_s = cluster.now_s + 1.0 - since_s
    read = {"known_wait": False, "thread_read": True, "sides_read": True}
    return hung(rank(1, State.FUTEX, age_s, stack=LOCK, **read), labels)


def hung(culprit: RankSnapshot, labels: Mapping[str, str]) -> tuple[FaultReport, ...]:
    """Both nodes report a culprit, for which all other ranks wait."""
    others = [rank(number, age_s=culprit.age_s - 0.1) for number in (0, 2, 3)]
    said = report("a", *others[:2], trained=False), report("b", culprit, others[2], trained=False)
    job = ReportedJob("j", labels, "Job")
    return tuple(replace(received.report, job=job) for received in said)


def is_over(incident: Incident) -> bool:
    return incident.status is not None and incident.status.phase.is_over


@pytest.mark.parametrize("after_s", [-5.0, 5.0])
def test_faults_after_restart__a_rank_that_hangs_before_the_last_pod_is_ready_is_acted_on(
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
def test_faults_after_restart__a_rank_that_hangs_just_before_its_recovery_is_written_is_acted_on(
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


@pytest.mark.parametrize("is_next_first", [True, False])
def test_faults_after_restart__a_job_whose_runs_are_other_gangs_has_one_live_incident_at_a_time(
    *, is_next_first: bool
) -> None:
    """A RayJob that is resumed makes a RayCluster of another name."""
    cluster, labels = Cluster(armed=True), {"ray.io/cluster": "j-2"}
    returned(cluster)
    cluster.gang = GangId.of("ns", labels)
    top = replace(cluster.found.top, has_gang_a_run=True, gang=labels)
    cluster.found = replace(cluster.found, top=top)
    changed: list[GangId] = []
    cluster.store.changed = changed.append
    since_s = cluster.now_s + 1.0
    cluster.now_s += 6.0
    for _ in range(200):
        cluster.now_s += 1.0
        cluster.reports(*at_a_lock(cluster, since_s, labels))
        gangs = [cluster.gang, KEY] if is_next_first else [KEY, cluster.gang]
        for gang in gangs:
            cluster.jobs.reconcile(gang)
            live = [one for one in cluster.store.incidents.values() if not is_over(one)]
            assert len(live) <= 1
    assert [name for _, name in cluster.store.incidents] == ["old"]
    assert KEY in changed, "the gang of its incident is reconciled"
    status = cluster.store.incidents["ns", "old"].status
    assert status is not None
    assert any("again before any progress" in (line.text or "") for line in status.timeline)


def test_faults_after_restart__an_incident_of_a_job_is_opened_by_the_gang_of_its_present_run() -> (
    None
):
    cluster, labels = Cluster(armed=True), {"ray.io/cluster": "j-2"}
    top = replace(cluster.found.top, has_gang_a_run=True, gang=labels)
    cluster.found, cluster.gang = replace(cluster.found, top=top), GangId.of("ns", labels)
    since_s = cluster.now_s
    for _ in range(30):
        cluster.run(1, *stopped(cluster, since_s), *stopped(cluster, since_s, labels))
    assert not cluster.store.incidents
    cluster.jobs.reconcile(cluster.gang)
    cluster.now_s += 1.0
    cluster.jobs.reconcile(cluster.gang)
    (opened,) = cluster.store.incidents.values()
    assert opened.gang == cluster.gang


def test_faults_after_restart__a_recovery_is_seen_although_the_clock_was_set_back() -> None:
    cluster = Cluster(armed=True)
    returned(cluster)
    cluster.now_s -= 3600.0
    cluster.run(3, *MOVES)
    status = cluster.store.incidents["ns", "old"].status
    assert status is not None
    assert status.phase is Phase.RECOVERED
