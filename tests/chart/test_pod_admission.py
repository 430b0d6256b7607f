"""What the admission policies of the chart change in pods, at a real API server."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent import preflight
from testbed.driver.control_plane import User
from testbed.skips import ROOT
from tests.chart.release import CHART, RELEASE, Helm, Installed

PODS = "/api/v1/namespaces/ml/pods"
KILLED = {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
IN_IMAGE = "/usr/local/share/kcover-ebpf/plugins"
FLOOR = "kcover.io/bandwidth-floor"
"""Annotation of a pod by which its job asks for the check: GB/s (10^9) of bus bandwidth."""


def pod(name: str, containers: list[dict[str, Any]], **spec: object) -> dict[str, Any]:
    full = [
        {"name": f"c{i}", "image": "none", **container} for i, container in enumerate(containers)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"kcover.io/cascading-recovery": "true"}},
        "spec": {"restartPolicy": "Never", **spec, "containers": full},
    }


def rules(root: User, body: dict[str, Any]) -> list[object]:
    """Policy and rules of each container of the pod, as the API server would store it."""
    made = root.ask("POST", f"{PODS}?dryRun=All", body)
    assert made.code == 201, made.message
    containers = made.body["spec"]["containers"]
    return [
        (container.get("restartPolicy"), container.get("restartPolicyRules"))
        for container in containers
    ]


ARMED = ("Never", [KILLED])
UNTOUCHED = (None, None)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(pod("a", [{}]), [ARMED], id="a rank"),
        pytest.param(pod("a", [{}, {}, {}]), [ARMED] * 3, id="each container"),
        pytest.param(pod("a", [{}] * 8), [ARMED] * 8, id="eight containers"),
        pytest.param(pod("a", [{}], restartPolicy="OnFailure"), [ARMED], id="restarted on failure"),
        pytest.param(pod("a", [{}] * 9), [UNTOUCHED] * 9, id="more containers than the rule knows"),
        pytest.param(pod("a", [{}], restartPolicy="Always"), [UNTOUCHED], id="runs for ever"),
        pytest.param(
            pod("a", [{"restartPolicy": "Never"}, {}]),
            [("Never", None), UNTOUCHED],
            id="a container with its own policy",
        ),
    ],
)
def test_armed_pods_get_the_kubelets_rule(
    installed: Installed, root: User, body: dict[str, Any], expected: list[object]
) -> None:
    assert rules(root, body) == expected


@pytest.mark.parametrize("value", [None, "false", ""])
def test_pods_that_are_not_armed_are_left_alone(
    installed: Installed, root: User, value: str | None
) -> None:
    body = pod("a", [{}])
    body["metadata"]["labels"] = {} if value is None else {"kcover.io/cascading-recovery": value}
    assert rules(root, body) == [UNTOUCHED]


RECORDER = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/kcover-recorder-",
    "TORCH_FR_DUMP_TEMP_FILE": "/tmp/kcover-dump-",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/kcover-dump-",
}
OWN = {"name": "TORCH_FR_DUMP_TEMP_FILE", "value": "/data/own-"}


def variables(root: User, body: dict[str, Any]) -> list[dict[str, str]]:
    """The environment of each container of the pod, as the API server would store it."""
    made = root.ask("POST", f"{PODS}?dryRun=All", body)
    assert made.code == 201, made.message
    return [
        {item["name"]: item["value"] for item in container.get("env", ())}
        for container in made.body["spec"]["containers"]
    ]


@contextmanager
def switched_on(
    installed: Installed, helm: Helm, *names: str, until: Callable[[], object]
) -> Iterator[None]:
    """With these values of `admission` set. `until`: true once the API server has learned of the policies."""

    def switch(value: str) -> None:
        values = ",".join(f"admission.{name}={value}" for name in names)
        upgrade = "upgrade", RELEASE, str(CHART), f"--namespace={installed.namespace}"
        helm(*upgrade, "--reuse-values", f"--set={values}")

    switch("true")
    try:
        deadline_s = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline_s
            time.sleep(0.5)
        yield
    finally:
        switch("false")


def test_no_pod_gets_a_flight_recorder_unless_it_is_asked_for(
    installed: Installed, root: User
) -> None:
    assert variables(root, pod("a", [{}])) == [{}]


def test_armed_pods_get_a_flight_recorder_and_keep_what_they_set(
    installed: Installed, helm: Helm, root: User
) -> None:
    set_itself = {"env": [{"name": "RANK", "value": "0"}, OWN]}
    body = pod("a", [{}, set_itself, {}])
    with switched_on(installed, helm, "flightRecorder", until=lambda: variables(root, body)[0]):
        kept = {"RANK": "0", OWN["name"]: OWN["value"]}
        assert variables(root, body) == [RECORDER, RECORDER | kept, RECORDER]
        body["metadata"]["labels"] = {}
        assert variables(root, body) == [{}, kept, {}]


def initial(root: User, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The init containers of the pod, as the API server would store it."""
    made = root.ask("POST", f"{PODS}?dryRun=All", body)
    assert made.code == 201, made.message
    found: list[dict[str, Any]] = made.body["spec"].get("initContainers", [])
    return found


def names(containers: list[dict[str, Any]]) -> list[str]:
    return [container["name"] for container in containers]


def test_armed_pods_get_a_preflight_before_all_else(
    installed: Installed, helm: Helm, root: User
) -> None:
    body = pod("a", [{}])
    assert initial(root, body) == [], "unless it is asked for, there is none"
    with switched_on(installed, helm, "preflight", until=lambda: initial(root, body)):
        (added,) = initial(root, body)
        assert (added["name"], added["args"]) == (preflight.CONTAINER, ["preflight", "--wait"])
        assert added["restartPolicyRules"][0]["action"] == "Restart", "the pod does not fail"
        assert added["resources"]["limits"] == added["resources"]["requests"]
        for policy in ("Always", "OnFailure"):
            assert names(initial(root, pod("a", [{}], restartPolicy=policy))) == [added["name"]]
        body["spec"]["initContainers"] = [{"name": "own", "image": "own"}]
        body["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
        assert names(initial(root, body)) == [preflight.CONTAINER, "own"]
        body["metadata"]["labels"] = {}
        assert names(initial(root, body)) == ["own"]
        asked = "/apis/kcover.io/v1alpha1/nodehealths/n1"
        tenant = User(installed.plane, installed.plane.token("ml", "default"))
        assert tenant.ask("GET", asked).code in (200, 404), "the pods of a job may ask"
        assert tenant.ask("DELETE", asked).code == 403


WELL = ["true"]
FULL = {
    "command": ["train"],
    "args": ["--epochs", "3"],
    "ports": [{"containerPort": 29500}],
    "lifecycle": {"preStop": {"exec": {"command": WELL}}},
    "livenessProbe": {"exec": {"command": WELL}},
    "readinessProbe": {"exec": {"command": WELL}},
    "startupProbe": {"exec": {"command": WELL}},
    "resources": {"limits": {"nvidia.com/gpu": "8"}},
    "env": [{"name": "MASTER_ADDR", "value": "llm-0"}],
}
"""A container with all that an init container must not have."""


def run(container: dict[str, Any], kcover: Path, plugins: Path) -> tuple[int, str]:
    """Exit code and output of its command here, with these folders instead of the pod's."""
    (kcover / "kcover-ebpf").write_text('#!/bin/sh\necho "$@"\n')
    (kcover / "kcover-ebpf").chmod(0o755)
    words = [
        word.replace(" /kcover", f" {kcover}").replace(IN_IMAGE, str(plugins))
        for word in (*container["command"], *container.get("args", ()))
    ]
    found = subprocess.run(
        words,
        env={"PATH": f"{kcover}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout


def test_a_job_that_asks_for_it_measures_bandwidth_in_its_own_image(
    installed: Installed, helm: Helm, root: User, tmp_path: Path
) -> None:
    asking = pod("a", [{}])
    asking["metadata"]["annotations"] = {FLOOR: "300"}
    with switched_on(
        installed, helm, "preflight", "bandwidth", until=lambda: len(initial(root, asking)) == 2
    ):
        for given in ({}, FULL):
            body = pod("a", [given])
            body["metadata"]["annotations"] = {FLOOR: "300"}
            found = initial(root, body)
            first, second = found
            assert (first["name"], first["args"]) == (preflight.CONTAINER, ["preflight", "--wait"])
            assert second["name"] == preflight.BANDWIDTH
            assert second["image"] == body["spec"]["containers"][0]["image"]
            assert second["command"][:2] == ["/bin/sh", "-c"]
            assert second["restartPolicyRules"][0]["action"] == "Restart", "the pod does not fail"
            assert not second.keys() & {"args", "ports", "lifecycle", "livenessProbe"}
            assert second["resources"] == (
                {}
                if not given
                else {kind: {"nvidia.com/gpu": "8"} for kind in ("limits", "requests")}
            )
            variables = {item["name"]: item for item in second["env"]}
            assert ("MASTER_ADDR" in variables) == bool(given)
            field = variables["KCOVER_BANDWIDTH_FLOOR"]["valueFrom"]["fieldRef"]["fieldPath"]
            assert field == f"metadata.annotations['{FLOOR}']"
            for entry in found:
                assert "/kcover" in {mount["mountPath"] for mount in entry["volumeMounts"]}
        for plugins, answer, code, words in (
            (ROOT / "plugins", "", 0, "bandwidth: unknown: could not convert"),
            (ROOT / "plugins", f"{preflight.FAILED} {time.time()}", preflight.FAILED, ""),
            (tmp_path / "none", "", 0, ""),
        ):
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            (folder / "answer").write_text(answer)
            assert run(first, folder, plugins) == (0, "preflight --wait\n"), "whatever was copied"
            ended, printed = run(second, folder, plugins)
            assert (ended, words in printed) == (code, True), printed
            assert bool(printed) == bool(words)
        asking["spec"]["restartPolicy"] = "OnFailure"
        assert names(initial(root, asking)) == [preflight.CONTAINER], "a Job counts its restarts"
        body["metadata"]["annotations"] = {}
        assert names(initial(root, body)) == [preflight.CONTAINER]


def incident(name: str, mode: str, nodes: str, selector: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "Incident",
        "metadata": {
            "name": name,
            "labels": {"kcover.io/avoid": mode},
            "annotations": {"kcover.io/avoid-nodes": nodes},
        },
        "spec": {"job": {"kind": "Job", "name": "j", "uid": "u"}, "selector": selector},
    }


def affinity(root: User, body: dict[str, Any]) -> dict[str, Any]:
    """The node affinity of the pod, as the API server would store it."""
    made = root.ask("POST", f"{PODS}?dryRun=All", body)
    assert made.code == 201, made.message
    found: dict[str, Any] = made.body["spec"].get("affinity", {}).get("nodeAffinity", {})
    return found


def _not_on(*nodes: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
SOFT_TERM = {"weight": 1, "preference": {"matchExpressions": [ZONE]}}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def test_new_pods_of_a_job_avoid_the_nodes_that_it_failed_on(
    installed: Installed, root: User
) -> None:
    controller = installed.controller()
    job = {"batch.kubernetes.io/job-name": "failed"}
    incidents = "/apis/kcover.io/v1alpha1/namespaces/ml/incidents"
    body, other = pod("a", [{}]), pod("b", [{}])
    body["metadata"]["labels"] = dict(job)
    for mode in ("Soft", "Hard"):
        made = controller.ask("POST", incidents, incident(mode.lower(), mode, "n1,n2", job))
        assert made.code == 201, made.message
        deadline_s = time.monotonic() + 60
        while not affinity(root, body):
            assert time.monotonic() < deadline_s
            time.sleep(0.5)
        assert affinity(root, other) == {}, "no other job is kept from these nodes"
        own = pod("c", [{}], affinity={"nodeAffinity": _own(mode)})
        own["metadata"]["labels"] = dict(job)
        if mode == "Soft":
            added = {"weight": 100, "preference": {"matchFields": _not_on("n1", "n2")}}
            assert affinity(root, body) == {PREFERRED: [added]}
            assert affinity(root, own) == {PREFERRED: [SOFT_TERM, added]}
        else:
            terms = [{"matchFields": _not_on("n1", "n2")}]
            assert affinity(root, body) == {REQUIRED: {"nodeSelectorTerms": terms}}
            kept = {"matchExpressions": [ZONE], "matchFields": _not_on("n1", "n2")}
            assert affinity(root, own) == {REQUIRED: {"nodeSelectorTerms": [kept] * 2}}
        controller.ask("DELETE", f"{incidents}/{mode.lower()}")
        while affinity(root, body):
            assert time.monotonic() < deadline_s
            time.sleep(0.5)


def _own(mode: str) -> dict[str, Any]:
    if mode == "Soft":
        return {PREFERRED: [SOFT_TERM]}
    return {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}] * 2}}
