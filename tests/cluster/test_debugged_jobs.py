"""A person examines a job: a container added to a pod, and a copy of a pod with its labels, are none of its ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.driver.cluster import JOBS, Namespace
from testbed.driver.kinds import KINDS, process, rank_pods, wait_for_training, wait_until_learned
from testbed.driver.restarts import incidents, policy, running, wait_for_phase, ways

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.usefixtures("agents"),
]
JOB = KINDS["job"]
IMAGE = "localhost/kcover-train:1"
QUIET_S = 15.0


def _debug(namespace: Namespace, pod: str, *options: str) -> None:
    """`kubectl debug` with a program that sleeps beside the ranks."""
    asked = ("debug", pod, "--attach=false", "--image-pull-policy=Never", f"--image={IMAGE}")
    namespace.ctl(*asked, *options, "--", "sleep", "86400")


def test_a_debugger_is_no_rank_and_its_end_is_not_waited_for(
    namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    policy(namespace)
    with running(namespace, tmp_path / "controller.log"):
        namespace.apply((JOBS / "job.yaml").read_text())
        wait_for_training(namespace, JOB)
        wait_until_learned(namespace, JOB)
        first, last = rank_pods(namespace, JOB)
        _debug(namespace, last["metadata"]["name"], "--target=main", "--container=debugger")
        copy = ("--copy-to=copy", "--container=main", f"--set-image=main={IMAGE}")
        _debug(namespace, first["metadata"]["name"], *copy)
        # with all labels of a pod the Job's own controller would adopt the copy, and delete it
        namespace.ctl("label", "pod", "copy", JOB.selector)
        namespace.wait("pod/copy", "condition=Ready", 60)
        time.sleep(QUIET_S)
        assert incidents(namespace) == [], "who examines breaks nothing"
        os.kill(process(_pod(namespace, last)), signal.SIGSTOP)
        incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"))
        status = incident["status"]
        assert status["phase"] == "Recovered", status["timeline"]
        assert (status["verdict"], status["cause"]) == ("HUNG", "stopped")
        assert status["culprit"]["pod"] == last["metadata"]["name"]
        assert ways(incident) == (["InPlace"] if restart_in_place else ["Replace"])
        (copied,) = [
            pod for pod in namespace.pods(JOB.selector) if pod["metadata"]["name"] == "copy"
        ]
        assert copied["status"]["containerStatuses"][0]["restartCount"] == 0
        assert copied["status"]["phase"] == "Running"


def _pod(namespace: Namespace, known: dict[str, Any]) -> dict[str, Any]:
    name = known["metadata"]["name"]
    (pod,) = [pod for pod in namespace.pods(JOB.selector) if pod["metadata"]["name"] == name]
    return pod
