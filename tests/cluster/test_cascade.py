"""Jobs of every kind restarted whole by the real controller, with each kind's own controller beside it.

What a sensor would say is made up by a double of the agents; what they do is done.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from kcover_ebpf.cluster.kinds import OWNER_UID
from kcover_ebpf.kube.session import connect
from tests.cluster.agent_double import AgentDouble
from tests.cluster.cluster import JOBS, Namespace
from tests.cluster.gate import Gate
from tests.cluster.restarts import (
    IN_PLACE_RULE,
    counters,
    hang,
    incidents,
    policy,
    recover,
    row_of,
    running,
    stopped,
    wait_for_phase,
    ways,
)

pytestmark = pytest.mark.timeout(600)
LABEL = "kcover.io/cascading-recovery"


@dataclass(frozen=True)
class Example:
    """One example job."""

    file: str
    api_version: str
    kind: str
    selector: tuple[str, str]
    pods: int
    more: tuple[tuple[str, str], ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        return dict((self.selector, *self.more))

    @property
    def text(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.labels.items())


KUBEFLOW = ("training.kubeflow.org/job-name", "demo")
EXAMPLES = {
    "job": Example("job", "batch/v1", "Job", ("batch.kubernetes.io/job-name", "demo"), 2),
    "pytorchjob": Example("pytorchjob", "kubeflow.org/v1", "PyTorchJob", KUBEFLOW, 4),
    "jobset": Example(
        "jobset", "jobset.x-k8s.io/v1alpha2", "JobSet", ("jobset.sigs.k8s.io/jobset-name", "demo"), 2
    ),
    "trainjob": Example(
        "trainjob", "trainer.kubeflow.org/v1alpha1", "TrainJob",
        ("jobset.sigs.k8s.io/jobset-name", "demo"), 2,
    ),
    "mpijob": Example("mpijob", "kubeflow.org/v2beta1", "MPIJob", KUBEFLOW, 3),
    "volcano": Example(
        "volcano", "batch.volcano.sh/v1alpha1", "Job", ("volcano.sh/job-name", "demo"), 2
    ),
    "lws": Example(
        "lws", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
        ("leaderworkerset.sigs.k8s.io/name", "demo"), 2,
        (("leaderworkerset.sigs.k8s.io/group-index", "0"),),
    ),
}  # fmt: skip


@pytest.fixture
def session(namespace: Namespace):
    return connect(str(namespace.cluster.kubeconfig))


@pytest.fixture
def controller(namespace: Namespace, tmp_path: Path) -> Iterator[object]:
    with running(namespace, tmp_path / "controller.log") as program:
        yield program
        print(program.log)


def started(namespace: Namespace, example: Example, in_place: bool = False) -> None:
    row = row_of(example.api_version, example.kind)
    if not namespace.cluster.serves(f"{row.plural}.{row.group}"):
        pytest.skip(f"no controller for {example.kind} here")
    objects = list(yaml.safe_load_all((JOBS / f"{example.file}.yaml").read_text()))
    if in_place:
        for each in objects:
            carry(each)
    namespace.apply(yaml.safe_dump_all(objects))
    for name in namespace.wait_for_pods(example.text, example.pods):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)


def carry(value: object) -> None:
    """Put the rule that the admission policy of the chart adds into every container of a template."""
    if isinstance(value, dict):
        for container in value.get("containers") or ():
            container |= {"restartPolicy": "Never", "restartPolicyRules": IN_PLACE_RULE}
        for each in value.values():
            carry(each)
    elif isinstance(value, list):
        for each in value:
            carry(each)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_a_job_is_replaced_and_nothing_is_counted(example, namespace, session, controller):
    policy(namespace, ways=["Replace"])
    started(namespace, example)
    row = row_of(example.api_version, example.kind)
    before = counters(namespace, row, "demo")
    old = {pod["metadata"]["uid"] for pod in namespace.pods(example.text)}
    with AgentDouble(session, namespace.name, example.labels, example.kind) as double:
        victim = namespace.pods(example.text)[-1]
        hang(victim)
        double.break_rank(victim["metadata"]["name"])
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"], incident["status"]["timeline"]
    assert incident["status"]["culprit"]["pod"] == victim["metadata"]["name"]
    pods = namespace.pods(example.text)
    assert len(pods) == example.pods
    assert not old & {pod["metadata"]["uid"] for pod in pods}
    assert counters(namespace, row, "demo") == before
    top = namespace.get(f"{row.plural}.{row.group}", "demo")[0]
    assert "kcover.io/suspended-by" not in top["metadata"].get("annotations", {})
    assert not stopped(pods)
    assert len(incidents(namespace)) == 1


def test_a_stateful_set_is_replaced(namespace, session, controller):
    policy(namespace, ways=["Replace"])
    namespace.start("statefulset")
    for name in namespace.wait_for_pods("app=demo", 2):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)
    uid = namespace.get("statefulsets", "demo")[0]["metadata"]["uid"]
    old = {pod["metadata"]["uid"] for pod in namespace.pods("app=demo")}
    with AgentDouble(session, namespace.name, {OWNER_UID: uid}, "StatefulSet") as double:
        double.break_rank("demo-1")
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"], incident["status"]["timeline"]
    pods = namespace.pods("app=demo")
    assert len(pods) == 2
    assert not old & {pod["metadata"]["uid"] for pod in pods}


def test_an_event_that_asks_for_a_recovery_is_a_trigger(namespace, session, controller):
    # as kcover's detector, or anybody else's, writes it; no agent takes part
    example = EXAMPLES["job"]
    policy(namespace, ways=["Replace"])
    started(namespace, example)
    pod = namespace.pods(example.text)[0]
    old = {pod["metadata"]["uid"] for pod in namespace.pods(example.text)}
    about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "asks", "annotations": {"kcover.io/need-recovery": "true"}},
        "involvedObject": {**about, "namespace": namespace.name, "apiVersion": "v1"},
        "reason": "Error",
        "type": "Warning",
        "source": {"component": "kcover"},
        "message": "a container failed",
        "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    namespace.apply(yaml.safe_dump(event))
    incident = wait_for_phase(namespace, ("Recovering", "Recovered"))
    assert ways(incident) == ["Replace"]
    assert not old & {pod["metadata"]["uid"] for pod in namespace.pods(example.text)}


def test_a_job_is_restarted_in_place(namespace, session, controller):
    example = EXAMPLES["job"]
    policy(namespace)
    started(namespace, example, in_place=True)
    row = row_of(example.api_version, example.kind)
    before = counters(namespace, row, "demo")
    old = {pod["metadata"]["uid"] for pod in namespace.pods(example.text)}
    beside = (JOBS / "job.yaml").read_text().replace("demo", "beside")
    namespace.apply(beside)
    others = namespace.wait_for_pods("batch.kubernetes.io/job-name=beside", 2)
    namespace.wait_for_steps(example.text, example.pods, 3)
    with AgentDouble(session, namespace.name, example.labels, example.kind) as double:
        victim = namespace.pods(example.text)[-1]
        hang(victim)
        double.break_rank(victim["metadata"]["name"])
        incident = recover(namespace, double)
    assert ways(incident) == ["InPlace"], incident["status"]["timeline"]
    pods = namespace.pods(example.text)
    assert {pod["metadata"]["uid"] for pod in pods} == old
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods]
    assert restarts == [1] * example.pods
    untouched = namespace.pods("batch.kubernetes.io/job-name=beside")
    assert {pod["metadata"]["name"] for pod in untouched} == set(others)
    assert all(not pod["status"]["containerStatuses"][0]["restartCount"] for pod in untouched)
    assert counters(namespace, row, "demo") == before
    namespace.wait_for_steps(example.text, example.pods, 3)


def test_a_node_that_does_not_stop_its_ranks_leads_to_replacing(namespace, session, controller):
    example = EXAMPLES["job"]
    policy(namespace)
    started(namespace, example, in_place=True)
    with AgentDouble(session, namespace.name, example.labels, example.kind) as double:
        pods = namespace.pods(example.text)
        double.deaf.add(pods[0]["spec"]["nodeName"])
        double.break_rank(pods[-1]["metadata"]["name"])
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"], incident["status"]["timeline"]
    assert not stopped(namespace.pods(example.text))


def test_a_controller_killed_at_any_step_is_followed_by_one_that_goes_on(
    namespace, session, tmp_path
):
    example = EXAMPLES["job"]
    policy(namespace, ways=["Replace"])
    started(namespace, example)
    old = {pod["metadata"]["uid"] for pod in namespace.pods(example.text)}
    with (
        running(namespace, tmp_path / "controller.log") as program,
        AgentDouble(session, namespace.name, example.labels, example.kind) as double,
    ):
        double.break_rank(namespace.pods(example.text)[-1]["metadata"]["name"])
        wait_for_phase(namespace, ("ShuttingDown",))
        program.end(signal.SIGKILL)
        time.sleep(2)
        program.start()
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"]
    pods = namespace.pods(example.text)
    assert len(pods) == example.pods
    assert not old & {pod["metadata"]["uid"] for pod in pods}
    assert len(incidents(namespace)) == 1, "it was acted on once"
    assert namespace.get("jobs", "demo")[0]["spec"].get("suspend") is False


def test_an_api_server_that_is_away_for_a_minute_delays_and_doubles_nothing(namespace, tmp_path):
    example = EXAMPLES["job"]
    policy(namespace, ways=["Replace"])
    started(namespace, example)
    old = {pod["metadata"]["uid"] for pod in namespace.pods(example.text)}
    with (
        closing(Gate(namespace.cluster.kubeconfig, tmp_path)) as gate,
        running(namespace, tmp_path / "controller.log", gate.kubeconfig),
        AgentDouble(
            connect(str(gate.kubeconfig)), namespace.name, example.labels, example.kind
        ) as double,
    ):
        double.break_rank(namespace.pods(example.text)[-1]["metadata"]["name"])
        wait_for_phase(namespace, ("ShuttingDown",))
        gate.shut()
        time.sleep(60)
        gate.open()
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"]
    pods = namespace.pods(example.text)
    assert len(pods) == example.pods
    assert not old & {pod["metadata"]["uid"] for pod in pods}
    assert len(incidents(namespace)) == 1
    assert namespace.get("jobs", "demo")[0]["spec"].get("suspend") is False


def test_a_job_whose_incident_is_deleted_under_way_is_let_go(namespace, session, controller):
    example = EXAMPLES["job"]
    policy(namespace, ways=["Replace"])
    started(namespace, example)
    with AgentDouble(session, namespace.name, example.labels, example.kind) as double:
        nodes = {pod["spec"]["nodeName"] for pod in namespace.pods(example.text)}
        double.deaf |= nodes  # so that the old pods stay for their grace period
        double.break_rank(namespace.pods(example.text)[-1]["metadata"]["name"])
        wait_for_phase(namespace, ("ShuttingDown",))
        namespace.wait("job/demo", "jsonpath={.spec.suspend}=true", 60)
        double.silent |= nodes
        namespace.ctl("delete", "incidents,faultreports", "--all")
        namespace.wait("job/demo", "jsonpath={.spec.suspend}=false", 60)


REFUSALS = {
    "not armed": ({}, "Observed", "not armed"),
    "dry run": ({"dryRun": True}, "Observed", "dry run"),
    "approval": ({"approval": "Manual"}, "Decided", "waits for approval"),
    "no budget": ({"restarts": {"max": 0}}, "Refused", "budget"),
}


@pytest.mark.parametrize(("spec", "phase", "words"), REFUSALS.values(), ids=REFUSALS)
def test_a_job_that_may_not_be_touched_is_not(spec, phase, words, namespace, session, controller):
    example = EXAMPLES["job"]
    policy(namespace, **spec)
    started(namespace, example)
    if not spec:
        # the API server gives a Job without labels those of its template
        namespace.ctl("label", "pods,jobs", "--all", f"{LABEL}-")
    old = {pod["metadata"]["uid"] for pod in namespace.pods(example.text)}
    with AgentDouble(session, namespace.name, example.labels, example.kind) as double:
        double.break_rank(namespace.pods(example.text)[-1]["metadata"]["name"])
        incident = wait_for_phase(namespace, (phase,))
        assert words in incident["status"]["message"]
        time.sleep(3)
        assert {pod["metadata"]["uid"] for pod in namespace.pods(example.text)} == old
        assert ways(incidents(namespace)[0]) == []
        if phase == "Decided":
            name = incident["metadata"]["name"]
            namespace.ctl(
                "patch", "incident", name, "--type=merge", "-p", '{"spec":{"approved":true}}'
            )
            assert ways(recover(namespace, double)) == ["Replace"]
