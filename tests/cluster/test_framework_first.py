"""torchrun restarts a rank that died by itself: its recovery is left alone, and ours follows once it gives up."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.driver.cluster import JOBS, ClusterError, Namespace
from testbed.driver.fake_agent import processes
from testbed.driver.kinds import KINDS, process, rank_pods, wait_for_training, wait_until_learned
from testbed.driver.restarts import policy, running, until_reported, wait_for_phase, ways

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.usefixtures("agents"),
]
JOB = KINDS["job"]
# which of them keeps the store torchrun does not find out by a name that is not its own host name
TORCHRUN = (
    "exec python3 -m torch.distributed.run --nnodes=2 --nproc_per_node=1 --max_restarts=1 "
    "--rdzv_backend=c10d --rdzv_id=demo --rdzv_endpoint=demo-0.demo:29400 "
    "--redirects=1 --tee=1 --log_dir=/tmp/torchrun "  # under Python 3.11 it starts no workers without
    "--rdzv_conf=is_host=$([ $JOB_COMPLETION_INDEX = 0 ] && echo 1 || echo 0) /train/train.py"
)


def _start(namespace: Namespace) -> None:
    objects = list(yaml.safe_load_all((JOBS / "job.yaml").read_text()))
    (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
    container |= {"command": ["sh", "-c", TORCHRUN], "env": []}
    namespace.apply(yaml.safe_dump_all(objects))
    wait_for_training(namespace, JOB)


def _kill_rank(pod: dict[str, Any]) -> None:
    """The rank, not torchrun, which has the same program on its command line."""
    for pid in processes(pod["metadata"]["uid"]):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"torch.distributed.run" not in words and any(w.endswith(b"train.py") for w in words):
            os.kill(pid, signal.SIGKILL)
            return
    raise ClusterError("no rank is running")


def _restart_counts(namespace: Namespace) -> list[int]:
    return [
        container["restartCount"]
        for pod in namespace.pods(JOB.selector)
        for container in pod["status"]["containerStatuses"]
    ]


def test_a_rank_that_torchrun_starts_again_is_left_to_it(
    namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    policy(namespace, frameworkFirstSeconds=120)
    with running(namespace, tmp_path / "controller.log"):
        _start(namespace)
        wait_until_learned(namespace, JOB)
        uids = {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)}
        _kill_rank(rank_pods(namespace, JOB)[-1])
        incident = wait_for_phase(namespace, ("Observed", "Recovered", "Failed"))
        assert incident["status"]["phase"] == "Observed", incident["status"]["timeline"]
        said = [line.get("text", "") for line in incident["status"]["timeline"]]
        assert any("left for 120 s to its launcher" in text for text in said), said
        assert ways(incident) == []
        wait_until_learned(namespace, JOB)
        assert {pod["metadata"]["uid"] for pod in namespace.pods(JOB.selector)} == uids
        assert _restart_counts(namespace) == [0, 0], "the containers went on"
        # torchrun has one restart: after the second death it gives up, and ours follows
        _kill_rank(rank_pods(namespace, JOB)[-1])
        incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"), 2)
        assert incident["status"]["phase"] == "Recovered", incident["status"]["timeline"]
        assert ways(incident) == (["InPlace"] if restart_in_place else ["Replace"])
        wait_for_training(namespace, JOB)


def test_a_hang_is_left_to_a_program_that_ends_it_by_itself_according_to_the_policy(
    namespace: Namespace, tmp_path: Path
) -> None:
    """As NVRx in process does, after its own time-out; here the rank that hung continues."""
    policy(namespace, frameworkFirst="Faults", frameworkFirstSeconds=120)
    with running(namespace, tmp_path / "controller.log"):
        namespace.apply((JOBS / "job.yaml").read_text())
        wait_for_training(namespace, JOB)
        wait_until_learned(namespace, JOB)
        hung = process(rank_pods(namespace, JOB)[-1])
        os.kill(hung, signal.SIGSTOP)
        try:
            incident = until_reported(namespace, "left for 120 s to the program")
        finally:
            os.kill(hung, signal.SIGCONT)
        assert incident["status"]["verdict"] == "HUNG"
        incident = wait_for_phase(namespace, ("Observed", "Recovered", "Failed"))
        assert incident["status"]["phase"] == "Observed", incident["status"]["timeline"]
        assert ways(incident) == []
        assert _restart_counts(namespace) == [0, 0]
