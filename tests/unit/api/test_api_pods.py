"""Pods from API objects, and which gang they belong to."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api.job_kinds import (
    OWNER_UID,
    POD_UID,
    Gang,
    GangId,
    counts_whole_gang,
    gang_of,
    is_job_pod,
    selects,
    with_ranks,
)
from kcover_ebpf.api.pods import Container, ContainerEnd, ContainerKind, Pod, pod_of
from kcover_ebpf.errors import ObjectError


def pod(
    labels: dict[str, str] | None = None, owner: tuple[str, str] | None = None, **more: Any
) -> Pod:
    api: dict[str, Any] = {
        "metadata": {
            "name": "p-0",
            "namespace": "team",
            "uid": "u-0",
            "labels": labels or {},
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    if owner is not None:
        version, kind = owner
        reference = {"apiVersion": version, "kind": kind, "name": "j", "uid": "o-1"}
        api["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    for key, value in more.items():
        api[key] = {**api[key], **value}
    return pod_of(api)


KUBEFLOW = "training.kubeflow.org/job-name"
OPERATOR = "training.kubeflow.org/operator-name"
JOB = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
SET = "jobset.sigs.k8s.io/jobset-name"
LWS = "leaderworkerset.sigs.k8s.io"

# labels, controlling owner -> kind, name, watched without being asked
GANGS: dict[str, tuple[dict[str, str], tuple[str, str] | None, str | None, str, bool]] = {
    "PyTorchJob": ({KUBEFLOW: "j"}, ("kubeflow.org/v1", "PyTorchJob"), "PyTorchJob", "j", True),
    "TFJob": ({KUBEFLOW: "j"}, ("kubeflow.org/v1", "TFJob"), "TFJob", "j", True),
    "MPIJob, worker": ({KUBEFLOW: "j"}, ("kubeflow.org/v2beta1", "MPIJob"), "MPIJob", "j", True),
    "MPIJob, launcher: owned by its own Job": (
        {KUBEFLOW: "j", OPERATOR: "mpi-operator", JOB: "j-launcher"},
        ("batch/v1", "Job"),
        "MPIJob",
        "j",
        True,
    ),
    "JobSet": ({SET: "j", JOB: "j-w-0", INDEX: "0"}, ("batch/v1", "Job"), "JobSet", "j", True),
    "LeaderWorkerSet": (
        {f"{LWS}/name": "j", f"{LWS}/group-index": "1"},
        ("apps/v1", "StatefulSet"),
        "LeaderWorkerSet",
        "1-j",
        True,
    ),
    "Volcano": (
        {"volcano.sh/job-name": "j"},
        ("batch.volcano.sh/v1alpha1", "Job"),
        "Job",
        "j",
        True,
    ),
    "indexed Job": ({JOB: "j", INDEX: "0"}, ("batch/v1", "Job"), "Job", "j", True),
    "plain Job": ({JOB: "j"}, ("batch/v1", "Job"), "Job", "j", False),
    "StatefulSet": ({"app": "db"}, ("apps/v1", "StatefulSet"), "StatefulSet", "j", False),
    "Deployment": ({"app": "web"}, ("apps/v1", "ReplicaSet"), "ReplicaSet", "j", False),
}


@pytest.mark.parametrize(("labels", "owner", "kind", "name", "watched"), GANGS.values(), ids=GANGS)
def test_pod_of__gang(
    labels: dict[str, str],
    owner: tuple[str, str] | None,
    kind: str | None,
    name: str,
    watched: bool,
) -> None:
    one = pod(labels, owner)
    gang = gang_of(one)
    assert (gang.namespace, gang.kind, set(gang.name.split("-"))) == (
        "team",
        kind,
        set(name.split("-")),
    )
    assert is_job_pod(one) is watched
    assert selects(gang.id.labels, one)


@pytest.mark.parametrize(
    ("labels", "whole"),
    [
        ({JOB: "j", INDEX: "0"}, True),
        ({SET: "j", INDEX: "0", "jobset.sigs.k8s.io/global-replicas": "1"}, True),
        ({SET: "j", INDEX: "0", "jobset.sigs.k8s.io/global-replicas": "2"}, False),
        ({SET: "j", INDEX: "0"}, False),
        ({}, True),
    ],
)
def test_pod_of__an_index_counts_through_the_gang_unless_several_jobs_make_it(
    labels: dict[str, str], whole: bool
) -> None:
    assert counts_whole_gang(pod(labels)) is whole


def test_pod_of__a_bare_pod_is_a_gang_of_one() -> None:
    one = pod({"app": "x"})
    gang = gang_of(one)
    assert gang == Gang(GangId.of("team", {POD_UID: "u-0"}), "p-0", "Pod")
    assert selects(gang.id.labels, one)
    assert not is_job_pod(one)


@pytest.mark.parametrize("label", [POD_UID, OWNER_UID])
def test_pod_of__a_label_that_looks_like_a_uid_is_none(label: str) -> None:
    assert not selects({label: "x"}, pod({label: "x"}))


def test_pod_of__pods_of_one_owner_are_one_gang_and_of_another_are_not() -> None:
    one = pod({"app": "db"}, ("apps/v1", "StatefulSet"))
    assert gang_of(one) == Gang(GangId.of("team", {OWNER_UID: "o-1"}), "j", "StatefulSet")
    assert not selects({OWNER_UID: "o-2"}, one)
    assert not selects({OWNER_UID: "o-1"}, pod({"app": "db"}))


def test_pod_of__a_selector_needs_every_pair() -> None:
    one = pod({"a": "1", "b": "2"})
    assert selects({"a": "1", "b": "2"}, one)
    assert not selects({"a": "1", "b": "3"}, one)
    assert not selects({"a": "1", "c": ""}, one)
    assert not selects({}, one)


def test_pod_of__containers_of_every_kind() -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [137]}}
    one = pod(
        spec={
            "initContainers": [{"name": "wait"}, {"name": "log", "restartPolicy": "Always"}],
            "containers": [{"name": "train", "restartPolicyRules": [rule]}],
            "ephemeralContainers": [{"name": "debug"}],
        },
        status={
            "initContainerStatuses": [
                {"name": "wait", "state": {"terminated": {"exitCode": 0}}},
                {"name": "log", "containerID": "cri-o://bb"},
            ],
            "containerStatuses": [
                {
                    "name": "train",
                    "containerID": "containerd://aa",
                    "restartCount": 2,
                    "state": {"running": {"startedAt": "1970-01-01T00:00:09Z"}},
                    "lastState": {
                        "terminated": {
                            "exitCode": 137,
                            "reason": "OOMKilled",
                            "startedAt": "1970-01-01T00:00:02Z",
                            "finishedAt": "1970-01-01T00:00:08Z",
                        }
                    },
                }
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    )
    assert [(container.name, container.kind, container.id) for container in one.containers] == [
        ("wait", ContainerKind.INIT, ""),
        ("log", ContainerKind.SIDECAR, "bb"),
        ("train", ContainerKind.MAIN, "aa"),
        ("debug", ContainerKind.EPHEMERAL, ""),
    ]
    train = one.containers[2]
    assert (train.restart_count, train.started_s) == (2, 9.0)
    assert train.last_end == ContainerEnd(137, 8.0, 6.0, "OOMKilled")
    assert one.containers[0].last_end == ContainerEnd(0), "and when is not known"
    assert one.restarts_in_place
    assert one.ready


def test_pod_of__a_pod_that_is_being_deleted() -> None:
    api = {"name": "p", "uid": "u", "deletionTimestamp": "1970-01-01T00:00:30Z"}
    assert pod_of({"metadata": api}).deleted_s == 30.0
    assert pod().deleted_s is None
    assert not pod().restarts_in_place


def test_pod_of__a_pod_without_identity_is_refused() -> None:
    with pytest.raises(ObjectError, match=r"metadata\.uid"):
        pod_of({"metadata": {"name": "p"}})


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
)
parts = st.sampled_from(
    ["containers", "initContainers", "containerStatuses", "conditions", "phase", "nodeName"]
)


@given(json, st.dictionaries(parts, json), st.dictionaries(parts, json))
def test_pod_of__any_pod_with_an_identity_is_read(labels: Any, spec: Any, status: Any) -> None:
    metadata = {"name": "p", "uid": "u", "labels": labels, "ownerReferences": labels}
    pod = pod_of({"metadata": metadata, "spec": spec, "status": status})
    assert (pod.name, pod.uid) == ("p", "u")
    gang_of(pod)


OF_KUBEFLOW = {"training.kubeflow.org/job-name": "j"}
PYTORCH, BESIDE, BEFORE = (
    Container("pytorch", ContainerKind.MAIN, "a"),
    Container("log", ContainerKind.MAIN, "b"),
    Container("pytorch", ContainerKind.INIT, "c"),
)
WITH_RANKS = {
    "the one that the kind insists on": ("PyTorchJob", (BESIDE, PYTORCH), (PYTORCH,)),
    "all, where none has its name": ("PyTorchJob", (BESIDE, BEFORE), (BESIDE,)),
    "all, where the kind insists on none": ("MPIJob", (BESIDE, PYTORCH), (BESIDE, PYTORCH)),
}


@pytest.mark.parametrize(("kind", "containers", "expected"), WITH_RANKS.values(), ids=WITH_RANKS)
def test_pod_of__containers_with_ranks(
    kind: str, containers: tuple[Container, ...], expected: tuple[Container, ...]
) -> None:
    made = pod(OF_KUBEFLOW, ("kubeflow.org/v1", kind))
    assert with_ranks(replace(made, containers=containers)) == expected


def test_pod_of__devices_that_their_driver_calls_unhealthy() -> None:
    """As the kubelet writes them (KEP-4680)."""
    devices = [
        {"resourceID": str(number), "health": health}
        for number, health in enumerate(("Healthy", "Unhealthy", "Unknown"))
    ]
    status = {"allocatedResourcesStatus": [{"name": "acme.example/gpu", "resources": devices}]}
    api = {
        "metadata": {"name": "p", "uid": "u"},
        "status": {"containerStatuses": [{"name": "main", **status}]},
    }
    assert pod_of(api).unhealthy == ("acme.example/gpu 1",)
    many = {"allocatedResourcesStatus": [{"name": 7, "resources": [{"health": "Unhealthy"}] * 99}]}
    api["status"] = {"containerStatuses": [many]}
    assert pod_of(api).unhealthy == (" ",) * 16
