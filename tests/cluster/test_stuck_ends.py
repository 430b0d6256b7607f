"""Pods that were deleted and do not go: what is known at each rung of the ladder, and what follows from it.

A kubelet that is stopped, a node that is cut off, and an API server that is away. The fault is made up, orders are
really carried out; `status.stuck` is printed at each rung.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.kube.client import connect
from kcover_ebpf.kube.reflector import Change, Event, Reflector
from testbed.driver.cluster import JOBS, ROOT, Cluster, Namespace, until
from testbed.driver.fake_agent import FakeAgent, processes
from testbed.driver.nodes import partitioned, still
from testbed.driver.restarts import incidents, policy, recover, running, wait_for_phase, ways
from tests.cluster.faked_job import (
    JOB,
    break_rank,
    check_acted_once,
    faked,
    started,
    uids,
)
from tests.cluster.relay import Relay

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(400, func_only=True)]
FENCE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
GRACE_S = 2


@pytest.fixture(scope="module")
def bed(cluster: Cluster) -> Cluster:
    """Three nodes: two that a job is on, and one to continue on."""
    cluster.grow(3)
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    return cluster


def test_a_job_continues_beside_a_pod_whose_end_is_proven(
    bed: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """Its kubelet has just stopped; the agent says that its processes are gone, and the name is not needed.

    Then the node is lost for good, and the next run hangs: what is left of the run before is no part of it.
    """
    policy(namespace, ways=["Replace"])
    _short(namespace)
    old = uids(namespace)
    victim = namespace.pods(JOB.selector)[-1]
    node = victim["spec"]["nodeName"]
    with (
        running(namespace, tmp_path / "log"),
        faked(namespace) as fake,
        _cordoned(bed, node),  # nothing would start there
        still(bed, node),
    ):
        break_rank(namespace, fake)
        (stuck,) = _rung(namespace, "Proven")
        assert stuck["pod"] == victim["metadata"]["name"]
        assert any("no process computes any more" in text for text in stuck["known"])
        assert stuck["next"] == "the job continues elsewhere while it stays"
        incident = recover(namespace, fake)
        assert ways(incident) == ["Replace"]
        assert victim["metadata"]["uid"] in uids(namespace), "it is still there"
        fresh = [pod for pod in namespace.pods(JOB.selector) if pod["metadata"]["uid"] not in old]
        assert len(fresh) == JOB.pods
        _cut_off(bed, fake, node)
        fake.break_rank(fresh[0]["metadata"]["name"])
        second = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed"), 2)
        assert second["status"]["phase"] != "Failed", second["status"]["timeline"]
        assert second["status"]["culprit"]["pod"] == fresh[0]["metadata"]["name"]
        assert not second["status"].get("stuck"), "what is left of the run before blocks nothing"
        assert victim["metadata"]["uid"] in uids(namespace)
    _until_gone(namespace, old)


def test_no_second_rank_starts_beside_one_of_a_node_that_is_cut_off_until_it_is_fenced(
    bed: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """Whether its rank still computes is not known, and here it does."""
    policy(namespace, ways=["Replace"], forceDelete=True)
    _short(namespace)
    old = uids(namespace)
    victim = namespace.pods(JOB.selector)[-1]
    node, uid = victim["spec"]["nodeName"], victim["metadata"]["uid"]
    with running(namespace, tmp_path / "log"), faked(namespace) as fake:
        with partitioned(bed, node):
            _cut_off(bed, fake, node)
            break_rank(namespace, fake)
            (stuck,) = _rung(namespace, "Unknown")
            assert f"the kubelet of {node} does not answer" in stuck["known"]
            assert any("whether its processes are gone is not known" in t for t in stuck["known"])
            assert FENCE in stuck["next"]
            time.sleep(35)  # longer than the pause before it is checked again
            assert processes(uid), "its rank computes"
            assert uids(namespace) == {uid}, "no pod was made, and none deleted by force"
            for pid in processes(uid):  # the machine is switched off, and a person says so
                os.kill(pid, signal.SIGKILL)
            bed.ctl("taint", "node", node, FENCE)
            try:
                incident = recover(namespace, fake)
            finally:
                bed.ctl("taint", "node", node, f"{FENCE}-")
        assert ways(incident) == ["Replace"]
    _until_gone(namespace, old)
    check_acted_once(namespace, old)


def test_a_name_that_is_needed_is_freed_by_force_where_the_policy_says_so(
    bed: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """A StatefulSet: the same pod of a stopped kubelet blocks the new one of its name, until it is deleted by force."""
    policy(namespace, ways=["Replace"], forceDelete=True)
    text = (JOBS / "statefulset.yaml").read_text()
    text = text.replace("[python3, /train/train.py]", "[sleep, infinity]")
    objects = list(yaml.safe_load_all(text))
    objects[-1]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = GRACE_S
    namespace.apply(yaml.safe_dump_all(objects))
    for name in namespace.wait_for_pods("app=demo", 2):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)
    victim = namespace.pods("app=demo")[-1]
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    fake = FakeAgent(connect(str(bed.kubeconfig)), namespace.name, {"app": "demo"}, "StatefulSet")
    log = running(namespace, tmp_path / "log")
    with log, fake, _cordoned(bed, node), still(bed, node), _rungs(namespace) as rungs:
        fake.break_rank(name)
        # it is said for a moment: the pod is deleted right after
        (stuck,) = until(lambda: _with(rungs, "Proven"), "a pod is reported as Proven")
        assert stuck["next"] == "it is deleted by force"
        until(lambda: _uid(namespace, name) != victim["metadata"]["uid"], "it is another pod")
        incident = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed"))
        assert ways(incident) == ["Replace"]


def test_an_api_server_that_is_away_while_pods_are_awaited_changes_nothing(
    bed: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    policy(namespace, ways=["Replace"])
    _short(namespace)
    old = uids(namespace)
    with (
        Relay(bed.kubeconfig, tmp_path) as relay,
        running(namespace, tmp_path / "log", relay.kubeconfig),
        faked(namespace, kubeconfig=relay.kubeconfig) as fake,
    ):
        fake.deaf |= {pod["spec"]["nodeName"] for pod in namespace.pods(JOB.selector)}
        break_rank(namespace, fake)
        until(lambda: _step(namespace) == "Gone", "its pods are awaited")
        relay.cut()
        time.sleep(30)
        relay.mend()
        recover(namespace, fake)
    check_acted_once(namespace, old)


@pytest.fixture(autouse=True)
def _all_back(bed: Cluster) -> Iterator[None]:
    """The next test needs every node."""
    yield
    bed.ctl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=90s")


def _short(namespace: Namespace) -> None:
    """The example Job on two nodes, whose pods have a short grace period."""
    started(namespace, grace_s=GRACE_S)
    assert len({pod["spec"]["nodeName"] for pod in namespace.pods(JOB.selector)}) == 2


@contextmanager
def _cordoned(bed: Cluster, node: str) -> Iterator[None]:
    bed.ctl("cordon", node)
    try:
        yield
    finally:
        bed.ctl("uncordon", node)


def _cut_off(bed: Cluster, fake: FakeAgent, node: str) -> None:
    """Neither its kubelet nor its agent is heard any more."""
    fake.deaf.add(node)
    fake.silent.add(node)
    bed.ctl("wait", f"node/{node}", "--for=condition=Ready=Unknown", "--timeout=90s")


Stuck = list[dict[str, Any]]


@contextmanager
def _rungs(namespace: Namespace) -> Iterator[list[Stuck]]:
    """All that is ever said of the pods stuck in deletion, also for a moment."""
    rungs: list[Stuck] = []

    def note(event: Event) -> None:
        if event.change is Change.SET:
            rungs.append(list(event.object.get("status", {}).get("stuck", ())))

    client = connect(str(namespace.cluster.kubeconfig))
    path = f"/apis/{API_VERSION}/namespaces/{namespace.name}/incidents"
    watch = Reflector(client, path, {}, note)
    watch.start()
    try:
        yield rungs
    finally:
        watch.stop()


def _with(rungs: list[Stuck], state: str) -> Stuck | None:
    return next((stuck for stuck in rungs if any(entry["state"] == state for entry in stuck)), None)


def _rung(namespace: Namespace, state: str) -> Stuck:
    """What is said of the pods stuck in deletion, once one is in this state."""

    def found() -> Stuck | None:
        statuses = [incident.get("status", {}) for incident in incidents(namespace)]
        return _with([list(status.get("stuck", ())) for status in statuses], state)

    stuck = until(found, f"a pod is reported as {state}")
    print(json.dumps(stuck))
    return stuck


def _step(namespace: Namespace) -> str | None:
    status = [one.get("status", {}) for one in incidents(namespace)]
    step: str | None = status[-1].get("action", {}).get("step") if status else None
    return step


def _until_gone(namespace: Namespace, old: set[str]) -> None:
    until(lambda: not uids(namespace) & old, "the old pods are gone")


def _uid(namespace: Namespace, name: str) -> str | None:
    return next(
        (
            pod["metadata"]["uid"]
            for pod in namespace.pods("app=demo")
            if pod["metadata"]["name"] == name
        ),
        None,
    )
