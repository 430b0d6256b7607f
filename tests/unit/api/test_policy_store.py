"""The FaultPolicies of a cluster: how many are kept, and what holds where one is not."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.api.fault_policy import FaultPolicy, Level
from kcover_ebpf.api.policy_store import MOST_POLICIES, PolicyStore
from kcover_ebpf.errors import OverBound
from kcover_ebpf.kube.reflector import Change, Event
from tests.unit.support.kept_policies import policy_object


def store(over: list[OverBound] | None = None, *, observes_unread: bool = True) -> PolicyStore:
    noted = [] if over is None else over
    return PolicyStore(on_over=noted.append, observes_unread=observes_unread)


def names(kept_store: PolicyStore, namespace: str = "ns") -> list[str]:
    return sorted(policy.name for policy in kept_store.of(namespace))


def test_policy_store__of_many_in_a_namespace_the_first_by_name_are_kept() -> None:
    over: list[OverBound] = []
    kept = store(over, observes_unread=False)
    for number in reversed(range(MOST_POLICIES + 7)):
        kept.set(policy_object("ns", f"p{number:04}"))
    assert names(kept) == [f"p{number:04}" for number in range(MOST_POLICIES)]
    assert {bound.about["name"] for bound in over} == {f"p{MOST_POLICIES + n:04}" for n in range(7)}
    assert {bound.what for bound in over} == {"policies"}


def test_policy_store__one_namespace_takes_no_room_of_another() -> None:
    kept = store()
    big = {f"key-{number}": "x" * 60 for number in range(80)}
    for number in range(3000):
        made = policy_object("evil", f"p{number}")
        made["spec"] = {"selector": {"matchLabels": big}}
        kept.set(made)
    kept.set(policy_object("victim", "mine", FaultPolicy(action=Level.IGNORE)))
    assert [policy.policy.action for policy in kept.of("victim")] == [Level.IGNORE]
    assert kept._shares.kept_bytes < 1 << 20


def test_policy_store__pods_of_a_namespace_with_too_many_are_observed_only() -> None:
    kept = store()
    for number in range(MOST_POLICIES + 1):
        kept.set(policy_object("ns", f"p{number:04}"))
    first = min(kept.of("ns"), key=lambda policy: policy.name)
    assert first.policy.action is Level.OBSERVE
    assert first.policy.selector.holds({})
    assert [policy.policy.action for policy in store().of("other")] == []
    kept.remove(policy_object("ns", f"p{MOST_POLICIES:04}"))
    assert "" not in names(kept)


def test_policy_store__what_cannot_be_read_holds_as_observation_or_not_at_all() -> None:
    wrong = policy_object("ns", "p")
    wrong["spec"] = {"thresholds": {"moon": "1s"}, "selector": {"matchLabels": {"app": "x"}}}
    strict = store()
    strict.set(wrong)
    found = strict.of("ns")[0].policy
    assert found.action is Level.OBSERVE
    assert found.selector.holds({"app": "x"})
    assert not found.selector.holds({"app": "y"})
    loose = store(observes_unread=False)
    loose.set(policy_object("ns", "p"))
    loose.set(wrong)
    assert loose.of("ns") == ()


def test_policy_store__a_write_that_changes_nothing_is_no_change() -> None:
    kept = store()
    assert kept.set(policy_object("ns", "p")) == "ns"
    again: dict[str, Any] = policy_object("ns", "p")
    again["metadata"]["annotations"] = {"x": "1"}
    assert kept.set(again) is None
    assert kept.set(policy_object("ns", "p", FaultPolicy(dry_run=True))) == "ns"
    assert kept.remove(policy_object("ns", "p")) == "ns"
    assert kept.remove(policy_object("ns", "p")) is None


def test_pod_registry__policies_that_concern_no_pod_here_are_no_change() -> None:
    registry = PodRegistry("n1")
    metadata = {"name": "a", "namespace": "team", "uid": "u", "labels": {"app": "x"}}
    registry.on_pod(Event(Change.SET, {"metadata": metadata, "spec": {"nodeName": "n1"}}))
    before = registry.version
    for number in range(5):
        made = policy_object("evil", "p", FaultPolicy(dry_run=number % 2 == 0))
        registry.on_policy(Event(Change.SET, made))
    assert registry.version == before
    for number in range(5):
        made = policy_object("team", "p")
        made["metadata"]["annotations"] = {"x": str(number)}
        registry.on_policy(Event(Change.SET, made))
    assert registry.version == before + 1
