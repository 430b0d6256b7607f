"""Which job pods belong to, whatever their ownerReferences and labels claim."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.incident import JobRef
from kcover_ebpf.api.job_kinds import gang_of
from kcover_ebpf.api.pods import Owner, Pod
from kcover_ebpf.controller.owners import Owners
from kcover_ebpf.errors import NotFound, Unreachable
from kcover_ebpf.recovery.restart.context import GangPod

ARM = {"kcover.io/cascading-recovery": "true"}


class FakeObjects:
    """Objects by their path."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    def add(
        self,
        namespace: str,
        name: str,
        uid: str,
        labels: dict[str, str] | None = None,
        owner: dict[str, Any] | None = None,
    ) -> None:
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "labels": labels or {},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "resourceVersion": "1",
            "ownerReferences": [owner] if owner else [],
        }
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
        self.objects[path] = {"metadata": metadata, "spec": {"suspend": False, "runPolicy": {}}}

    def get(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise NotFound("404", 404)
        return self.objects[path]

    def list(self, *_: object) -> dict[str, Any]:
        return {"items": []}


def owned(
    namespace: str,
    name: str,
    owner: Owner | None,
    labels: dict[str, str] | None = None,
    at_s: float = 1.0,
) -> GangPod:
    owners = (owner,) if owner is not None else ()
    return GangPod(
        Pod(namespace, name, f"u-{name}", "n", "Running", at_s, None, labels or {}, {}, owners, ())
    )


def job(name: str, uid: str) -> Owner:
    return Owner("batch/v1", "Job", name, uid, True)


def test_owners__a_pod_that_claims_a_foreign_uid_changes_nothing_for_that_job() -> None:
    api, now_s = FakeObjects(), [0.0]
    owners = Owners(api, lambda: now_s[0])  # type: ignore[arg-type]
    api.add("victim", "train", "uid-victim")
    api.add("victim", "other", "uid-other")
    above = {"apiVersion": "batch/v1", "kind": "Job", "name": "other", "uid": "uid-other"}
    api.add("evil", "mine", "uid-mine", ARM, {**above, "controller": True})
    claimed = [owned("evil", "x", job("mine", "uid-victim"))]
    assert owners.of_pods("evil", claimed) is None, "the object has another uid"
    found = owners.of_pods("victim", [owned("victim", "train-0", job("train", "uid-victim"))])
    assert found is not None
    assert (found.top.ref.name, found.top.armed) == ("train", False)


def test_owners__what_is_known_of_an_owner_is_known_in_its_namespace_only() -> None:
    api = FakeObjects()
    owners = Owners(api, lambda: 0.0)  # type: ignore[arg-type]
    api.add("evil", "train", "uid-shared", ARM)
    api.add("victim", "train", "uid-shared")
    assert owners.of_pods("evil", [owned("evil", "x", job("train", "uid-shared"))]) is not None
    found = owners.of_pods("victim", [owned("victim", "x", job("train", "uid-shared"))])
    assert found is not None
    assert not found.top.armed


LABELS = {"batch.kubernetes.io/job-name": "train"}
REF = JobRef("Job", "train", "uid-train", "batch/v1")


def ranks(count: int = 2, labels: dict[str, str] | None = None) -> list[GangPod]:
    carried = LABELS | (labels or {})
    return [
        owned("ml", f"r-{number}", job("train", "uid-train"), carried) for number in range(count)
    ]


def ml() -> tuple[FakeObjects, Owners]:
    api = FakeObjects()
    api.add("ml", "train", "uid-train")
    api.add("ml", "other", "uid-other", ARM)
    return api, Owners(api, lambda: 0.0)  # type: ignore[arg-type]


STRAYS = {
    "a bare copy for debugging": (owned("ml", "a-copy", None, LABELS, 2.0), True),
    "a pod of another job": (owned("ml", "a", job("other", "uid-other"), LABELS | ARM), True),
    "a pod of an unknown kind": (
        owned("ml", "a", Owner("example.com/v1", "Thing", "t", "uid-t", True), LABELS),
        True,
    ),
    "a pod whose owner is gone": (owned("ml", "a", job("gone", "uid-gone"), LABELS), False),
    "a pod with a wrong uid": (owned("ml", "a", job("train", "uid-wrong"), LABELS), False),
}


@pytest.mark.parametrize("ref", [None, REF], ids=["new", "known"])
@pytest.mark.parametrize(("stray", "left_out"), STRAYS.values(), ids=STRAYS)
def test_owners__a_stray_pod_neither_captures_nor_arms_a_gang(
    stray: GangPod, left_out: bool, ref: JobRef | None
) -> None:
    _, owners = ml()
    found = owners.of_pods("ml", [stray, *ranks()], ref)
    assert found is not None
    assert (found.top.ref.name, found.top.armed) == ("train", False)
    assert found.top.target is not None
    assert found.top.target.name == "train"
    assert found.strays == (frozenset({stray.pod.uid}) if left_out else frozenset())


def test_owners__the_job_that_the_labels_name_outvotes_more_pods_of_another() -> None:
    _, owners = ml()
    many = [owned("ml", f"a{number}", job("other", "uid-other"), LABELS) for number in range(5)]
    found = owners.of_pods("ml", [*many, *ranks()])
    assert found is not None
    assert found.top.ref == REF
    assert found.strays == {pod.pod.uid for pod in many}


def test_owners__a_gang_is_armed_by_most_of_its_pods() -> None:
    _, owners = ml()
    one = owned("ml", "x", job("train", "uid-train"), LABELS | ARM)
    for pods, armed in ((ranks(2, ARM), True), ([one, *ranks()], False), ([one], True)):
        found = owners.of_pods("ml", pods)
        assert found is not None
        assert found.top.armed is armed


def test_owners__where_only_strays_are_left_the_job_of_the_incident_is_still_found() -> None:
    _, owners = ml()
    stray = STRAYS["a bare copy for debugging"][0]
    found = owners.of_pods("ml", [stray], REF)
    assert found is not None
    assert found.top.ref == REF
    assert found.strays == {stray.pod.uid}
    empty = owners.of_pods("ml", [], REF)
    assert empty is not None
    assert empty.strays == frozenset()


def test_owners__pods_that_outlive_what_was_between_them_and_the_job_still_belong_to_it() -> None:
    """A RayJob that is suspended deletes its cluster, and the pods go later."""
    _, owners = ml()
    left = owned("ml", "r", Owner("ray.io/v1", "RayCluster", "c", "uid-c", True), LABELS)
    found = owners.of_pods("ml", [left], REF)
    assert found is not None
    assert found.strays == frozenset()


def test_owners__jobs_of_a_set_have_one_top() -> None:
    api, owners = ml()
    top = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train"}
    pods = []
    for number in range(23):
        api.add("ml", f"part-{number}", f"uid-{number}", owner={**top, "controller": True})
        pods.append(owned("ml", f"p{number}", job(f"part-{number}", f"uid-{number}"), LABELS))
    found = owners.of_pods("ml", pods)
    assert found is not None
    assert found.top.ref == REF
    assert found.strays == frozenset()


def test_owners__pods_of_one_selector_are_one_gang_whatever_kind_they_name() -> None:
    """Two gangs would write one report by turns, and orders would reach the first of them only."""
    label = {"training.kubeflow.org/job-name": "train"}
    torch = Owner("kubeflow.org/v1", "PyTorchJob", "train", "uid-train", True)
    one = gang_of(owned("ml", "a", torch, label).pod)
    operator = {"training.kubeflow.org/operator-name": "tfjob-controller"}
    two = gang_of(owned("ml", "b", None, label | operator).pod)
    assert (one.kind, two.kind) == ("PyTorchJob", "TFJob")
    assert len({one, two}) == 1


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("../../secrets/s", "..%2F..%2Fsecrets%2Fs"),
        ("..", "%2E%2E"),
        ("j?watch=1#x", "j%3Fwatch%3D1%23x"),
        ("llm.v2-a", "llm.v2-a"),
    ],
)
def test_owners__what_an_owner_reference_says_stays_one_segment_of_the_path(
    name: str, asked: str
) -> None:
    class FakeNoObjects(FakeObjects):
        def get(self, path: str) -> dict[str, Any]:
            paths.append(path)
            raise NotFound("404", 404)

    paths: list[str] = []
    Owners(FakeNoObjects(), lambda: 0.0).of_pods("ml", [owned("ml", "x", job(name, "u"))])  # type: ignore[arg-type]
    assert set(paths) == {f"/apis/batch/v1/namespaces/ml/jobs/{asked}"}


def test_owners__an_owner_that_is_not_there_is_asked_for_once_a_minute() -> None:
    class FakeNoOwners(FakeObjects):
        def get(self, path: str) -> dict[str, Any]:
            paths.append(path)
            raise NotFound("404", 404)

    paths: list[str] = []
    clock = [0.0]
    owners = Owners(FakeNoOwners(), lambda: clock[0])  # type: ignore[arg-type]
    pods = [owned("ml", f"p{number}", job(f"j{number}", f"u{number}")) for number in range(30)]
    owners.of_pods("ml", pods)
    first = [path for path in paths if path.endswith(tuple(f"/j{number}" for number in range(30)))]
    for _ in range(5):
        owners.of_pods("ml", pods)
    assert len(paths) <= len(first) + 5, "but for the one that is chosen"
    clock[0] += 61.0
    owners.of_pods("ml", pods)
    assert len(paths) > len(first) + 10


def test_owners__a_kind_that_does_not_answer_takes_one_request_at_a_time() -> None:
    class FakeSilentKind(FakeObjects):
        def get(self, path: str) -> dict[str, Any]:
            paths.append(path)
            clock[0] += 5.0
            raise Unreachable("no answer")

    paths: list[str] = []
    clock = [0.0]
    owners = Owners(FakeSilentKind(), lambda: clock[0])  # type: ignore[arg-type]
    for number in range(10):
        with pytest.raises(Unreachable):
            owners.of_pods("ml", [owned("ml", "p", job(f"j{number}", f"u{number}"))])
    assert len(paths) == 1
    clock[0] += 20.0
    with pytest.raises(Unreachable):
        owners.of_pods("ml", [owned("ml", "p", job("j", "u"))])
    assert len(paths) == 2


@pytest.mark.parametrize(
    ("annotation", "label", "on_pods", "owner"),
    [
        ("ada@example.com", "team-a", "team-b", "ada@example.com"),
        (None, "team-a", "team-b", "team-a"),
        (None, None, "team-b", "team-b"),
        (None, None, None, None),
        ("  ", None, None, None),
        ("x" * 300, None, None, "x" * 256),
    ],
)
def test_owners__who_owns_a_job_is_what_it_says_itself_else_what_its_pods_say(
    annotation: str | None, label: str | None, on_pods: str | None, owner: str | None
) -> None:
    api = FakeObjects()
    api.add("ml", "train", "uid", {"kcover.io/owner": label} if label else {})
    (made,) = api.objects.values()
    made["metadata"]["annotations"] = {"kcover.io/owner": annotation}
    labels = {"kcover.io/owner": on_pods} if on_pods else {}
    pods = [owned("ml", f"train-{rank}", job("train", "uid"), labels) for rank in range(2)]
    found = Owners(api, lambda: 0.0).of_pods("ml", pods)  # type: ignore[arg-type]
    assert found is not None
    assert found.top.owner == owner
