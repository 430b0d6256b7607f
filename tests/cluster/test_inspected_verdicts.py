"""What agents say about jobs while they inspect their nodes without a pause, and while they never do.

The release is that of the chart, with all checks that its nodes have hardware for; a round follows the other after a
second instead of ten minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from testbed.driver.cluster import Cluster, Namespace, until
from testbed.driver.installed import Release, installed
from testbed.driver.victims import FAULTS, assert_detected, has_trained, incident_verdict, observed

pytestmark = pytest.mark.timeout(1800, func_only=True)
QUIET_S = 60.0


@dataclass(frozen=True)
class Watched:
    """A release that inspects its nodes, or does not."""

    release: Release
    inspects: bool

    def rounds(self) -> dict[str, str]:
        """By node, the time of its last inspection."""
        found = self.release.cluster.get("nodehealths")
        return {entry["metadata"]["name"]: entry["status"]["time"] for entry in found}


@pytest.fixture(scope="module", params=[True, False], ids=["inspects", "never-inspects"])
def watched(request: pytest.FixtureRequest, cluster: Cluster, image: str) -> Iterator[Watched]:
    inspects = bool(request.param)
    values = (
        f"agent.inspection.enabled={str(inspects).lower()}",
        "agent.inspection.intervalSeconds=1",
    )
    with installed(cluster, image, *values) as release:
        release.wait_until_ready()
        yield Watched(release, inspects)
    cluster.run("delete", "nodehealths", "--all")


@pytest.mark.parametrize("fault", FAULTS)
def test_verdicts_are_right_whether_nodes_are_inspected_or_not(
    watched: Watched, namespace: Namespace, fault: str
) -> None:
    observed(namespace)
    until(lambda: has_trained(namespace), "training is seen", 240)
    before = watched.rounds()
    time.sleep(QUIET_S)  # a healthy job: nothing is said about it
    assert incident_verdict(namespace) is None
    after = watched.rounds()
    assert bool(after) is watched.inspects
    assert all(after[node] != before.get(node) for node in after), "no inspection meanwhile"
    assert_detected(namespace, fault)
