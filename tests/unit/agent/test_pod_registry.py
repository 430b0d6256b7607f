"""Which pods are watched, as what gang, by which thresholds."""

from typing import Any

import pytest

from kcover_ebpf.agent.pod_registry import PodRegistry, key_of, report_name
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.kube.reflector import Change, Event
from tests.unit.support.custom_kinds import TRAINING, job_kind
from tests.unit.support.registry_pods import heard

JOB = "training.kubeflow.org/job-name"
ARMED = "kcover.io/cascading-recovery"


def pod(name: str, labels: dict[str, str], node: str = "n1", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"u-{name}",
            "labels": labels,
            **metadata,
        },
        "spec": {"nodeName": node},
        "status": {"phase": "Running"},
    }


def policy(name: str, namespace: str = "team", **spec: Any) -> Event:
    made = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return Event(Change.SET, made)


def names(registry: PodRegistry) -> dict[str, list[str]]:
    return {
        gang.name: [other_pod.name for other_pod in here.pods]
        for gang, here in registry.gangs().items()
    }


APP: dict[str, Any] = {"selector": {"matchLabels": {"app": "x"}}}
WATCHED: dict[str, tuple[dict[str, str], str, tuple[Event, ...], bool]] = {
    "a job's": ({JOB: "j"}, "n1", (), True),
    "another client's": ({"app": "x"}, "n1", (), False),
    "armed": ({"app": "x", ARMED: "true"}, "n1", (), True),
    "selected": ({"app": "x"}, "n1", (policy("p", **APP),), True),
    "selected in another namespace": ({"app": "x"}, "n1", (policy("p", "other", **APP),), False),
    "to be ignored": ({JOB: "j", "app": "x"}, "n1", (policy("p", action="Ignore", **APP),), False),
    "ignored by the second policy": (
        {"app": "x"},
        "n1",
        (policy("a", **APP), policy("b", action="Ignore")),
        True,
    ),
    "of another node": ({JOB: "j"}, "n2", (), False),
    "selected by a policy that makes no sense": (
        {"app": "x"},
        "n1",
        (policy("p", thresholds={"moon": "1s"}, **APP),),
        False,
    ),
}


@pytest.mark.parametrize(("labels", "node", "policies", "watched"), WATCHED.values(), ids=WATCHED)
def test_pod_registry__watched(
    labels: dict[str, str], node: str, policies: tuple[Event, ...], watched: bool
) -> None:
    assert bool(heard(pod("p", labels, node), policies=policies).gangs()) is watched


def test_pod_registry__pods_of_a_gang_are_together_and_by_name() -> None:
    registry = heard(pod("b", {JOB: "j"}), pod("a", {JOB: "j"}), pod("c", {JOB: "k"}))
    assert names(registry) == {"j": ["a", "b"], "k": ["c"]}
    assert registry.pod_count == 3


def test_pod_registry__a_pod_that_went_away_is_reported_by_its_identity_alone() -> None:
    registry = heard(pod("a", {JOB: "j"}))
    version = registry.version
    registry.on_pod(Event(Change.GONE, {"metadata": {"name": "a", "uid": "u-a"}}))
    assert names(registry) == {}
    assert registry.version > version


def test_pod_registry__a_pod_that_is_being_deleted_reports_nothing_more_but_is_still_there() -> (
    None
):
    (here,) = heard(pod("a", {JOB: "j"}, deletionTimestamp="2026-01-01T00:00:00Z")).gangs().values()
    assert [other_pod.name for other_pod in here.pods] == ["a"]
    assert here.live == ()


def test_pod_registry__thresholds_of_a_policy_hold_and_are_taken_back() -> None:
    registry = heard(pod("a", {JOB: "j"}), policies=(policy("p", thresholds={"quiet_cap": "5m"}),))
    (here,) = registry.gangs().values()
    assert here.policy.quiet_cap_s == 300
    registry.on_policy(Event(Change.GONE, {"metadata": {"name": "p", "namespace": "team"}}))
    (here,) = registry.gangs().values()
    assert here.policy.quiet_cap_s == 1800


def test_pod_registry__a_policy_says_whether_ends_of_logs_are_kept() -> None:
    registry = heard(pod("a", {JOB: "j"}))
    assert [here.keeps_logs for here in registry.gangs().values()] == [True]
    registry = heard(pod("a", {JOB: "j"}), policies=(policy("p", evidenceLogs=False),))
    assert [here.keeps_logs for here in registry.gangs().values()] == [False]


def test_pod_registry__what_makes_no_sense_is_reported_and_passed_over() -> None:
    said: list[str] = []
    registry = PodRegistry("n1", said.append)
    registry.on_pod(Event(Change.SET, {"metadata": {}}))
    registry.on_policy(policy("p", action="Dance"))
    assert len(said) == 2
    assert registry.gangs() == {}


def gang(name: str, value: str = "x") -> Gang:
    return Gang(GangId.of("team", {JOB: value}), name, "Job")


def test_report_name__has_no_dot_but_before_its_node() -> None:
    made = Gang(GangId.of("team", {JOB: "a.b-123456"}), "a.b-123456", "PyTorchJob")
    job, _, node = report_name(made, "n.example").partition(".")
    assert node == "n.example"
    assert job.startswith("a-b-123456-")


def test_report_name__gangs_of_one_name_have_reports_of_their_own() -> None:
    assert report_name(gang("j", "a"), "n1") != report_name(gang("j", "b"), "n1")
    assert key_of(gang("j", "a")) != key_of(gang("j", "b"))


@pytest.mark.parametrize(
    "name",
    ["train", "x" * 300, "Ünicode_name", "", "-.-"],
    ids=["plain", "long", "odd", "none", "dots"],
)
def test_report_name__a_report_has_a_name_that_the_api_takes_and_ends_in_its_node(
    name: str,
) -> None:
    import re

    made = report_name(gang(name), "node-1.example")
    assert len(made) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made)
    assert made.endswith(".node-1.example")


OWNER = {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
OWNED: dict[str, Any] = {"ownerReferences": [OWNER]}


def test_pod_registry__a_debug_copy_of_a_pod_is_no_part_of_its_gang() -> None:
    """It carries the labels and the environment of a rank, and sleeps."""
    copy = pod("a-copy", {JOB: "j"})
    assert names(heard(copy, pod("j-0", {JOB: "j"}, **OWNED))) == {"j": ["j-0"]}


def test_pod_registry__bare_pods_are_a_gang_as_long_as_they_are_most_of_it() -> None:
    bare = [pod(f"bare-{number}", {JOB: "j"}) for number in range(2)]
    found = names(heard(*bare, pod("stray", {JOB: "j"}, **OWNED)))
    assert found == {"j": ["bare-0", "bare-1", "stray"]}


def test_registry__pods_of_an_operators_kind_are_watched_once_it_is_described() -> None:
    registry = heard(pod("p", {TRAINING: "run"}), pod("q", {TRAINING: "run"}))
    assert names(registry) == {}
    registry.on_kind(Event(Change.SET, job_kind()))
    assert names(registry) == {"run": ["p", "q"]}
    version = registry.version
    registry.on_kind(Event(Change.SET, job_kind("other", kind="Other", podLabels=["other"])))
    assert registry.version == version, "a kind that is not on this node costs no pass"
    registry.on_kind(Event(Change.SET, job_kind(podLabels=["none"])))
    assert names(registry) == {}
