"""Which job pods belong to, whatever their ownerReferences and labels claim."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.cluster.gang import GangPod
from kcover_ebpf.cluster.pods import Owner, Pod
from kcover_ebpf.controller.owners import Owners
from kcover_ebpf.errors import NotFound

ARM = {"kcover.io/cascading-recovery": "true"}


class Api:
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
    namespace: str, name: str, owner: Owner | None, labels: dict[str, str] | None = None
) -> GangPod:
    owners = (owner,) if owner is not None else ()
    return GangPod(
        Pod(namespace, name, f"u-{name}", "n", "Running", 1.0, None, labels or {}, {}, owners, ())
    )


def job(name: str, uid: str) -> Owner:
    return Owner("batch/v1", "Job", name, uid, True)


def test_owners__a_pod_that_claims_a_foreign_uid_changes_nothing_for_that_job() -> None:
    api, now_s = Api(), [0.0]
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
    api = Api()
    owners = Owners(api, lambda: 0.0)  # type: ignore[arg-type]
    api.add("evil", "train", "uid-shared", ARM)
    api.add("victim", "train", "uid-shared")
    assert owners.of_pods("evil", [owned("evil", "x", job("train", "uid-shared"))]) is not None
    found = owners.of_pods("victim", [owned("victim", "x", job("train", "uid-shared"))])
    assert found is not None
    assert not found.top.armed
