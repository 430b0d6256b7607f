"""Scenarios for test_faults.py: what is not brought back, and why."""

from __future__ import annotations

import os
import signal
from typing import Any

from testbed import skips
from testbed.driver.cluster import Namespace, until
from testbed.driver.fake_agent import is_first, processes
from testbed.driver.kinds import KINDS, start
from testbed.driver.restarts import incidents, policy, until_reported, wait_for_phase, ways
from tests.cluster.crowd import Book

TWO = KINDS["job"]
BOOK = Book()
RANKS = "for rank in 0 1; do RANK=$rank WORLD_SIZE=2 MASTER_ADDR=localhost python3 /train/train.py & done; wait"
POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: bare, labels: {{kcover.io/cascading-recovery: "true"}}}}
spec:
  containers:
  - name: main
    image: localhost/kcover-train:1
    command: [sh, -c, "{RANKS}"]
    volumeMounts: [{{name: train, mountPath: /train}}]
  volumes: [{{name: train, configMap: {{name: train}}}}]
"""


@BOOK.scenario()
def a_bare_pod_is_reported_and_refused(namespace: Namespace) -> None:
    policy(namespace, ways=["Replace"])
    namespace.apply(POD)
    namespace.wait("pod/bare", "condition=Ready")
    (pod,) = namespace.pods()
    until(lambda: trains(namespace), "the agent says that the ranks train")
    ranks = [pid for pid in processes(pod["metadata"]["uid"]) if not is_first(pid)]
    os.kill(max(ranks), signal.SIGSTOP)
    incident = wait_for_phase(namespace, ("Refused",))
    assert incident["status"]["culprit"]["pod"] == "bare"
    assert "bare pods have no controller that would recreate them" in incident["status"]["message"]
    (still,) = namespace.pods()
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]
    assert "deletionTimestamp" not in still["metadata"]
    assert ways(incident) == []


def trains(namespace: Namespace) -> bool:
    return any(item["spec"].get("trained") for item in namespace.items("faultreports"))


@BOOK.scenario()
def a_program_that_always_fails_is_stopped_for_good(namespace: Namespace) -> None:
    """The kubelets would restart it in place for ever: budget, pause and end are ours."""
    if not namespace.cluster.arms_pods:
        skips.skip("restart-in-place", "without it the job fails by itself")
    policy(namespace, restarts={"max": 2, "backoffSeconds": 15})
    start(namespace, TWO, failing)
    namespace.wait("job/demo", "jsonpath={.spec.suspend}=true", 120)
    incident = until_reported(namespace, "pausing for 15 s")
    until_reported(namespace, "stopping for good: the budget of 2 restarts is used up")
    last = until(lambda: stopped_for_good(namespace), "the last incident is over")
    assert "the job stays suspended until it is resumed by hand" in last["status"]["message"]
    assert incident["metadata"]["uid"] != last["metadata"]["uid"]
    begun = [way for entry in incidents(namespace) for way in ways(entry)]
    assert begun == ["InPlace", "Replace"]
    until(lambda: not namespace.pods(), "no pod is left")
    (job,) = namespace.get("jobs", "demo")
    assert job["spec"]["suspend"]
    assert not job["status"].get("failed")


def failing(text: str) -> str:
    """The example Job with ranks that leave with code 3 after 24 steps."""
    program = "import os, runpy; os.environ['STEPS'] = '24'; "
    program += "runpy.run_path('/train/train.py', run_name='__main__'); os._exit(3)"
    old = "[python3, /train/train.py]"
    assert old in text
    return text.replace(old, f'[python3, -c, "{program}"]')


def stopped_for_good(namespace: Namespace) -> dict[str, Any] | None:
    last = incidents(namespace)[-1]
    return last if last["status"]["phase"] == "Failed" else None
