"""The pods of all gangs from a few watches: each in its own gang, none twice, and only asked-for gangs are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kcover_ebpf.api.job_kinds import GangId, job_kinds
from kcover_ebpf.controller import pod_cache
from kcover_ebpf.controller.pod_cache import Pods, gang_pod
from kcover_ebpf.kube.reflector import Change, Event

JOB = "batch.kubernetes.io/job-name"
KEY = GangId.of("ns", {JOB: "j"})


def pod(name: str, labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-j", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "labels": {JOB: "j"} if labels is None else labels,
            "annotations": {"big": "x" * 1000},
            "ownerReferences": [owner, {**owner, "uid": "another", "controller": False}],
        }
        | more,
        "spec": {"containers": [{"name": "main"}], "nodeName": "n"},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": "containerd://abc"}],
        },
    }


@pytest.fixture
def pods() -> Pods:
    return Pods(pod_cache._key_of)


def names(pods: Pods, gang_id: GangId = KEY) -> list[str]:
    return [other_pod.pod.name for other_pod in pods.of(gang_id)]


def test_pods__come_and_go_by_name(pods: Pods) -> None:
    assert pods.take(Event(Change.SET, pod("j-1"))) == KEY
    pods.take(Event(Change.SET, pod("j-0")))
    assert names(pods) == ["j-0", "j-1"]
    assert pods.take(Event(Change.GONE, {"metadata": {"uid": "u-j-0"}})) == KEY
    assert names(pods) == ["j-1"]
    assert pods.take(Event(Change.GONE, {"metadata": {"uid": "u-j-0"}})) is None
    pods.take(Event(Change.GONE, {"metadata": {"uid": "u-j-1"}}))
    assert names(pods) == []
    pods.forget(KEY)
    assert (pods._gangs, pods._keys, pods._sorted) == ({}, {}, {}), "nothing is left of a gang"


def test_pods__a_pod_whose_label_is_changed_changes_its_gang(pods: Pods) -> None:
    other = GangId.of("ns", {JOB: "other"})
    pods.take(Event(Change.SET, pod("j-0")))
    assert names(pods) == ["j-0"]
    assert pods.take(Event(Change.SET, pod("j-0", {JOB: "other"}))) == other
    assert (names(pods), names(pods, other)) == ([], ["j-0"])


def test_pods__a_pod_that_cannot_be_read_is_passed_over(pods: Pods) -> None:
    assert pods.take(Event(Change.SET, {"metadata": {}})) is None


def test_gang_pod__of_a_pod_only_what_a_restart_needs_is_kept() -> None:
    kept = gang_pod(pod("j-0")).pod
    assert kept.annotations == {}
    assert [owner.uid for owner in kept.owners] == ["u-j"]
    assert kept.containers[0].id == ""
    assert kept.owners[0] is gang_pod(pod("j-1")).pod.owners[0], "what a gang shares is kept once"


def test_watched__every_kind_is_watched_by_its_label_and_no_pod_twice() -> None:
    watched = dict(pod_cache._watched())
    assert set(watched) == {tuple(sorted(kind.gang)) for kind in job_kinds()}
    seen: list[str] = []
    for labels, query in watched.items():
        terms = query["labelSelector"].split(",")
        assert [term for term in terms if term[0] != "!"] == list(labels) or set(labels) <= set(
            terms
        )
        assert [term[1:] for term in terms if term[0] == "!"] == seen
        seen.append(terms[0])


class FakeEmptyTransport:
    """Every list is empty, and every watch waits."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def list(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        self.asked.append((path, query.get("labelSelector", "")))
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    def stream(self, path: str, query: dict[str, str], timeout_s: int) -> Sequence[dict[str, Any]]:
        return ()


def test_pod_cache__only_gangs_that_are_asked_for_are_reported() -> None:
    reported: list[GangId] = []
    made = pod_cache.PodCache(FakeEmptyTransport(), reported.append, lambda _: None)  # type: ignore[arg-type]
    informer = made._shared[JOB,]
    informer.watch.synced.set()
    informer._on_event(Event(Change.SET, pod("j-0")))
    assert reported == []
    assert [other_pod.pod.name for other_pod in made.shown(KEY)] == ["j-0"]
    informer._on_event(Event(Change.SET, pod("j-0")))
    assert reported == [], "who reads without asking is not notified"
    found = made.pods(KEY)
    assert found is not None
    assert [other_pod.pod.name for other_pod in found] == ["j-0"]
    informer._on_event(Event(Change.SET, pod("j-1")))
    assert reported == [KEY]
    made.forget(KEY)
    informer._on_event(Event(Change.SET, pod("j-2")))
    assert reported == [KEY]


def test_pod_cache__pods_are_not_known_before_the_first_list() -> None:
    made = pod_cache.PodCache(FakeEmptyTransport(), lambda _: None, lambda _: None)  # type: ignore[arg-type]
    assert made.pods(KEY) is None


def test_pod_cache__a_gang_named_by_its_owner_has_a_watch_of_its_own_while_it_is_asked_for() -> (
    None
):
    transport = FakeEmptyTransport()
    made = pod_cache.PodCache(transport, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    key = GangId.of("ns", {"kcover.io/owner-uid": "u-j"})
    assert made.shown(key) == ()
    assert transport.asked == []
    made.pods(key)
    own = made._own[key]
    assert own.watch.synced.wait(30)
    assert transport.asked == [("/api/v1/namespaces/ns/pods", "")]
    own._on_event(Event(Change.SET, pod("s-0", {})))
    own._on_event(Event(Change.SET, pod("x-0", {}, ownerReferences=[])))
    found = made.pods(key)
    assert found is not None
    assert [other_pod.pod.name for other_pod in found] == ["s-0"]
    made.forget(key)
    assert made._own == {}
