"""The calls of a restart step: what a refusal by the API server leads to, and what a missing answer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.api.incident import Incident, JobRef, Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.breaker import Limits, acting
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.errors import ApiError, Conflict, Forbidden, Unreachable
from kcover_ebpf.recovery.restart.context import SuspendSwitch, TopOwner
from kcover_ebpf.recovery.restart.methods import restarts
from kcover_ebpf.tunables.recovery import CALL_REFUSED_S

LABELS = {"batch.kubernetes.io/job-name": "j"}
KEY = GangId.of("ns", LABELS)
REF = JobRef("Job", "j", "ju", "batch/v1")
START_S = 1_000.0


class World:
    """A Job that is to be suspended, and an API server that answers `error` to one kind of request."""

    def __init__(self, error: ApiError, at: str) -> None:
        self.now_s, self.error, self.at = START_S, error, at
        self.tried = 0
        self.store = ObjectCache(lambda _: None, wall=lambda: self.now_s)
        action = RestartAction(RestartMethod.REPLACE, "Suspend", 1, START_S, "x", {"pods": "30"})
        status = Status(Phase.OPEN, action=action).enter(Phase.SHUTTING_DOWN, START_S, "replace")
        self.store.put(Incident("ns", "i", REF, LABELS, status=status, uid="iu"))
        target = SuspendSwitch("batch/v1", "jobs", "j", ("spec", "suspend"), True, "1")
        found = FoundOwner(TopOwner(REF, restarts().find("batch/v1", "Job"), target, armed=True))
        writer: Any = SimpleNamespace(
            perform=lambda *_: self._answer("perform"),
            guard=lambda *_: self._answer("guard"),
            status=self._status,
        )
        self.jobs = GangReconciler(
            self.store,
            SimpleNamespace(pods=lambda _: ()),  # type: ignore[arg-type]
            SimpleNamespace(of_pods=lambda *_: found),  # type: ignore[arg-type]
            writer,
            SimpleNamespace(created_s={}, publish=lambda *_: None),  # type: ignore[arg-type]
            Limits(),
        )
        self.jobs.wall = self.store.wall

    def _answer(self, at: str) -> None:
        if at == self.at:
            self.tried += 1
            raise self.error

    def _status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        self.store.put(replace(known_incident, status=status))
        return {}

    def status(self) -> Status:
        (incident,) = self.store.of_gang(KEY)
        assert incident.status is not None
        return incident.status


@pytest.mark.parametrize("at", ["perform", "guard"])
@pytest.mark.parametrize(
    "error",
    [
        Forbidden('403 admission webhook "policy.example.com" denied the request', 403),
        ApiError("422 spec.suspend is immutable", 422),
        Unreachable('500 failed calling webhook "policy.example.com"', 500),
    ],
)
def test_step_calls__what_is_refused_for_good_ends_the_restart_with_the_reason(
    at: str, error: ApiError
) -> None:
    world = World(error, at)
    wake_s = world.jobs.reconcile(KEY)
    assert world.status().phase is Phase.SHUTTING_DOWN
    assert str(error) in world.status().message, "at once"
    while not world.status().phase.is_over:
        assert world.now_s - START_S <= CALL_REFUSED_S + 10
        assert wake_s
        world.now_s += wake_s
        wake_s = world.jobs.reconcile(KEY)
    assert world.status().phase is Phase.FAILED
    assert str(error) in world.status().message
    assert world.tried < CALL_REFUSED_S
    assert not acting(world.store, CALL_REFUSED_S), "its place in the breaker is free"


@pytest.mark.parametrize(
    "error", [Unreachable("no route"), Unreachable("503", 503), Conflict("another was first", 409)]
)
def test_step_calls__without_an_answer_a_call_is_made_again(error: ApiError) -> None:
    world = World(error, "perform")
    before = world.status()
    for count in range(1, 5):
        with pytest.raises(type(error)):
            world.jobs.reconcile(KEY)
        assert world.tried == count
        world.now_s += CALL_REFUSED_S
    assert world.status() == before
