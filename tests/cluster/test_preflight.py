"""A job whose pod is placed on a bad node does not start there: it is placed elsewhere, and pays nothing for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kcover_ebpf.api import preflight
from tests.cluster.cluster import ROOT, Cluster, Namespace, until
from tests.cluster.installed import installed
from tests.cluster.nodes import inside, kept_out
from tests.cluster.restarts import wait_for_phase, ways

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
JOB = "batch.kubernetes.io/job-name=demo"


def result(cluster: Cluster, node: str) -> str:
    """Of the node's last inspection."""
    found = {each["metadata"]["name"]: each["status"] for each in cluster.get("nodehealths")}
    return str(found.get(node, {}).get("result"))


def ends(pod: dict[str, Any]) -> list[int]:
    """How the preflight of a pod ended so far."""
    statuses = pod.get("status", {}).get("initContainerStatuses", ())
    (mine,) = [each for each in statuses if each["name"] == preflight.CONTAINER] or [{}]
    states = (mine.get("state", {}), mine.get("lastState", {}))
    return [each["terminated"]["exitCode"] for each in states if "terminated" in each]


@pytest.mark.needs("root")
def test_a_preflight_that_fails_moves_the_job(namespace: Namespace, image: str) -> None:
    cluster = namespace.cluster
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    names = sorted(each["metadata"]["name"] for each in cluster.get("nodes"))
    bad = names[0]
    with installed(cluster, image, *VALUES) as release:
        release.wait_until_ready()
        try:
            inside(cluster, bad, "touch", BROKEN)
            until(lambda: result(cluster, bad) == "fail", "the node fails its inspection")
            until(lambda: result(cluster, names[-1]) == "pass", "the other one passes")
            assert not kept_out(cluster), "by itself an inspection cordons no node"
            namespace.start("job")
            incident = wait_for_phase(namespace, ("Recovered",), timeout_s=300)
            status = incident["status"]
            print(json.dumps(status["timeline"], indent=1))
            assert (status["verdict"], status["cause"]) == ("DEVICE_FAULT", "preflight")
            assert (status["class"], status["culprit"]["node"]) == ("hardware", bad)
            assert "the licence is gone" in status["evidence"][0]["text"]
            assert ways(incident) == ["Replace"]
            pods = [
                each for each in namespace.pods(JOB) if "deletionTimestamp" not in each["metadata"]
            ]
            assert {each["spec"]["nodeName"] for each in pods} == set(names[1:])
            assert [ends(each) for each in pods] == [[0]] * 2
            (job,) = namespace.get("jobs")
            assert job["status"].get("failed", 0) == 0, "its back-off, which is 0, is not spent"
            assert kept_out(cluster) == {bad}
        finally:
            inside(cluster, bad, "rm", "-f", BROKEN)
