"""The FaultPolicy resource: defaults, which one holds for a pod, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from kcover_ebpf import settings
from kcover_ebpf.api.fault_policy import FaultPolicy, Level, NamedPolicy, holding, policy_of
from kcover_ebpf.api.incident import RestartMethod
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.kube.reflector import Change, Event


def made(name: str = "p", namespace: str = "ns", **spec: object) -> NamedPolicy:
    return policy_of({"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def test_policy_of__an_empty_policy_is_the_default():
    assert made().policy == FaultPolicy()


def test_policy_of__every_field_is_read():
    policy = made(
        action="Snapshot",
        dryRun=True,
        ways=["Replace"],
        restarts={"max": 1, "windowSeconds": 60, "backoffSeconds": 5, "backoffMaxSeconds": 50},
        forceDelete=True,
        node={"cordon": False},
        thresholds={"quiet_cap": "5m", "stall_factor": "2.5"},
    ).policy
    assert (policy.action, policy.dry_run, policy.ways) == (
        Level.SNAPSHOT,
        True,
        (RestartMethod.REPLACE,),
    )
    assert (policy.restarts.max, policy.restarts.backoff_max_seconds) == (1, 50)
    assert (policy.force_delete, policy.node.cordon, policy.node.taint) == (True, False, True)
    assert (policy.settings().quiet_cap_s, policy.settings().stall_factor) == (300.0, 2.5)


SELECTORS = {
    "nothing asked": ({}, True),
    "a label": ({"matchLabels": {"app": "llm"}}, True),
    "another value": ({"matchLabels": {"app": "web"}}, False),
    "In": ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["llm"]}]}, True),
    "NotIn": ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["llm"]}]}, False),
    "NotIn a missing label": (
        {"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["llm"]}]}, True,
    ),
    "Exists": ({"matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
    "DoesNotExist": ({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, True),
}  # fmt: skip


@pytest.mark.parametrize(("selector", "holds"), SELECTORS.values(), ids=SELECTORS)
def test_holding__a_selector(selector, holds):
    found = holding([made(selector=selector)], "ns", {"app": "llm"})
    assert (found is not None) == holds


def test_policy_of__the_first_by_name_holds_and_only_in_its_namespace():
    policies = [made("b"), made("a"), made("0", "elsewhere")]
    found = holding(policies, "ns", {})
    assert found is not None
    assert found.name == "a"
    assert holding(policies, "third", {}) is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"action": "Pray"}, "spec.action"),
        ({"thresholds": {"quiet_cap": "5"}}, "quiet_cap"),
        ({"thresholds": {"quite_cap": "5m"}}, "unknown key 'quite_cap'"),
        ({"thresholds": {"max_restarts": "5"}}, "use restarts.max"),
        ({"thresholds": {"backoff": "5s"}}, "use restarts.backoffSeconds"),
        ({"thresholds": {"backoff_max": "5s"}}, "use restarts.backoffMaxSeconds"),
        ({"thresholds": {"grace": "5s"}}, "terminationGracePeriodSeconds"),
        ({"ways": "Replace"}, "spec.ways"),
    ],
)
def test_policy_of__a_policy_that_means_nothing_is_refused(spec, words):
    with pytest.raises(ObjectError, match=words):
        made(**spec)


def test_policy__every_threshold_that_is_taken_means_something_in_a_cluster():
    """`run` alone restarts and ends processes by itself; all that judges, does so in a cluster, too."""
    names = (field.name for field in dataclasses.fields(settings.Policy))
    known = {name.removesuffix("_per_h").removesuffix("_s") for name in names}
    values = {"stall_factor": "2.5", "false_restarts": "1 per 100h"}
    without_effect = {"max_restarts", "backoff", "backoff_max", "grace"}
    assert without_effect <= known
    for key in known - without_effect:
        thresholds = {key: values.get(key, "30s")}
        policy_of({"metadata": {"name": "p"}, "spec": {"thresholds": thresholds}})


@pytest.mark.parametrize(
    ("spec", "labels", "action"),
    [
        ({"action": "Explode"}, {}, Level.OBSERVE),
        (
            {"thresholds": {"grace": "5s"}, "selector": {"matchLabels": {"a": "b"}}},
            {"a": "b"},
            Level.OBSERVE,
        ),
        (
            {"thresholds": {"grace": "5s"}, "selector": {"matchLabels": {"a": "b"}}},
            {"a": "c"},
            None,
        ),
        ({"selector": "all"}, {}, Level.OBSERVE),
        ("nonsense", {}, Level.OBSERVE),
    ],
)
def test_policy__one_that_cannot_be_read_lets_nothing_be_done(spec, labels, action):
    store = ObjectCache(lambda _: None)
    said: list[str] = []
    store.bad = said.append
    raw = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}
    store.on_policy(Event(Change.SET, raw))
    found = holding(store.policies.of("ns"), "ns", labels)
    assert (found.policy.action if found is not None else None) is action
    assert "observed only" in said[0]


def test_policy_of__a_policy_that_is_larger_than_any_that_is_meant_is_refused():
    """It may be of a time at which the schema had no bounds."""
    values = {"key": "a", "operator": "In", "values": ["x" * 21_000] * 64}
    with pytest.raises(ObjectError, match="larger than 8 KiB"):
        made(selector={"matchExpressions": [values]})
    large = [{"key": f"k{n}", "operator": "In", "values": ["x" * 63] * 8} for n in range(12)]
    assert made(selector={"matchExpressions": large}).policy is not None
