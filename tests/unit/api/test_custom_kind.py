"""What a JobKind object says, and which are refused."""

from typing import Any

import pytest

from kcover_ebpf.api.custom_kind import KindRestart, kind_of
from kcover_ebpf.api.job_kinds import Gang, gang_of, is_job_pod, must_train, with_kind
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.errors import ObjectError
from tests.unit.support.custom_kinds import TRAINING, job_kind


def test_custom_kind__says_how_its_jobs_are_suspended() -> None:
    kind = kind_of(job_kind())
    assert (kind.name, kind.generation, kind.restart) == ("trainings", 3, KindRestart.SUSPEND)
    assert kind.suspend is not None
    assert (kind.suspend.suspended, kind.suspend.running) == ("Paused", "Active")
    plain = kind_of(job_kind(suspend={"path": "/spec/suspend"})).suspend
    assert plain is not None
    assert (plain.suspended, plain.running) == (True, False), "as most kinds have it"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no switch": ({"suspend": None}, "spec.suspend: needed"),
    "a switch that is not used": ({"restart": "DeletePods"}, "spec.suspend: needed"),
    "a path that is no pointer": ({"counters": ["status.failed"]}, "no JSON pointer"),
    "a path that ends nowhere": ({"podCount": ["/spec/"]}, "no JSON pointer"),
    "a switch in the status": ({"suspend": {"path": "/status/suspend"}}, "must begin with /spec/"),
    "a switch without effect": (
        {"suspend": {"path": "/spec/x", "suspended": 1, "running": 1}},
        "are the same",
    ),
    "an object as a value": (
        {"suspend": {"path": "/spec/x", "suspended": {"a": 1}}},
        "expected a string, a number, or true or false",
    ),
    "a restart that there is not": ({"restart": "Recreate"}, "expected one of"),
    "no kind": ({"kind": ""}, "must not be empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_custom_kind__what_makes_no_sense_is_refused_with_its_place(case: str) -> None:
    changes, words = WRONG[case]
    with pytest.raises(ObjectError, match=words) as caught:
        kind_of(job_kind(**changes))
    assert str(caught.value).startswith("JobKind trainings: spec")


def pod(labels: dict[str, str], **spec: Any) -> Any:
    owner = {
        "apiVersion": "acme.example/v1",
        "kind": "Crew",
        "name": "c",
        "uid": "o",
        "controller": True,
    }
    metadata = {
        "namespace": "ml",
        "name": "p",
        "uid": "u",
        "labels": labels,
        "ownerReferences": [owner],
    }
    return pod_of({"metadata": metadata, "spec": spec, "status": {}})


def test_with_kind__pods_with_its_labels_are_one_gang_and_watched() -> None:
    launcher = {"label": "role", "value": "boss"}
    rows = [kind_of(job_kind(launcher=launcher)).pods]
    one = with_kind(pod({TRAINING: "run", "role": "boss"}), rows)
    gang = gang_of(one)
    assert (gang.name, gang.kind, gang.id.labels) == ("run", "Training", {TRAINING: "run"})
    assert is_job_pod(one)
    assert not must_train(one)
    other = with_kind(pod({"x": "y"}), rows)
    assert gang_of(other).kind == "Crew", "by its owner"
    assert gang_of(with_kind(one, ())).kind == "Crew", "the object is gone"


def test_with_kind__a_kind_of_the_table_stays_what_it_is() -> None:
    labels = {TRAINING: "run", "jobset.sigs.k8s.io/jobset-name": "set"}
    gang = gang_of(with_kind(pod(labels), [kind_of(job_kind()).pods]))
    assert (gang.name, gang.kind) == ("set", "JobSet")


def test_with_kind__without_labels_it_finds_no_pod() -> None:
    rows = [kind_of(job_kind(podLabels=None)).pods]
    assert gang_of(with_kind(pod({}), rows)).kind == "Crew"


GROUPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Kubernetes' own": ({}, {"schedulingGroup": {"podGroupName": "g"}}),
    "of the scheduler plugins": ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, {}),
    "of Volcano": ({"annotations": {"scheduling.k8s.io/group-name": "g"}}, {}),
    "of Volcano, by its other name": (
        {"annotations": {"scheduling.volcano.sh/group-name": "g"}},
        {},
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_pod_group__pods_that_are_scheduled_together_are_one_gang(case: str) -> None:
    metadata, spec = GROUPS[case]
    owner = {"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "o", "controller": True}
    found = []
    for name, owners in (("a", [owner]), ("b", [owner | {"uid": "o2"}]), ("c", [])):
        made = metadata | {"namespace": "ml", "name": name, "uid": name, "ownerReferences": owners}
        found.append(gang_of(pod_of({"metadata": made, "spec": spec})))
    assert found[0] == found[1] == found[2]
    assert found[0].id.labels == {"kcover.io/pod-group": "g"}


def test_pod_group__a_label_of_that_name_is_none() -> None:
    one = pod({"kcover.io/pod-group": "g"})
    assert one.pod_group == ""
    assert isinstance(gang_of(one), Gang)
    assert gang_of(one).kind == "Crew"
