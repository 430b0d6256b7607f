"""A rank dies while no agent runs, and its kubelet restarts it: the controller learns of it from the pod alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from kcover_ebpf.api.rfc3339 import from_text
from testbed import skips
from testbed.driver import agents as real_agents
from testbed.driver.cluster import ROOT, Namespace
from testbed.driver.fake_agent import is_first, processes
from testbed.driver.kinds import rank_pods, wait_for_training, wait_until_learned
from testbed.driver.restarts import incidents, running, wait_for_phase
from tests.cluster.faked_job import JOB, started, uids

pytestmark = pytest.mark.timeout(600, func_only=True)


def test_a_rank_that_dies_unobserved_is_recorded_and_nothing_else_is_done(
    namespace: Namespace, tmp_path: Path
) -> None:
    if not namespace.cluster.arms_pods:
        skips.skip("restart-in-place", "use Kubernetes 1.36 or newer")
    namespace.cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    log = tmp_path / "controller"
    with running(namespace, log), real_agents.running(namespace.cluster, tmp_path) as agents:
        started(namespace, in_place=True, trains=True)
        wait_until_learned(namespace, JOB)
        pods = uids(namespace)
        for agent in agents.values():
            agent.kill()
        victim = rank_pods(namespace, JOB)[0]
        (first,) = (pid for pid in processes(victim["metadata"]["uid"]) if is_first(pid))
        killed_s = time.time()
        os.kill(first, signal.SIGKILL)
        wait_for_training(namespace, JOB)
        for agent in agents.values():
            agent.start()
        found = wait_for_phase(namespace, ("Observed",))
        status = found["status"]
        assert status["verdict"] == "CRASHED", status
        assert abs(from_text(status["since"]) - killed_s) < 5.0, status
        assert "recorded only" in status["message"]
        wait_until_learned(namespace, JOB)
        time.sleep(10)
        assert len(incidents(namespace)) == 1, "it is recorded once"
        assert "restarts" not in found["status"]
        assert uids(namespace) == pods
        for pod in rank_pods(namespace, JOB):
            (container,) = pod["status"]["containerStatuses"]
            assert container["restartCount"] == 1, "by its kubelet, once"
