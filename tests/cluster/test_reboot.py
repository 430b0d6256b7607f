"""A node loses its power under a job: the other node reports, and what was reported before is not acted on again."""

from __future__ import annotations

import subprocess
import time

import pytest

from kcover_ebpf.api.rfc3339 import from_text
from testbed.driver.agents import Agent
from testbed.driver.cluster import Namespace, until
from testbed.driver.kinds import KINDS, rank_pods, start, wait_for_training, wait_until_learned
from testbed.driver.restarts import incidents, policy, stopped, wait_for_phase, ways

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(600, func_only=True)]
FOUR = KINDS["pytorchjob"]


def lives(namespace: Namespace) -> dict[str, int]:
    """Restarts of each pod, by uid."""
    return {
        pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in rank_pods(namespace, FOUR)
    }


def reported(namespace: Namespace, node: str) -> float:
    """When the agent of a node reported the job last; unix seconds, 0 where it never did."""
    found = [item["spec"] for item in namespace.items("faultreports") if "job" in item["spec"]]
    return max((from_text(item["time"]) for item in found if item["node"] == node), default=0.0)


@pytest.mark.usefixtures("controller", "restart_in_place")
def test_a_job_outlives_a_node_that_starts_again(
    namespace: Namespace, agents: dict[str, Agent]
) -> None:
    command = namespace.cluster.testbed("reboot", "node1")
    policy(namespace)
    start(namespace, FOUR)
    wait_until_learned(namespace, FOUR)
    before = lives(namespace)
    assert {pod["spec"]["nodeName"] for pod in rank_pods(namespace, FOUR)} == {"node1", "node2"}
    # the agent goes with its node; its folder is on the node's disk
    agents["node1"].kill()
    cut_s = time.time()
    subprocess.run(command, check=True, capture_output=True)
    agents["node1"].start()
    incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused", "Observed"))
    status = incident["status"]
    assert status["phase"] == "Recovered", status["timeline"]
    wait_for_training(namespace, FOUR)
    after = lives(namespace)
    assert all(after[uid] > before[uid] for uid in after.keys() & before.keys())
    assert len(ways(incident)) == 1
    until(lambda: reported(namespace, "node1") > cut_s, "the agent reports again")
    assert len(incidents(namespace)) == 1
    assert not stopped(rank_pods(namespace, FOUR))
    (job,) = namespace.get(FOUR.plural, "demo")
    assert not job["status"]["replicaStatuses"]["Worker"].get("failed")
