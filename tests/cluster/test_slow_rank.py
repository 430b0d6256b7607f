"""Real agents on several nodes, one rank on each: the slow one is named, though none can compare it with another."""

from __future__ import annotations

import time

import pytest

from testbed.driver.cluster import Cluster, ClusterError, Namespace, home, until
from testbed.driver.restarts import ways
from testbed.driver.slow_rank import LEARNED_S, SlowRank

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.usefixtures("agents", "controller"),
]


def test_a_rank_that_is_slower_than_those_of_other_nodes_is_named_and_nothing_is_done(
    cluster: Cluster, namespace: Namespace
) -> None:
    job = SlowRank(namespace)
    job.start(len(cluster.get("nodes")))
    time.sleep(LEARNED_S)
    assert namespace.items("incidents") == [], "healthy so far"
    job.slow_down()
    try:
        status = until(job.named, "the slow rank is named", 240)
    except ClusterError as error:
        for lease in cluster.get("leases", f"--namespace={home(cluster)}"):
            error.add_note(str(lease["metadata"].get("annotations")))
        raise
    print(f"named after {time.time() - job.since_s:.1f} s: {status['message']}")
    assert status["culprit"]["pod"] == job.pod
    assert (status["phase"], status["cause"]) == ("Observed", "slow_rank")
    (incident,) = namespace.items("incidents")
    assert ways(incident) == []
