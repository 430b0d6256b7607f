"""How long it takes until a rank that becomes 1.3 times slower is named, with one rank on each of several nodes.

Real agents and the real controller, on a cluster whose nodes share this machine.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.clusterbench.plane import ROOT
from bench.clusterbench.restart import cluster_of
from testbed.driver import agents
from testbed.driver.cluster import made, titled
from testbed.driver.restarts import running
from testbed.driver.slow_rank import LEARNED_S, SlowRank

_LONGEST_S = 180.0
_GAP_S = 3.0
"""Between two jobs: what is learned of one must not be in step with the next."""


def slow(kubeconfig: Path, folder: Path, count: int) -> dict[str, Any]:
    """Seconds until each was named, by the incident's first line; None where that took too long."""
    cluster = cluster_of(kubeconfig)
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    nodes = len(cluster.get("nodes"))
    with ExitStack() as stack:
        stack.enter_context(agents.running(cluster, folder))
        spaces = [stack.enter_context(made(titled(cluster, f"slow-{n}"))) for n in range(count)]
        stack.enter_context(running(spaces[0], folder / "controller.log", others=spaces[1:]))
        jobs = [SlowRank(space) for space in spaces]
        for job in jobs:
            job.start(nodes)
        time.sleep(LEARNED_S)
        early = sum(job.named() is not None for job in jobs)
        for job in jobs:
            job.slow_down()
            time.sleep(_GAP_S)
        after_s: dict[int, float | None] = dict.fromkeys(range(count))
        wrong = 0
        deadline = time.time() + _LONGEST_S
        while time.time() < deadline and None in after_s.values():
            for number, job in enumerate(jobs):
                status = job.named() if after_s[number] is None else None
                if status is not None:
                    after_s[number] = round(time.time() - job.since_s, 1)
                    wrong += status.get("culprit", {}).get("pod") != job.pod
            time.sleep(0.5)
    named = sorted(value for value in after_s.values() if value is not None)
    in_time = sum(value <= 30.0 for value in named)
    return {
        "nodes": nodes,
        "jobs": count,
        "named_before": early,
        "wrong": wrong,
        "within_30_s": in_time,
        "named_after_s": named,
    }
