"""One reconciliation of a gang, with everything around it made up: which calls it makes, and how often."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.api.incident import Incident, JobRef, Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.controller.breaker import Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.errors import Conflict
from kcover_ebpf.recovery.restart.context import (
    Call,
    DeleteAll,
    GangPod,
    SuspendSwitch,
    Suspension,
    TopOwner,
)
from kcover_ebpf.recovery.restart.machine import Transition
from kcover_ebpf.recovery.restart.methods import restarts

LABELS = {"batch.kubernetes.io/job-name": "j"}
KEY = GangId.of("ns", LABELS)
REF = JobRef("Job", "j", "ju", "batch/v1")
START_S = 1_000.0


def pod(index: int, deleted_s: float | None) -> GangPod:
    name = f"j-{index}"
    labels = {**LABELS, "batch.kubernetes.io/job-completion-index": str(index)}
    return GangPod(
        Pod("ns", name, f"u{index}", "n0", "Running", 10.0, deleted_s, labels, {}, (), ())
    )


class World:
    """A suspended Job of 30 pods, one of which its controller has marked; a call takes its time."""

    def __init__(self, took_s: float) -> None:
        self.now_s, self.took_s = START_S, took_s
        self.calls: list[Call] = []
        self.store = ObjectCache(lambda _: None, wall=lambda: self.now_s)
        action = RestartAction(RestartMethod.REPLACE, "Terminate", 1, START_S, "x", {"pods": "30"})
        reported = Status(Phase.OPEN, action=action)
        status = reported.enter(Phase.SHUTTING_DOWN, START_S, "replace")
        self.store.put(Incident("ns", "i", REF, LABELS, status=status, uid="iu"))
        target = SuspendSwitch(
            "batch/v1", "jobs", "j", ("spec", "suspend"), True, "1", True, "ns/i"
        )
        self.found = FoundOwner(
            TopOwner(REF, restarts().find("batch/v1", "Job"), target, armed=True)
        )
        pods = tuple(pod(index, 1.0 if index == 0 else None) for index in range(30))
        owners = SimpleNamespace(of_pods=lambda *_: self.found, of_ref=lambda *_: self.found)
        gangs = SimpleNamespace(pods=lambda _: pods)
        self.writer: Any = SimpleNamespace(perform=self._perform, guard=lambda *_: None)
        story: Any = SimpleNamespace(publish=lambda *_: None)
        self.jobs = GangReconciler(self.store, gangs, owners, self.writer, story, Limits())  # type: ignore[arg-type]
        self.jobs.wall = lambda: self.now_s

    def _perform(self, namespace: str, call: Call, mark: str) -> None:
        assert (namespace, mark) == ("ns", "ns/i")
        self.calls.append(call)
        self.now_s += self.took_s


def test_gang_reconciler__a_call_that_takes_long_is_not_made_again_for_what_was_known_before_it() -> (
    None
):
    world = World(took_s=5.0)
    wake_s = world.jobs.reconcile(KEY)
    assert world.calls == [DeleteAll(LABELS)]
    assert wake_s == 2.0, "and is made again if nothing comes of it"
    world.now_s += 2.0
    world.jobs.reconcile(KEY)
    assert len(world.calls) == 2


def test_jobs__a_restart_does_not_wait_for_pods_that_are_strays() -> None:
    world = World(took_s=0.1)
    live = frozenset(f"u{index}" for index in range(1, 30))
    world.found = replace(world.found, strays=live)
    steps: list[str] = []

    def status(_: Incident, written_status: Status) -> dict[str, object]:
        assert written_status.action is not None
        steps.append(written_status.action.step)
        return {}

    world.writer.status = status
    world.jobs.reconcile(KEY)
    assert steps == ["Gone"], "the only pod that is the job's own is marked for deletion"
    assert world.calls == []


@pytest.mark.parametrize("verb", [None, Verb.SNAPSHOT])
def test_gang_reconciler__a_job_waits_a_moment_while_others_are_decided_on(
    verb: Verb | None,
) -> None:
    world = World(took_s=0.1)
    order_with(world, verb)
    world.now_s += 0.5
    world.jobs._deciding.add(GangId.of("ns", {"batch.kubernetes.io/job-name": "another"}))
    assert world.jobs.reconcile(KEY) == 0.1
    assert world.calls == []
    world.now_s += 0.6
    world.jobs.reconcile(KEY)
    assert len(world.calls) == 1, "but not for long"
    assert KEY not in world.jobs._deciding


def test_gang_reconciler__ranks_that_are_stopped_wait_for_no_other_job() -> None:
    world = World(took_s=0.1)
    order_with(world, Verb.STOP)
    world.jobs._deciding.add(GangId.of("ns", {"batch.kubernetes.io/job-name": "another"}))
    world.jobs.reconcile(KEY)
    assert len(world.calls) == 1


@pytest.mark.parametrize("verb", [None, Verb.SNAPSHOT])
def test_gang_reconciler__a_job_that_begins_to_be_ended_makes_room_for_the_decision_on_others(
    verb: Verb | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(took_s=0.1)
    order_with(world, verb)
    (known,) = world.store.of_gang(KEY)
    began = known.status
    world.store.put(replace(known, status=Status(Phase.OPEN)))
    world.writer.status = lambda *_: {}
    monkeypatch.setattr(world.jobs, "_next", lambda *_: Transition(status=began))
    assert world.jobs.reconcile(KEY) == 0.0
    assert world.calls == []


def order_with(world: World, verb: Verb | None) -> None:
    """Its job is being ended, and this is what agents are asked for meanwhile."""
    (known,) = world.store.of_gang(KEY)
    assert known.status is not None
    order = verb and Order("i-1", verb, LABELS, START_S, START_S + 10)
    world.store.put(replace(known, status=replace(known.status, order=order)))


def test_gang_reconciler__a_job_that_is_decided_on_holds_up_others_only_meanwhile() -> None:
    world = World(took_s=0.1)
    (known,) = world.store.of_gang(KEY)
    world.store.put(replace(known, status=None, uid="other"))
    seen: list[bool] = []

    def status(*_: object) -> dict[str, object]:
        seen.append(KEY in world.jobs._deciding)
        return {}

    world.writer.status = status
    world.jobs.reconcile(KEY)
    assert seen == [True]
    assert not world.jobs._deciding


def test_gang_reconciler__the_pods_of_a_job_whose_runs_are_other_gangs_are_those_of_its_last_run() -> (
    None
):
    """A RayJob that is resumed makes a RayCluster of another name, which its pods carry as a label."""
    world = World(took_s=0.1)
    method = restarts().find("ray.io/v1", "RayJob")
    (before,) = world.store.of_gang(KEY)
    action = RestartAction(RestartMethod.REPLACE, "Return", 1, START_S, "x", {"pods": "2"})
    status = Status(Phase.OPEN, action=action).enter(Phase.SHUTTING_DOWN, START_S, "replace")
    world.store.put(replace(before, status=status))
    runs = {
        KEY: (),
        GangId.of("ns", {"ray.io/cluster": "j-2"}): tuple(ready(pod(i, None)) for i in range(2)),
    }
    world.jobs._gangs = SimpleNamespace(pods=runs.__getitem__)  # type: ignore[assignment]
    top = TopOwner(REF, method, world.found.top.target, armed=True, has_gang_a_run=True)
    steps: list[str] = []

    def status_written(_: Incident, written_status: Status) -> dict[str, object]:
        assert written_status.action is not None
        steps.append(written_status.action.step)
        return {}

    world.writer.status = status_written
    world.found = FoundOwner(top)
    world.jobs.reconcile(KEY)
    assert steps == [], "the next run has no name yet"
    world.found = FoundOwner(replace(top, gang={"ray.io/cluster": "j-2"}))
    world.now_s += 10.0
    world.jobs.reconcile(KEY)
    assert steps == ["Progress"]


def ready(pod: GangPod) -> GangPod:
    return replace(pod, pod=replace(pod.pod, ready=True, created_s=START_S + 5))


@pytest.mark.parametrize("back_s", [0.0, 3600.0])
def test_gang_reconciler__a_clock_that_is_set_back_keeps_no_job_suspended(back_s: float) -> None:
    world = World(took_s=0.0)
    (known,) = world.store.of_gang(KEY)
    action = RestartAction(RestartMethod.REPLACE, "Pause", 1, START_S, "x", {"pause": "20"})
    status = Status(Phase.OPEN, action=action).enter(Phase.SHUTTING_DOWN, START_S, "replace")
    world.store.put(replace(known, status=status))
    world.jobs._gangs = SimpleNamespace(pods=lambda _: ())  # type: ignore[assignment]
    world.writer.status = lambda *_: {}
    version = 1

    def perform(namespace: str, call: Call, mark: str) -> None:
        assert isinstance(call, Suspension)
        if call.target.resource_version != str(version):
            raise Conflict("the job was modified")
        world.calls.append(call)

    world.writer.perform = perform
    world.jobs.reconcile(KEY)
    world.now_s -= back_s
    version += 1
    target = world.found.top.target
    assert target is not None
    changed = replace(target, resource_version=str(version))
    world.found = replace(world.found, top=replace(world.found.top, target=changed))
    for _ in range(30):
        world.now_s += 1.0
        with suppress(Conflict):
            world.jobs.reconcile(KEY)
    assert world.calls
    assert world.calls[0] == Suspension(changed, suspended=False)


def test_gang_reconciler__a_refused_call_is_made_again_with_the_object_as_it_is_now() -> None:
    world = World(took_s=0.0)
    (known,) = world.store.of_gang(KEY)
    action = RestartAction(RestartMethod.REPLACE, "Release", 1, START_S, "x", {})
    status = Status(Phase.OPEN, action=action).enter(Phase.SHUTTING_DOWN, START_S, "replace")
    world.store.put(replace(known, status=status))
    refused = world.writer.perform

    def perform(*_: object) -> None:
        world.writer.perform = refused
        raise Conflict("the job was modified")

    world.writer.perform = perform
    with pytest.raises(Conflict):
        world.jobs.reconcile(KEY)
    target = world.found.top.target
    assert target is not None
    changed = replace(target, resource_version="2")
    world.found = replace(world.found, top=replace(world.found.top, target=changed))
    world.jobs.reconcile(KEY)
    assert world.calls == [Suspension(changed, suspended=False)]


def test_object_cache__incidents_of_a_job_are_those_of_all_its_runs() -> None:
    """Else each run would have its own budget of restarts."""
    world = World(took_s=0.1)
    (first,) = world.store.of_gang(KEY)
    second = replace(first, name="i2", uid="iu2", selector={"ray.io/cluster": "j-2"})
    other = replace(first, name="o", uid="ou", job=replace(REF, uid="another"))
    for incident in (second, other, replace(second, namespace="elsewhere", uid="eu")):
        world.store.put(incident)
    assert [incident.name for incident in world.store.of_job("ns", "ju")] == ["i", "i2"]
