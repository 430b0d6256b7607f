"""An operator's kinds of jobs: when they are used, and what is said of those that are not."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.job_kinds import gang_of
from kcover_ebpf.api.pods import Owner, Pod
from kcover_ebpf.controller.kind_registry import KindRegistry
from kcover_ebpf.controller.owners import Owners
from kcover_ebpf.errors import ActionError, NotFound
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.restart.context import GangPod, replace_method_of
from kcover_ebpf.recovery.restart.methods import ReplaceMethod
from tests.unit.support.custom_kinds import TRAINING, job_kind, training


class FakeServer:
    """Serves Trainings and Crews; says what it is asked about permissions."""

    def __init__(self) -> None:
        self.denied: set[tuple[str, str]] = set()
        self.objects: dict[str, dict[str, Any]] = {
            "/apis/acme.example": {"versions": [{"groupVersion": "acme.example/v1"}]},
            "/apis/acme.example/v1": {"resources": [{"name": "trainings", "kind": "Training"}]},
            "/apis/acme.example/v1/namespaces/ml/trainings/run": training(),
        }
        self.patches: list[tuple[str, dict[str, Any]]] = []

    def get(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise NotFound("404", 404)
        return self.objects[path]

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path.endswith("selfsubjectaccessreviews")
        asked = body["spec"]["resourceAttributes"]
        assert asked["group"] == "acme.example"
        return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}

    def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.patches.append((path, body["status"]["conditions"][0]))
        return {}


class Bed:
    def __init__(self) -> None:
        self.server, self.leads = FakeServer(), True
        self.events: list[tuple[str, str]] = []
        self.registry = KindRegistry(
            self.server,  # type: ignore[arg-type]
            self._writes,
            lambda about, reason, text, _: self.events.append((about["name"], f"{reason} {text}")),
            lambda: 1e9,
        )

    def _writes(self) -> Any:
        if not self.leads:
            raise ActionError("another controller may be the leader")
        return self.server

    def hears(self, *objects: dict[str, Any]) -> None:
        for made in objects:
            self.registry.on_kind(Event(Change.SET, made))
        self.registry.check()

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(condition["status"], condition["reason"]) for _, condition in self.server.patches]

    def top(self, *owners: Owner) -> Any:
        asks = Owners(self.server, lambda: 0.0, lambda: self.registry.table)  # type: ignore[arg-type]
        pods = [_pod(owner) for owner in owners]
        found = asks.of_pods("ml", pods)
        return found.top if found is not None else None


def _pod(owner: Owner) -> GangPod:
    labels = {TRAINING: "run"}
    name, uid = owner.name, f"u-{owner.name}"
    return GangPod(Pod("ml", name, uid, "n", "Running", 1.0, None, labels, {}, (owner,), ()))


def owner(kind: str, name: str) -> Owner:
    return Owner("acme.example/v1", kind, name, f"u-{name}", True)


def test_kind_registry__a_permitted_kind_is_restarted_by_its_own_switch() -> None:
    bed = Bed()
    bed.hears(job_kind())
    assert bed.said == [("True", "Permitted")]
    assert bed.events == []
    assert bed.registry.counts()["Permitted"] == 1
    top = bed.top(owner("Training", "run"))
    assert replace_method_of(top) is ReplaceMethod.SUSPEND
    assert (top.pod_count, top.ended, top.target.suspended) == (4, None, False)
    assert (top.target.field, top.target.suspended_value) == (("spec", "mode"), "Paused")
    assert top.target.running_value == "Active"


def test_kind_registry__owners_between_the_pods_and_the_job_are_climbed() -> None:
    bed = Bed()
    bed.hears(job_kind())
    above = {"apiVersion": "acme.example/v1", "kind": "Training", "name": "run", "uid": "u-run"}
    for name in ("west", "east"):
        metadata = {"name": name, "uid": f"u-{name}"}
        metadata["ownerReferences"] = [above | {"controller": True}]  # type: ignore[assignment]
        path = f"/apis/acme.example/v1/namespaces/ml/crews/{name}"
        bed.server.objects[path] = {"metadata": metadata}
    top = bed.top(owner("Crew", "west"), owner("Crew", "east"))
    assert top.ref.kind == "Training"
    assert replace_method_of(top) is ReplaceMethod.SUSPEND


def test_kind_registry__an_owner_below_no_job_is_not_restarted() -> None:
    bed = Bed()
    bed.hears(job_kind())
    metadata = {"name": "west", "uid": "u-west", "creationTimestamp": "2026-01-01T00:00:00Z"}
    bed.server.objects["/apis/acme.example/v1/namespaces/ml/crews/west"] = {"metadata": metadata}
    assert replace_method_of(bed.top(owner("Crew", "west"))) is None


@pytest.mark.parametrize(
    ("value", "ended"), [("Done", "Done"), ("Broken", "Failed"), ("Running", None)]
)
def test_kind_registry__a_job_is_over_when_its_field_says_so(value: str, ended: str | None) -> None:
    bed = Bed()
    bed.server.objects["/apis/acme.example/v1/namespaces/ml/trainings/run"]["status"] = {
        "phase": value
    }
    bed.hears(job_kind())
    assert bed.top(owner("Training", "run")).ended == ended


REFUSED: dict[str, tuple[Any, str, str]] = {
    "may not be suspended": (
        lambda server: server.denied.add(("patch", "trainings")),
        "Forbidden",
        "may not patch trainings.acme.example: add it to the chart's controller.jobKinds",
    ),
    "an owner may not be read": (
        lambda server: server.denied.add(("get", "crews")),
        "Forbidden",
        "may not get crews.acme.example",
    ),
    "is not there": (
        lambda server: server.objects.pop("/apis/acme.example"),
        "NotServed",
        "has no trainings.acme.example: install its CRD",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_kind_registry__what_is_missing_is_said_and_its_jobs_are_refused(case: str) -> None:
    change, reason, words = REFUSED[case]
    bed = Bed()
    change(bed.server)
    bed.hears(job_kind())
    assert bed.said == [("False", reason)]
    ((name, text),) = bed.events
    assert name == "trainings"
    assert f"KcoverJobKindRefused {reason}: " in text
    assert words in text
    assert bed.registry.counts()[reason] == 1
    top = bed.top(owner("Training", "run"))
    assert replace_method_of(top) is None
    assert words in top.why


def test_kind_registry__a_permission_that_comes_later_is_noticed() -> None:
    bed = Bed()
    bed.server.denied.add(("patch", "trainings"))
    bed.hears(job_kind())
    bed.server.denied.clear()
    bed.registry.check()
    bed.registry.check()
    assert bed.said == [("False", "Forbidden"), ("True", "Permitted")], "each once"
    assert replace_method_of(bed.top(owner("Training", "run"))) is ReplaceMethod.SUSPEND


def test_kind_registry__what_cannot_be_read_or_is_known_already_is_not_used() -> None:
    bed = Bed()
    known = job_kind("known", group="batch", kind="Job", plural="jobs", suspend={"path": "/spec/x"})
    bed.hears(job_kind("wrong", kind=""), known, job_kind("b"), job_kind("c", podLabels=["other"]))
    states = dict(
        zip([path.split("/")[-2] for path, _ in bed.server.patches], bed.said, strict=True)
    )
    assert states == {
        "wrong": ("False", "Invalid"),
        "known": ("False", "BuiltIn"),
        "b": ("True", "Permitted"),
        "c": ("False", "Duplicate"),
    }
    row = bed.registry.table.find("batch/v1", "Job")
    assert row is not None
    assert row.suspend == ("spec", "suspend")
    assert replace_method_of(bed.top(owner("Training", "run"))) is ReplaceMethod.SUSPEND


def test_kind_registry__a_replica_that_does_not_lead_checks_and_writes_nothing() -> None:
    bed = Bed()
    bed.leads = False
    bed.hears(job_kind())
    assert bed.said == []
    assert replace_method_of(bed.top(owner("Training", "run"))) is ReplaceMethod.SUSPEND


def test_kind_registry__a_deleted_kind_is_unknown_again() -> None:
    bed = Bed()
    bed.hears(job_kind())
    pod = Pod("ml", "p", "u", "n", "Running", 1.0, None, {TRAINING: "run"}, {}, (), ())
    assert gang_of(bed.registry.mark(pod)).kind == "Training"
    bed.registry.on_kind(Event(Change.GONE, job_kind()))
    assert gang_of(bed.registry.mark(pod)).kind == "Pod"
    top = bed.top(owner("Training", "run"))
    assert (top.method, top.why) == (None, "")
