"""A device of one pod fails, for each kind whose controller allows it: that pod moves, all others restart in place.

The fault is made up, orders are really carried out. Then the same job is replaced, for comparison. Prints a line of
seconds from the verdict for each: until all pods ran again, and until all ranks had trained a step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.kube.client import connect
from testbed import skips
from testbed.driver.cluster import JOBS, ROOT, Cluster, Namespace, until
from testbed.driver.fake_agent import FakeAgent
from testbed.driver.kinds import KINDS, Kind, rank_pods, wait_for_training
from testbed.driver.nodes import all_uncordoned
from testbed.driver.restarts import (
    counters,
    moment,
    policy,
    row_of,
    running,
    stopped,
    wait_for_phase,
    ways,
)
from tests.cluster import training_controller

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(600, func_only=True)]
IGNORES = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
NODES = 3


def _job(objects: list[dict[str, Any]]) -> None:
    objects[-1]["spec"] |= {"podFailurePolicy": {"rules": IGNORES}}


def _jobset(objects: list[dict[str, Any]]) -> None:
    (job,) = objects[-1]["spec"]["replicatedJobs"]
    job["template"]["spec"] |= {"podFailurePolicy": {"rules": IGNORES}}


def _on_failure(objects: list[dict[str, Any]]) -> None:
    for replica in objects[-1]["spec"]["pytorchReplicaSpecs"].values():
        replica["restartPolicy"] = "OnFailure"


CHANGES: dict[str, Callable[[list[dict[str, Any]]], None]] = {
    "job": _job,
    "jobset": _jobset,
    "volcano": lambda _: None,
    "mpijob": lambda _: None,
    "pytorchjob": _on_failure,
}


@pytest.fixture(scope="module")
def bed(
    cluster: Cluster, install: Callable[[Iterable[str]], None], request: pytest.FixtureRequest
) -> Cluster:
    """Three nodes, and the controllers of the kinds that this run asks for."""
    chosen = {
        item.callspec.params["name"]
        for item in request.session.items
        if hasattr(item, "callspec") and "name" in item.callspec.params
    }
    install({KINDS[str(name)].controller for name in chosen} - {""})
    cluster.grow(NODES)
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    return cluster


@pytest.mark.parametrize("name", CHANGES)
def test_the_pod_on_a_faulty_device_moves_and_the_others_stay(
    name: str, bed: Cluster, namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    kind = KINDS[name]
    if not bed.serves(kind.plural):
        skips.skip(kind.controller, "the cluster of $KUBECONFIG does not have it")
    _start(namespace, kind, CHANGES[name])
    row = row_of(kind.api_version, kind.kind)
    before = counters(namespace, row, "demo")
    key, _, value = kind.selector.partition("=")
    session = connect(str(bed.kubeconfig))
    with (
        running(namespace, tmp_path / "controller.log"),
        FakeAgent(session, namespace.name, {key: value}, kind.kind) as fake,
    ):
        for count, way in enumerate(("Hybrid", "Replace"), 1):
            policy(namespace, ways=[way])
            time.sleep(5)
            with all_uncordoned(bed):
                _break_and_check(namespace, kind, fake, way, count)
            assert counters(namespace, row, "demo") == before


def _start(
    namespace: Namespace, kind: Kind, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    objects = list(yaml.safe_load_all((JOBS / f"{kind.file}.yaml").read_text()))
    change(objects)
    namespace.apply(yaml.safe_dump_all(objects))
    wait_for_training(namespace, kind)


def _break_and_check(
    namespace: Namespace, kind: Kind, fake: FakeAgent, way: str, count: int
) -> None:
    old = {pod["metadata"]["uid"]: _restarts(pod) for pod in namespace.pods(kind.selector)}
    victim = rank_pods(namespace, kind)[-1]
    fake.break_device(victim["metadata"]["name"], "0000:5d:00.0")
    incident = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed", "Refused"), count)
    fake.fault = None
    assert incident["status"]["phase"] in ("Recovering", "Recovered"), incident["status"][
        "timeline"
    ]
    assert ways(incident) == [way], incident["status"]["timeline"]
    wait_for_training(namespace, kind, steps=1)
    trained_s = time.time()
    incident = wait_for_phase(namespace, ("Recovered", "Failed"), count)
    assert incident["status"]["phase"] == "Recovered", incident["status"]["timeline"]
    pods = namespace.pods(kind.selector)
    new = {pod["metadata"]["uid"]: pod for pod in pods}
    assert len(pods) == kind.pods
    stayed = old.keys() & new.keys()
    if way == "Hybrid":
        assert old.keys() - stayed == {victim["metadata"]["uid"]}
        assert all(_restarts(new[uid]) == old[uid] + 1 for uid in stayed)
        (moved,) = [new[uid] for uid in new.keys() - stayed]
        assert moved["spec"]["nodeName"] != victim["spec"]["nodeName"]
        assert _place(moved) == _place(victim)
    else:
        assert not stayed
    assert not stopped(pods)
    wait_for_training(namespace, kind)
    decided = moment(incident, "Decided")
    running_s = round(moment(incident, "Recovering") - decided, 2)
    taken = {"running_s": running_s, "step_s": round(trained_s - decided, 2)}
    print(json.dumps({"kind": kind.file, "way": way, **taken}))
    until(lambda: not stopped(namespace.pods(kind.selector)), "no rank is stopped")


def _restarts(pod: dict[str, Any]) -> int:
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ()))


def _place(pod: dict[str, Any]) -> list[str]:
    """What gives a pod its rank."""
    labels = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
    return [pod["metadata"].get("labels", {}).get(label, "") for label in labels]


DEVICE = "example.com/gpu"
SPARE = ROOT / "docs/examples/spare.yaml"
TRAINING = Kind("training", "", "acme.example/v1", "Training", f"{training_controller.LABEL}=demo")


@contextmanager
def one_device_a_node(cluster: Cluster) -> Iterator[None]:
    """Each node has one device, as its plug-in would report it."""
    path = f"/status/capacity/{DEVICE.replace('/', '~1')}"
    names = [node["metadata"]["name"] for node in cluster.get("nodes")]

    def patch(**change: str) -> None:
        body = json.dumps([{"path": path, **change}])
        for name in names:
            words = (
                "patch",
                "node",
                name,
                "--subresource=status",
                "--type=json",
                f"--patch={body}",
            )
            cluster.ctl(*words)

    patch(op="add", value="1")
    try:
        yield
    finally:
        patch(op="remove")


def test_a_spare_gives_way_to_the_pod_that_moves(
    bed: Cluster, namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    """Two pods and a placeholder have the only three devices; the kind is one that a JobKind describes."""
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    spare = SPARE.read_text().replace("nvidia.com/gpu", DEVICE).replace('"8"', '"1"')
    spare = spare.replace("registry.k8s.io/pause:3.10", "localhost/kcover-train:1").replace(
        "- name: placeholder", "- name: placeholder\n        command: [sleep, infinity]"
    )
    key, _, value = TRAINING.selector.partition("=")
    session = connect(str(bed.kubeconfig))
    with (
        all_uncordoned(bed),  # once the controller has ended, which writes to nodes, too
        one_device_a_node(bed),
        training_controller.described(bed),
        training_controller.running(namespace),
        running(namespace, tmp_path / "controller.log"),
        FakeAgent(session, namespace.name, {key: value}, "Training") as fake,
    ):
        policy(namespace, ways=["Hybrid"], avoid={"mode": "Hard"})
        objects = list(yaml.safe_load_all((Path(__file__).parent / "training.yaml").read_text()))
        (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
        container["resources"] |= {"limits": {DEVICE: "1"}}
        namespace.apply(yaml.safe_dump_all(objects))
        wait_for_training(namespace, TRAINING)
        namespace.apply(spare)
        namespace.wait("deployment/spare", "condition=Available")
        (placeholder,) = namespace.pods("app=spare")
        victim = rank_pods(namespace, TRAINING)[-1]
        fake.break_device(victim["metadata"]["name"], "0000:5d:00.0")
        incident = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed", "Refused"))
        fake.fault = None
        assert ways(incident) == ["Hybrid"], incident["status"]["timeline"]
        assert incident["status"]["phase"] in ("Recovering", "Recovered"), incident["status"]
        wait_for_training(namespace, TRAINING, steps=1)
        trained_s = time.time()
        incident = wait_for_phase(namespace, ("Recovered", "Failed"))
        moved = rank_pods(namespace, TRAINING)[-1]
        assert moved["spec"]["nodeName"] == placeholder["spec"]["nodeName"]
        decided = moment(incident, "Decided")
        running_s = round(moment(incident, "Recovering") - decided, 2)
        taken = {"running_s": running_s, "step_s": round(trained_s - decided, 2)}
        print(json.dumps({"kind": "Training", "way": "Hybrid with a spare", **taken}))
        namespace.ctl("delete", "deployment/spare")
    bed.run("delete", "priorityclass", "spare")
