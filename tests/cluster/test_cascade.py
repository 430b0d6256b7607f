"""Restarts by the real controller that are broken off, refused, or led astray; test_kinds.py has those that work.

What a sensor would say is made up by a double of the agents; what they do is done.
"""

from __future__ import annotations

import signal
import time

import pytest
import yaml

from kcover_ebpf.kube.session import connect
from tests.cluster.agent_double import AgentDouble
from tests.cluster.cluster import JOBS, Namespace
from tests.cluster.kinds import KINDS
from tests.cluster.relay import Relay
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


JOB = KINDS["job"]
LABELS = {"batch.kubernetes.io/job-name": "demo"}


@pytest.fixture
def session(namespace: Namespace):
    return connect(str(namespace.cluster.kubeconfig))


def started(namespace: Namespace, in_place: bool = False) -> None:
    objects = list(yaml.safe_load_all((JOBS / "job.yaml").read_text()))
    if in_place:
        for each in objects:
            carry(each)
    namespace.apply(yaml.safe_dump_all(objects))
    for name in namespace.wait_for_pods(JOB.selector, JOB.pods):
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


def test_an_event_that_asks_for_a_recovery_is_a_trigger(namespace, session, controller):
    # as kcover's detector, or anybody else's, writes it; no agent takes part
    policy(namespace, ways=["Replace"])
    started(namespace)
    pod = namespace.pods(JOB.selector)[0]
    old = {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)}
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
    assert not old & {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)}


def test_a_job_is_restarted_in_place(namespace, session, controller):
    policy(namespace)
    started(namespace, in_place=True)
    row = row_of(JOB.api_version, JOB.kind)
    before = counters(namespace, row, "demo")
    old = {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)}
    beside = (JOBS / "job.yaml").read_text().replace("demo", "beside")
    namespace.apply(beside)
    others = namespace.wait_for_pods("batch.kubernetes.io/job-name=beside", 2)
    namespace.wait_for_steps(JOB.selector, JOB.pods, 3)
    with AgentDouble(session, namespace.name, LABELS, JOB.kind) as double:
        victim = namespace.pods(JOB.selector)[-1]
        hang(victim)
        double.break_rank(victim["metadata"]["name"])
        incident = recover(namespace, double)
    assert ways(incident) == ["InPlace"], incident["status"]["timeline"]
    pods = namespace.pods(JOB.selector)
    assert {pod["metadata"]["uid"] for pod in pods} == old
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods]
    assert restarts == [1] * JOB.pods
    untouched = namespace.pods("batch.kubernetes.io/job-name=beside")
    assert {pod["metadata"]["name"] for pod in untouched} == set(others)
    assert all(not pod["status"]["containerStatuses"][0]["restartCount"] for pod in untouched)
    assert counters(namespace, row, "demo") == before
    namespace.wait_for_steps(JOB.selector, JOB.pods, 3)


def test_a_node_that_does_not_stop_its_ranks_leads_to_replacing(namespace, session, controller):
    policy(namespace)
    started(namespace, in_place=True)
    with AgentDouble(session, namespace.name, LABELS, JOB.kind) as double:
        pods = namespace.pods(JOB.selector)
        double.deaf.add(pods[0]["spec"]["nodeName"])
        double.break_rank(pods[-1]["metadata"]["name"])
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"], incident["status"]["timeline"]
    assert not stopped(namespace.pods(JOB.selector))


def test_a_controller_killed_at_any_step_is_followed_by_one_that_goes_on(
    namespace, session, tmp_path
):
    policy(namespace, ways=["Replace"])
    started(namespace)
    old = {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)}
    with (
        running(namespace, tmp_path / "controller.log") as program,
        AgentDouble(session, namespace.name, LABELS, JOB.kind) as double,
    ):
        double.break_rank(namespace.pods(JOB.selector)[-1]["metadata"]["name"])
        wait_for_phase(namespace, ("ShuttingDown",))
        program.end(signal.SIGKILL)
        time.sleep(2)
        program.start()
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"]
    pods = namespace.pods(JOB.selector)
    assert len(pods) == JOB.pods
    assert not old & {pod["metadata"]["uid"] for pod in pods}
    assert len(incidents(namespace)) == 1, "it was acted on once"
    assert namespace.get("jobs", "demo")[0]["spec"].get("suspend") is False


def test_an_api_server_that_is_away_for_a_minute_delays_and_doubles_nothing(namespace, tmp_path):
    policy(namespace, ways=["Replace"])
    started(namespace)
    old = {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)}
    with (
        Relay(namespace.cluster.kubeconfig, tmp_path) as relay,
        running(namespace, tmp_path / "controller.log", relay.kubeconfig),
        AgentDouble(connect(str(relay.kubeconfig)), namespace.name, LABELS, JOB.kind) as double,
    ):
        double.break_rank(namespace.pods(JOB.selector)[-1]["metadata"]["name"])
        wait_for_phase(namespace, ("ShuttingDown",))
        relay.cut()
        time.sleep(60)
        relay.mend()
        incident = recover(namespace, double)
    assert ways(incident) == ["Replace"]
    pods = namespace.pods(JOB.selector)
    assert len(pods) == JOB.pods
    assert not old & {pod["metadata"]["uid"] for pod in pods}
    assert len(incidents(namespace)) == 1
    assert namespace.get("jobs", "demo")[0]["spec"].get("suspend") is False


def test_a_job_whose_incident_is_deleted_under_way_is_let_go(namespace, session, controller):
    policy(namespace, ways=["Replace"])
    started(namespace)
    with AgentDouble(session, namespace.name, LABELS, JOB.kind) as double:
        nodes = {pod["spec"]["nodeName"] for pod in namespace.pods(JOB.selector)}
        double.deaf |= nodes  # so that the old pods stay for their grace period
        double.break_rank(namespace.pods(JOB.selector)[-1]["metadata"]["name"])
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
    policy(namespace, **spec)
    started(namespace)
    if not spec:
        # the API server gives a Job without labels those of its template
        namespace.ctl("label", "pods,jobs", "--all", f"{LABEL}-")
    old = {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)}
    with AgentDouble(session, namespace.name, LABELS, JOB.kind) as double:
        double.break_rank(namespace.pods(JOB.selector)[-1]["metadata"]["name"])
        incident = wait_for_phase(namespace, (phase,))
        assert words in incident["status"]["message"]
        time.sleep(3)
        assert {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)} == old
        assert ways(incidents(namespace)[0]) == []
        if phase == "Decided":
            name = incident["metadata"]["name"]
            namespace.ctl(
                "patch", "incident", name, "--type=merge", "-p", '{"spec":{"approved":true}}'
            )
            assert ways(recover(namespace, double)) == ["Replace"]
