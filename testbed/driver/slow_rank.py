"""A job with one rank on each of several nodes, of which one becomes 1.3 times slower."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from testbed.driver.cluster import JOBS, Namespace, until
from testbed.driver.kinds import SPREAD, replaced, sized
from testbed.driver.restarts import incidents
from testbed.driver.victims import JOB, has_trained, ranks

LEARNED_S = 75.0
"""What a job was like before is known by then."""


@dataclass
class SlowRank:
    """The job, and what becomes of it."""

    namespace: Namespace
    pod: str = ""
    since_s: float = 0.0

    def start(self, pods: int) -> None:
        """Start it with one rank on each node, and wait until it has trained for a while."""
        text = sized((JOBS / "job.yaml").read_text(), pods)
        self.namespace.apply(replaced(text, {"restartPolicy: Never": SPREAD}))
        self.namespace.wait_for_steps(JOB, pods, 3, 300)
        nodes = {pod["spec"]["nodeName"] for pod in self.namespace.pods(JOB)}
        assert len(nodes) == pods
        until(lambda: has_trained(self.namespace), "the agents report that it trains")

    def slow_down(self) -> None:
        """Make one rank slower."""
        self.pod, pid = min(ranks(self.namespace).items())
        self.since_s = time.time()
        os.kill(pid, signal.SIGUSR2)

    def named(self) -> dict[str, Any] | None:
        """The status of the incident that says so; None before there is one."""
        for incident in incidents(self.namespace):
            status: dict[str, Any] = incident.get("status", {})
            if status.get("verdict") == "SLOW":
                return status
        return None
