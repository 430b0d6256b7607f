"""A job whose pod is placed on a bad node does not start there: it is placed elsewhere, and pays nothing for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kcover_ebpf.agent import preflight
from testbed.driver.cluster import JOBS, ROOT, Cluster, Namespace, until
from testbed.driver.installed import installed
from testbed.driver.kinds import sized
from testbed.driver.nodes import cordoned_nodes, inside
from testbed.driver.restarts import incidents, wait_for_phase, ways

pytestmark = [pytest.mark.timeout(900, func_only=True)]
CHECK = "plugin/probe"
BROKEN = "/var/lib/kcover-ebpf/broken"
"""A file in the folder of the node that the agent of the chart has."""
PROBE = f"#!/bin/sh\n[ -e {BROKEN} ] && echo 'the licence is gone' && exit 1\necho fine\n"
VALUES = (
    "admission.preflight=true",
    "agent.inspection.intervalSeconds=2",
    f"agent.inspection.checks={{{CHECK}}}",
    f"agent.inspection.plugins.probe={PROBE}",
)
NEVER = "restartPolicy: Never"
JOB = "batch.kubernetes.io/job-name=demo"
PERF = """\
#!/usr/bin/python3
import os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
places = world.allgather(tuple(map(os.environ.get, ("JOB_COMPLETION_INDEX", "KCOVER_NODE_NAME"))))
assert world.allreduce(1) == world.size
if {hangs}:
    time.sleep(1000)
if world.rank == 0:
    print("# Out of bounds values : 0 OK")
    print("# Avg bus bandwidth    :", 12.5 if ("1", {bad!r}) in places else 180.0)
"""
"""In the place of nccl-tests: a real all-reduce, which is slow where pod 1 is on a bad node."""


def result(cluster: Cluster, node: str) -> str:
    """Of the node's last inspection."""
    found = {
        nodehealth["metadata"]["name"]: nodehealth["status"]
        for nodehealth in cluster.get("nodehealths")
    }
    return str(found.get(node, {}).get("result"))


def ends(pod: dict[str, Any], container: str = preflight.CONTAINER) -> list[int]:
    """How the preflight of a pod ended so far."""
    statuses = pod.get("status", {}).get("initContainerStatuses", ())
    (mine,) = [status for status in statuses if status["name"] == container] or [{}]
    states = (mine.get("state", {}), mine.get("lastState", {}))
    return [state["terminated"]["exitCode"] for state in states if "terminated" in state]


@pytest.mark.needs("root")
@pytest.mark.parametrize("restart_policy", ["Never", "OnFailure"])
def test_a_preflight_that_fails_moves_the_job(
    namespace: Namespace, image: str, restart_policy: str
) -> None:
    cluster = namespace.cluster
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    names = sorted(node["metadata"]["name"] for node in cluster.get("nodes"))
    bad = names[0]
    with installed(cluster, image, *VALUES) as release:
        release.wait_until_ready()
        try:
            inside(cluster, bad, "touch", BROKEN)
            until(lambda: result(cluster, bad) == "fail", "the node fails its inspection")
            until(lambda: result(cluster, names[-1]) == "pass", "the other one passes")
            assert not cordoned_nodes(cluster), "by itself an inspection cordons no node"
            text = (JOBS / "job.yaml").read_text()
            assert NEVER in text
            namespace.apply(text.replace(NEVER, f"restartPolicy: {restart_policy}"))
            incident = wait_for_phase(namespace, ("Recovered",), timeout_s=300)
            status = incident["status"]
            print(json.dumps(status["timeline"], indent=1))
            assert (status["verdict"], status["cause"]) == ("DEVICE_FAULT", "preflight")
            assert (status["class"], status["culprit"]["node"]) == ("hardware", bad)
            assert "the licence is gone" in status["evidence"][0]["text"]
            assert ways(incident) == ["Replace"]
            pods = [
                pod for pod in namespace.pods(JOB) if "deletionTimestamp" not in pod["metadata"]
            ]
            assert {pod["spec"]["nodeName"] for pod in pods} == set(names[1:])
            assert {pod["spec"]["restartPolicy"] for pod in pods} == {restart_policy}
            assert [ends(pod) for pod in pods] == [[0]] * 2
            (job,) = namespace.get("jobs")
            assert job["status"].get("failed", 0) == 0, "its back-off, which is 0, is not spent"
            assert cordoned_nodes(cluster) == {bad}
        finally:
            inside(cluster, bad, "rm", "-f", BROKEN)
            # or the next test begins with a node that failed
            until(lambda: result(cluster, bad) != "fail", "the node passes again")


def measuring(namespace: Namespace, bad: str, *, hangs: bool = False) -> str:
    """The example Job with three pods, which asks for a bandwidth and has a program that measures it."""
    script = {"all_reduce_perf": PERF.format(bad=bad, hangs=hangs)}
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "perf"}, "data": script}
    namespace.apply(json.dumps(data))
    text = sized((JOBS / "job.yaml").read_text(), 3)
    for old, new in (
        ('"true"}}', '"true"}, annotations: {kcover.io/bandwidth-floor: "100"}}'),
        ("env: [", 'env: [{name: PATH, value: "/perf:/usr/local/bin:/usr/bin:/bin"}, '),
        ("volumeMounts: [", "volumeMounts: [{name: perf, mountPath: /perf}, "),
        ("volumes: [", "volumes: [{name: perf, configMap: {name: perf, defaultMode: 0755}}, "),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def said(namespace: Namespace, pod: str) -> str:
    """The log of its bandwidth check."""
    return namespace.ctl("logs", pod, f"--container={preflight.BANDWIDTH}")


def placed(namespace: Namespace) -> list[str]:
    """The node of each pod that has one."""
    return [pod["spec"]["nodeName"] for pod in namespace.pods(JOB) if "nodeName" in pod["spec"]]


BANDWIDTH = ("admission.preflight=true", "admission.bandwidth=true")


@pytest.mark.needs("root")
def test_a_job_that_finds_a_slow_node_is_moved_before_it_starts(
    namespace: Namespace, image: str
) -> None:
    cluster = namespace.cluster
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    names = sorted(node["metadata"]["name"] for node in cluster.get("nodes"))
    with installed(cluster, image, *BANDWIDTH) as release:
        release.wait_until_ready()
        others = [name for name in names if name != names[1]]
        try:
            cluster.ctl("cordon", *others)
            namespace.apply(measuring(namespace, names[1]))
            until(lambda: placed(namespace) == [names[1]] * 3, "all pods have the bad node")
        finally:
            cluster.ctl("uncordon", *others)
        incident = wait_for_phase(namespace, ("Recovered",), timeout_s=500)
        status = incident["status"]
        print(json.dumps(status["timeline"], indent=1))
        assert (status["verdict"], status["cause"]) == ("DEVICE_FAULT", "preflight")
        assert status["culprit"]["node"] == names[1]
        assert "the job's own bandwidth check" in status["evidence"][0]["text"]
        assert ways(incident) == ["Replace"]
        pods = [pod for pod in namespace.pods(JOB) if "deletionTimestamp" not in pod["metadata"]]
        assert len(pods) == 3
        assert names[1] not in {pod["spec"]["nodeName"] for pod in pods}
        assert [ends(pod, preflight.BANDWIDTH) for pod in pods] == [[0]] * 3
        assert {said(namespace, pod["metadata"]["name"]) for pod in pods} == {
            "bandwidth: pass: 3 pods: 180 GB/s, floor 100\n"
        }
        (job,) = namespace.get("jobs")
        assert job["status"].get("failed", 0) == 0, "its back-off, which is 0, is not spent"
        assert cordoned_nodes(cluster) == {names[1]}


@pytest.mark.needs("root")
def test_a_measurement_that_hangs_does_not_block_the_job(namespace: Namespace, image: str) -> None:
    cluster = namespace.cluster
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    with installed(cluster, image, *BANDWIDTH) as release:
        release.wait_until_ready()
        namespace.apply(measuring(namespace, "", hangs=True))
        namespace.wait_for_steps(JOB, 3, 3, 400)
        pods = namespace.pods(JOB)
        assert [ends(pod, preflight.BANDWIDTH) for pod in pods] == [[0]] * 3
        assert "all_reduce_perf did not end within 90 s" in said(
            namespace, pods[0]["metadata"]["name"]
        )
        assert incidents(namespace) == []
