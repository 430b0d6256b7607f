"""Why a pod does not run yet, as its status says it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api.pod_waits import PodWait, wait_of
from kcover_ebpf.api.pods import kept_bytes, pod_of

SPEC = {"initContainers": [{"name": "wait-dns"}], "containers": [{"name": "main"}]}
NODES = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}


def status(main: dict[str, Any] | None = None, init: dict[str, Any] | None = None) -> Any:
    found: dict[str, Any] = {"phase": "Pending"}
    if init is not None:
        found["initContainerStatuses"] = [{"name": "wait-dns", "state": init}]
    if main is not None:
        found["containerStatuses"] = [{"name": "main", "state": main}]
    return found


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": 'Back-off pulling image "x"'}}


STATUSES = {
    "no node has room": (
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": NODES,
                }
            ],
        },
        f"Unschedulable ({NODES})",
        True,
    ),
    "its kubelet has not begun": (status(), "no container was started yet", False),
    "an image is pulled": (
        status(waiting("ContainerCreating"), DONE),
        "ContainerCreating (container main)",
        False,
    ),
    "an init container works": (
        status(waiting("PodInitializing"), {"running": {}}),
        "PodInitializing (init container wait-dns runs)",
        False,
    ),
    "an image is not there": (
        status(waiting("ImagePullBackOff"), DONE),
        "ImagePullBackOff (container main)",
        True,
    ),
    "nor that of an init container": (
        status(waiting("PodInitializing"), waiting("ErrImagePull")),
        "ErrImagePull (init container wait-dns)",
        True,
    ),
    "a secret is not there": (
        status(waiting("CreateContainerConfigError"), DONE),
        "CreateContainerConfigError (container main)",
        True,
    ),
    "an init container fails": (
        status(
            waiting("PodInitializing"),
            {"terminated": {"exitCode": 2, "reason": "Error"}},
        ),
        "Error (init container wait-dns, exit code 2)",
        True,
    ),
    "it crashes again and again": (
        status(waiting("CrashLoopBackOff"), DONE) | {"phase": "Running"},
        "CrashLoopBackOff (container main)",
        True,
    ),
    "it crashed just now": (
        status({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, DONE),
        "OOMKilled (container main, exit code 137)",
        True,
    ),
    "it runs": (status({"running": {}}, DONE), None, False),
    "it is done": (status(DONE, DONE) | {"phase": "Running"}, None, False),
    "it has failed": ({"phase": "Failed"}, None, False),
}  # fmt: skip


@pytest.mark.parametrize("name", STATUSES)
def test_wait_of__the_reason_is_that_of_scheduler_or_kubelet(name: str) -> None:
    said, text, is_obstacle = STATUSES[name]
    wait = wait_of(SPEC, said)
    assert (wait and wait.text) == text
    assert wait is None or wait.is_obstacle is is_obstacle


def test_wait_of__a_sidecar_that_runs_keeps_no_rank_waiting() -> None:
    spec = SPEC | {"initContainers": [{"name": "wait-dns", "restartPolicy": "Always"}]}
    assert wait_of(spec, status({"running": {}}, {"running": {}})) is None


def test_wait_of__pods_that_wait_for_the_same_share_one_reason() -> None:
    said = status(waiting("ErrImagePull"), DONE)
    assert wait_of(SPEC, said) is wait_of(SPEC, said)


def test_kept_bytes__counts_the_reason_of_a_pod_that_does_not_run() -> None:
    metadata = {"name": "p", "namespace": "ns", "uid": "u"}
    pod = pod_of({"metadata": metadata, "spec": SPEC, "status": status(waiting("ErrImagePull"))})
    assert pod.wait == PodWait("ErrImagePull", "container main")
    assert kept_bytes(pod) > kept_bytes(replace(pod, wait=None))


KEYS = """
state waiting terminated running reason message exitCode name type status phase conditions
containerStatuses containers initContainers initContainerStatuses PodScheduled False main restartPolicy
"""
words = st.sampled_from((*KEYS.split(), "x\x1b[31m\n" * 90))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
    max_leaves=30,
)
objects = st.dictionaries(words, values, max_size=6)


@given(objects, objects)
def test_wait_of__whatever_a_status_holds_a_reason_is_short_and_printable(
    spec: dict[str, Any], said: dict[str, Any]
) -> None:
    wait = wait_of(spec, said) or PodWait("")
    assert len(wait.reason) <= 64
    assert len(wait.detail) <= 120
    assert wait.text.isprintable()
