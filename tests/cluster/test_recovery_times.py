"""From a fault to training again, by cause, as the project's own records have it: `kubectl kcover stats`.

`KCOVER_ROUNDS=3 pytest -s tests/cluster/test_recovery_times.py` prints what the README says: for each fault the seconds
from its first sign until all ranks made progress again (`mttr_s` of its cause). Real agents, controller, kubelets and
training; each round is one fault in a job that trains. A first sign is later than its fault by what a record cannot
know: seconds from the fault, by the clock of this test, are printed beside it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from testbed.driver.cluster import Namespace
from testbed.driver.kinds import (
    KINDS,
    process,
    rank_pods,
    start,
    wait_for_training,
    wait_until_learned,
)
from testbed.driver.restarts import moment, policy, running, wait_for_phase, ways
from tests.cluster.cuts import cut
from tests.cluster.stub_agents import COMMAND

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.usefixtures("agents"),
]
JOB = KINDS["job"]
ROUNDS = int(os.environ.get("KCOVER_ROUNDS", "1"))
Pods = list[dict[str, Any]]


def kill(pods: Pods) -> None:
    """A rank is gone."""
    os.kill(process(pods[-1]), signal.SIGKILL)


def stop(pods: Pods) -> None:
    """A rank is stopped."""
    os.kill(process(pods[-1]), signal.SIGSTOP)


def part(pods: Pods) -> None:
    """Two pods do not reach each other."""
    one, other = pods[:2]
    cut(one, other["status"]["podIP"])
    cut(other, one["status"]["podIP"])


FAULTS: dict[str, tuple[Callable[[Pods], None], str, str]] = {
    "killed": (kill, "CRASHED killed", "InPlace"),
    "stopped": (stop, "HUNG stopped", "InPlace"),
    "cut": (part, "LOST_LINK", "Replace"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_records_of_a_fault_say_how_long_it_took(
    fault: str, namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    inject, cause, way = FAULTS[fault]
    policy(namespace, ways=[way])
    start(namespace, JOB)
    taken = []
    with running(namespace, tmp_path / "controller.log"):
        for count in range(1, ROUNDS + 1):
            wait_for_training(namespace, JOB)
            wait_until_learned(namespace, JOB)
            fault_s = time.time()
            inject(rank_pods(namespace, JOB))
            incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"), count, 300)
            status = incident["status"]
            assert status["phase"] == "Recovered", status["timeline"]
            assert f"{status['verdict']} {status['cause']}".startswith(cause)
            assert ways(incident) == [way]
            taken.append(moment(incident, "Recovered") - fault_s)
    found = _stats(namespace)
    (row,) = found["causes"]
    assert row["name"] == status["cause"]
    assert row["interruptions"] == ROUNDS
    from_sign_s, from_fault_s = round(row["mttr_s"], 1), round(median(taken), 1)
    print(json.dumps({"cause": row["name"], "rounds": ROUNDS, "mttr_s": from_sign_s,
                      "from_fault_s": from_fault_s, "lost": found["lost"]}))  # fmt: skip
    assert 0 < from_sign_s <= max(taken) + 1.0


def _stats(namespace: Namespace) -> dict[str, Any]:
    command = [
        COMMAND.replace("kcover-ebpf", "kubectl-kcover"),
        "stats",
        "--since=1d",
        "-o",
        "json",
    ]
    command += ["-n", namespace.name, "--kubeconfig", str(namespace.cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
