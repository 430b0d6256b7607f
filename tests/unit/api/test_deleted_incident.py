"""An incident that are deleted while its job is suspended: whoever leads then resumes the job."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kcover_ebpf.api.incident import (
    FINALIZER,
    Incident,
    JobRef,
    Phase,
    RestartAction,
    RestartMethod,
    Status,
    object_of,
    status_of,
)
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.breaker import Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.restart.context import Call, SuspendSwitch, Suspension, TopOwner
from kcover_ebpf.recovery.restart.methods import restarts

LABELS = {"batch.kubernetes.io/job-name": "j"}
KEY = GangId.of("ns", LABELS)
REF = JobRef("Job", "j", "ju", "batch/v1")
START_S = 1_767_225_600.0


class World:
    """A Job whose restart has begun; it has no pods, and its object does what it is asked."""

    def __init__(self, step: str, suspended_by: str | None) -> None:
        self.target = SuspendSwitch(
            "batch/v1",
            "jobs",
            "j",
            ("spec", "suspend"),
            True,
            "1",
            suspended_by is not None,
            suspended_by,
        )
        self.raw: dict[str, Any] | None = None
        self.log: list[str] = []
        action = RestartAction(RestartMethod.REPLACE, step, 1, START_S, "x", {"pods": "2"})
        status = Status(Phase.OPEN, action=action).enter(Phase.SHUTTING_DOWN, START_S, "replace")
        self.known = Incident("ns", "i", REF, LABELS, status=status, uid="iu")
        self.start()

    def start(self) -> None:
        """Another controller takes over."""
        self.store = ObjectCache(lambda _: None, wall=lambda: START_S)
        owners: Any = SimpleNamespace(of_pods=self._found, of_ref=self._found)
        gangs: Any = SimpleNamespace(pods=lambda _: (), shown=lambda _: (), forget=lambda _: None)
        story: Any = SimpleNamespace(publish=lambda *_: None)
        self.jobs = GangReconciler(self.store, gangs, owners, self, story, Limits())  # type: ignore[arg-type]
        self.jobs.wall = lambda: START_S

    def _found(self, *_: object) -> FoundOwner:
        return FoundOwner(
            TopOwner(REF, restarts().find("batch/v1", "Job"), self.target, armed=True)
        )

    def perform(self, namespace: str, call: Call, mark: str) -> None:
        assert isinstance(call, Suspension)
        self.log.append(f"suspended={call.suspended}")
        self.target = replace(
            self.target, suspended=call.suspended, suspended_by=mark if call.suspended else None
        )

    def status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        return self._object(replace(known_incident, status=status))

    def guard(self, known_incident: Incident, wanted: bool) -> dict[str, Any]:
        self.log.append(f"guarded={wanted}")
        return self._object(replace(known_incident, finalizers=(FINALIZER,) if wanted else ()))

    def _object(self, known_incident: Incident) -> dict[str, Any]:
        raw = object_of(known_incident)
        raw["metadata"] |= {"uid": "iu", "finalizers": list(known_incident.finalizers)}
        assert known_incident.status is not None
        return raw | {"status": status_of(known_incident.status)}

    def delete(self) -> dict[str, Any]:
        (known,) = self.store.of_gang(KEY)
        raw = self._object(known)
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
        self.store.on_incident(Event(Change.SET, raw))
        return raw


def test_deleted_incident__an_incident_cannot_go_once_its_job_may_be_suspended() -> None:
    world = World("Suspend", None)
    world.store.put(world.known)
    world.jobs.reconcile(KEY)
    assert world.log[:2] == ["guarded=True", "suspended=True"]


def test_deleted_incident__the_job_is_resumed_before_its_incident_goes() -> None:
    world = World("Terminate", "ns/i")
    world.store.put(replace(world.known, finalizers=(FINALIZER,)))
    world.delete()
    world.jobs.reconcile(KEY)
    assert world.log == ["suspended=False", "guarded=False"]


def test_deleted_incident__a_controller_that_starts_later_resumes_the_job() -> None:
    world = World("Terminate", "ns/i")
    world.store.put(replace(world.known, finalizers=(FINALIZER,)))
    raw = world.delete()
    world.start()
    world.store.on_incident(Event(Change.SET, raw))
    assert world.store.gangs == [KEY]
    world.jobs.reconcile(KEY)
    assert world.log == ["suspended=False", "guarded=False"]


def test_deleted_incident__what_another_client_suspended_is_left_alone() -> None:
    world = World("Terminate", "ns/another")
    world.store.put(replace(world.known, finalizers=(FINALIZER,)))
    world.delete()
    world.jobs.reconcile(KEY)
    assert world.log == ["guarded=False"]


def test_deleted_incident__a_stand_by_that_saw_it_go_without_the_finalizer_knows_it_when_it_leads() -> (
    None
):
    world = World("Terminate", "ns/i")
    world.store.put(world.known)
    world.store.on_incident(Event(Change.GONE, world._object(world.known)))
    assert world.store.gangs == [KEY]
    world.jobs.reconcile(KEY)
    assert world.log == ["suspended=False"]
    assert world.store.gangs == []


def test_deleted_incident__what_a_newer_version_began_is_left_to_it() -> None:
    world = World("Suspend", None)
    raw = world._object(world.known)
    raw["status"]["phase"] = "Teleporting"
    world.store.on_incident(Event(Change.SET, raw))
    assert world.jobs.reconcile(KEY) == 30.0
    assert world.log == []
    world.store.on_incident(Event(Change.SET, world._object(world.known)))
    world.jobs.reconcile(KEY)
    assert world.log[:2] == ["guarded=True", "suspended=True"]


def test_deleted_incident__an_incident_that_is_over_may_go() -> None:
    world = World("Suspend", "ns/another")
    world.store.put(replace(world.known, finalizers=(FINALIZER,)))
    world.jobs.reconcile(KEY)
    (known,) = world.store.of_gang(KEY)
    assert known.status is not None
    assert (known.status.phase, known.finalizers) == (Phase.FAILED, ())
