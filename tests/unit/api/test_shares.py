"""How much is kept of what tenants write: pods of any size and number cost a bounded amount of memory."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.api.pods import MOST_POD_BYTES, kept_bytes, pod_of
from kcover_ebpf.api.shares import Shares
from kcover_ebpf.controller import pod_cache
from kcover_ebpf.controller.pod_cache import Pods
from kcover_ebpf.errors import OverBound
from kcover_ebpf.host import over_bounds
from kcover_ebpf.kube.reflector import Change, Event

JOB = "batch.kubernetes.io/job-name"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "x", "controller": True}


def pod(name: str, namespace: str = "evil", **metadata: Any) -> dict[str, Any]:
    table = {
        "name": name,
        "namespace": namespace,
        "uid": f"u-{namespace}-{name}",
        "labels": {JOB: "j"},
    }
    return {
        "metadata": table | metadata,
        "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }


MANY = {f"{number:06x}": "" for number in range(1000)}
LARGE = {
    "labels": pod("p", labels=MANY | {JOB: "j"}),
    "finalizers": pod("p", finalizers=["example.com/" + "f" * 200] * 200),
    "owners": pod("p", ownerReferences=[{**OWNER, "name": "n" * 100_000}]),
    "annotations of ours": pod("p", annotations={"kcover.io/x": "a" * 200_000}),
    "containers": {**pod("p"), "spec": {"containers": [{"name": f"c{n}"} for n in range(500)]}},
}


@pytest.mark.parametrize("raw", LARGE.values(), ids=LARGE)
def test_pod_of__a_pod_that_is_too_large_is_named(raw: dict[str, Any]) -> None:
    with pytest.raises(OverBound, match="evil/p: its labels, owners") as caught:
        pod_of(raw)
    assert caught.value.about["name"] == "p"


def test_pod_of__a_large_pod_of_a_real_job_is_taken() -> None:
    labels = {f"training.example.com/label-{number}": "v" * 40 for number in range(40)}
    raw = pod("p", labels=labels, ownerReferences=[OWNER], annotations={"big": "x" * 250_000})
    raw["spec"]["containers"] = [{"name": f"c{number}"} for number in range(12)]
    assert kept_bytes(pod_of(raw)) < MOST_POD_BYTES


def test_shares__one_namespace_leaves_room_for_the_others() -> None:
    shares = Shares(100, 40)
    assert [shares.take(f"a{number}", "a", 10) for number in range(6)] == [True] * 4 + [False] * 2
    assert shares.take("b", "b", 40)
    assert not shares.take("c", "c", 30), "all is full"
    shares.drop("a0")
    assert shares.take("a9", "a", 10)
    assert shares.take("a9", "a", 10), "the same object again"
    assert shares.kept_bytes == 80


def test_pods__too_many_of_one_namespace_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[OverBound] = []
    monkeypatch.setattr(pod_cache, "_MOST_OF_ONE_BYTES", 10_000)
    pods = Pods(pod_cache._key_of, over.append)
    for number in range(50):
        pods.take(Event(Change.SET, pod(f"p{number}")))
    key = pods.take(Event(Change.SET, pod("mine", "victim")))
    assert key is not None
    assert [gang_pod.pod.name for gang_pod in pods.of(key)] == ["mine"]
    assert 40 < len(over) < 50
    for number in range(50):
        pods.take(Event(Change.GONE, pod(f"p{number}")))
    assert pods.take(Event(Change.SET, pod("later"))) is not None


def test_pods__one_that_has_grown_too_large_is_no_longer_kept() -> None:
    over: list[OverBound] = []
    pods = Pods(pod_cache._key_of, over.append)
    key = pods.take(Event(Change.SET, pod("p")))
    assert key is not None
    assert pods.take(Event(Change.SET, pod("p", labels=MANY | {JOB: "j"}))) == key
    assert pods.of(key) == ()
    assert [bound.what for bound in over] == ["pod"]


def test_pod_registry__a_pod_that_is_too_large_is_counted_and_not_watched() -> None:
    said: list[str] = []
    registry = PodRegistry("n", said.append)
    before = over_bounds.counts().get("pod", 0)
    armed = {JOB: "j", "kcover.io/cascading-recovery": "true"}
    registry.on_pod(Event(Change.SET, pod("p", labels=armed)))
    assert registry.pod_count == 1
    registry.on_pod(Event(Change.SET, LARGE["labels"]))
    assert registry.pod_count == 0
    assert over_bounds.counts()["pod"] == before + 1
    assert "more than 32: it is not watched" in said[0]
