"""What no report says: a death while no agent runs, and a hang whose report was deleted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from kcover_ebpf.api.rfc3339 import from_text
from kcover_ebpf.model.process_state import State
from testbed import skips
from testbed.driver import agents as real_agents
from testbed.driver.cluster import ROOT, Namespace, until
from testbed.driver.fake_agent import is_first, processes
from testbed.driver.kinds import process, rank_pods, wait_for_training, wait_until_learned
from testbed.driver.restarts import incidents, policy, running, wait_for_phase
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


def _hangs(namespace: Namespace) -> bool:
    reports = [item["spec"] for item in namespace.items("faultreports")]
    ranks = [rank for report in reports for rank in report.get("ranks", ())]
    return any(rank["state"] == State.STOPPED.value for rank in ranks)


def test_a_hang_whose_report_was_deleted_is_acted_on_all_the_same(
    namespace: Namespace, tmp_path: Path
) -> None:
    """The agent said it once, and it is as it was: it may not read reports, and no one informs it."""
    namespace.cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    policy(namespace)
    with real_agents.running(namespace.cluster, tmp_path):
        with running(namespace, tmp_path / "before"):
            started(namespace, trains=True)
            wait_until_learned(namespace, JOB)
        os.kill(process(rank_pods(namespace, JOB)[-1]), signal.SIGSTOP)
        until(lambda: _hangs(namespace), "the hang is reported")
        time.sleep(30)  # nothing about it is new any more
        namespace.ctl("delete", "faultreports", "--all")
        with running(namespace, tmp_path / "after"):
            deleted_s = time.monotonic()
            found = wait_for_phase(namespace, ("Recovered",))
            print(f"recovered {time.monotonic() - deleted_s:.1f} s after the reports were deleted")
        assert found["status"]["verdict"] == "HUNG"
