"""The leader's housekeeping: what it closes, what it deletes, and that it interferes with nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import (
    Incident,
    JobRef,
    Phase,
    RestartMethod,
    Status,
    incident_of,
    object_of,
)
from kcover_ebpf.api.incident import status_of as written
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.incident_gc import IncidentCollector
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.errors import Conflict, Unreachable
from kcover_ebpf.recovery.restart.context import TopOwner
from kcover_ebpf.settings import RestartBudget
from tests.unit.support.kept_policies import clear_policies, put_policy
from tests.unit.support.report_builders import report

NOW_S = 1_000_000.0
JOB = JobRef("Job", "j", "job-uid", "batch/v1")
LABELS = {"batch.kubernetes.io/job-name": "j"}
DAY_S = 86400.0


class FakeIncidentWriter:
    def __init__(self) -> None:
        self.written: dict[str, Status] = {}
        self.deleted: list[str] = []
        self.error: Exception | None = None

    def status(self, known_incident: Incident, status: Status):
        if self.error is not None:
            raise self.error
        self.written[known_incident.name] = status
        raw = object_of(known_incident) | {"status": written(status)}
        raw["metadata"] |= {"resourceVersion": "9", "uid": known_incident.uid}
        return raw

    def delete_incident(self, known_incident: Incident) -> None:
        self.deleted.append(known_incident.name)


class FakeOwners:
    def __init__(self, top: TopOwner | None) -> None:
        self.top, self.asked = top, 0
        self.error: Exception | None = None

    def of_ref(self, namespace: str, ref: JobRef) -> FoundOwner | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return FoundOwner(self.top) if self.top is not None else None


@pytest.fixture
def store() -> ObjectCache:
    return ObjectCache(lambda _: None, wall=lambda: NOW_S)


def put(cache: ObjectCache, name: str, phase: Phase, age_s: float = 60.0) -> Incident:
    status = Status(phase).enter(phase, NOW_S - age_s, "x")
    made = Incident("ns", name, JOB, LABELS, status=status, uid=f"uid-{name}", resource_version="1")
    cache.put(made)
    return made


def collect(cache: ObjectCache, owners: FakeOwners, writer: FakeIncidentWriter) -> None:
    IncidentCollector(cache, owners, writer, lambda: True).collect()  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", list(Phase))
def test_incident_collector__only_what_was_reported_and_left_is_closed_when_the_job_is_gone(
    store, phase
) -> None:
    put(store, "i", phase)
    writer = FakeIncidentWriter()
    collect(store, FakeOwners(None), writer)
    closed = phase in (Phase.OBSERVED, Phase.REFUSED, Phase.FAILED)
    assert set(writer.written) == ({"i"} if closed else set())
    assert writer.deleted == []
    if closed:
        found = store.incidents["ns", "i"].status
        assert found is not None
        assert found.phase is phase
        assert found.closed_s == NOW_S


def test_incident_collector__a_job_that_agents_report_about_is_not_asked_for(store) -> None:
    put(store, "i", Phase.OBSERVED)
    seen = report("a", arrived_s=NOW_S - 5.0, suspicious=False)
    store._reports[GangId.of("ns", LABELS)]["a"] = seen
    owners, writer = FakeOwners(None), FakeIncidentWriter()
    collect(store, owners, writer)
    assert (owners.asked, set(writer.written)) == (0, {"i"})
    closed = writer.written["i"]
    assert closed.message.endswith("closed: the ranks are making progress again")
    collect(store, owners, writer)
    assert store.incidents["ns", "i"].status == closed, "it is closed once"


def test_incident_collector__a_job_that_is_still_silent_keeps_its_incident_open(store) -> None:
    put(store, "i", Phase.OBSERVED)
    store._reports[GangId.of("ns", LABELS)]["a"] = report("a", arrived_s=NOW_S - 5.0)
    writer = FakeIncidentWriter()
    collect(store, FakeOwners(None), writer)
    assert writer.written == {}


@pytest.mark.parametrize("error", [Conflict("another client was first"), Unreachable("away")])
def test_incident_collector__an_incident_that_cannot_be_written_does_not_stop_the_others(
    store, error
) -> None:
    put(store, "i", Phase.OBSERVED)
    put(store, "old", Phase.RECOVERED, 32 * DAY_S)
    writer = FakeIncidentWriter()
    writer.error = error
    collect(store, FakeOwners(None), writer)
    assert writer.deleted == ["old"]


def test_incident_collector__incidents_are_kept_as_long_as_the_longest_budget_counts_them(
    store,
) -> None:
    kept = put(store, "old", Phase.RECOVERED, 32 * DAY_S)
    assert kept.status is not None
    store.put(replace(kept, status=kept.status.begin(RestartMethod.IN_PLACE, NOW_S - 29 * DAY_S)))
    longest = FaultPolicy(restarts=RestartBudget(window_seconds=int(30 * DAY_S)))
    put_policy(store, "ns", "p", longest)
    writer = FakeIncidentWriter()
    collect(store, FakeOwners(None), writer)
    assert writer.deleted == []
    clear_policies(store)
    collect(store, FakeOwners(None), writer)
    assert writer.deleted == ["old"]


def test_incident_of__a_reader_that_knows_nothing_of_closing_still_reads() -> None:
    raw = object_of(Incident("ns", "i", JOB, LABELS))
    raw["status"] = {"phase": "Observed", "message": "x"}
    found = incident_of(raw).status
    assert found is not None
    assert not found.is_closed


def test_archive__what_cannot_be_deleted_does_not_keep_the_rest(store) -> None:
    for index in range(100):
        held = put(store, f"held-{index:03}", Phase.RECOVERED, 33 * DAY_S)
        if index < 50:
            store.put(replace(held, finalizers=("example.com/x",), is_leaving=True))
    for index in range(60):
        put(store, f"old-{index}", Phase.RECOVERED, 32 * DAY_S)
    writer = FakeIncidentWriter()
    archive = IncidentCollector(store, FakeOwners(None), writer, lambda: True)  # type: ignore[arg-type]
    archive.collect()
    store.wall = lambda: NOW_S + 15.0
    archive.collect()
    assert {f"old-{index}" for index in range(60)} <= set(writer.deleted)
    assert "held-000" not in writer.deleted, "it is being deleted already"


def test_archive__no_window_of_a_policy_keeps_incidents_for_ever(store) -> None:
    kept = put(store, "old", Phase.RECOVERED, 31 * DAY_S)
    assert kept.status is not None
    store.put(replace(kept, status=kept.status.begin(RestartMethod.IN_PLACE, NOW_S - 31 * DAY_S)))
    endless = FaultPolicy(restarts=RestartBudget(window_seconds=10**9))
    put_policy(store, "ns", "p", endless)
    writer = FakeIncidentWriter()
    collect(store, FakeOwners(None), writer)
    assert writer.deleted == ["old"]
