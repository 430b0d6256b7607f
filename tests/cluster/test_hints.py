"""What a training says of itself, on the test bed: a phase that was announced ends no job.

Two ranks train by torch and gloo, and use the file of hints as a user would. Both jobs pause in the middle of their
training, each in the same way; only one says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.api.pods import Pod, pod_of
from testbed.driver.cluster import ROOT, Namespace, until
from testbed.driver.restarts import incidents, policy, ways

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.usefixtures("reading_agents", "restart_in_place", "controller"),
]
EVERY, PAUSES_AT, PAUSE_S, TOKENS = 10, 24, 100, 4096
LIMIT_S = 40
"""So long may a job be silent that said nothing."""
PROGRAM = f"""
import contextlib, itertools, os, socket, sys, threading, time
from pathlib import Path
sys.path[:0] = ["/train", "/hint"]
import train
from kcover_hint import checkpoint_complete, phase
mine = train.place(os.environ, socket.gethostname())
saved = Path("/resume", os.environ["MASTER_ADDR"])
first = int(saved.read_text()) + 1 if saved.exists() else 1
hinted = os.environ["HINTED"] == "yes"
job = train.TorchJob(mine)
for number in itertools.count(first):
    job.step()
    print(f"step {{number}} loss: {{3 - number / 1e4}} tokens: {{number * {TOKENS}}}", flush=True)
    time.sleep(0.5)
    if number == {PAUSES_AT} and first == 1:
        with phase("evaluation", {PAUSE_S} * 2) if hinted else contextlib.nullcontext():
            lock = threading.Lock()
            lock.acquire()
            if mine.rank == 1:
                lock.acquire(timeout={PAUSE_S})
            job.barrier()
    if number % {EVERY} == 0:
        if mine.rank == 0:
            saved.write_text(str(number))
        job.barrier()
        checkpoint_complete(number)
"""
JOB = """
apiVersion: v1
kind: Service
metadata: {name: %(name)s}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {batch.kubernetes.io/job-name: %(name)s}
---
apiVersion: batch/v1
kind: Job
metadata: {name: %(name)s}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  backoffLimit: 0
  template:
    metadata: {labels: {kcover.io/cascading-recovery: "true"}}
    spec:
      automountServiceAccountToken: false
      restartPolicy: Never
      subdomain: %(name)s
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/kcover-train:1
        command: [python3, -u, /hint/hinted.py]
        env:
        - {name: WORLD_SIZE, value: "2"}
        - {name: MASTER_ADDR, value: %(name)s-0.%(name)s}
        - {name: HINTED, value: "%(hinted)s"}
        resources: {requests: {cpu: 20m}}
        volumeMounts:
        - {name: train, mountPath: /train}
        - {name: hint, mountPath: /hint}
        - {name: resume, mountPath: /resume}
      volumes:
      - {name: train, configMap: {name: train}}
      - {name: hint, configMap: {name: hint}}
      - {name: resume, hostPath: {path: %(folder)s}}
"""


def start(namespace: Namespace, folder: Path) -> None:
    """Two jobs: one that says what it does, and one that does not."""
    hint = (ROOT / "hints/kcover_hint.py").read_text()
    data = {"kcover_hint.py": hint, "hinted.py": PROGRAM}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hint"}, "data": data}
    namespace.apply(json.dumps(made))
    folder.mkdir()
    for name, hinted in (("said", "yes"), ("silent", "no")):
        namespace.apply(JOB % {"name": name, "hinted": hinted, "folder": folder})


def acted_on(namespace: Namespace, name: str) -> dict[str, Any] | None:
    """The status of the incident for which a job was restarted."""
    found = [one for one in incidents(namespace) if one["spec"]["job"]["name"] == name]
    return next((one["status"] for one in found if "status" in one and ways(one)), None)


def second(namespace: Namespace) -> Pod:
    """The pod of rank 1 of the job that says what it does."""
    (found,) = namespace.pods(
        "batch.kubernetes.io/job-name=said,batch.kubernetes.io/job-completion-index=1"
    )
    return pod_of(found)


def logged(namespace: Namespace, text: str) -> bool:
    return text in namespace.ctl("logs", second(namespace).name)


def test_a_phase_that_was_announced_ends_no_job(namespace: Namespace, tmp_path: Path) -> None:
    policy(namespace, thresholds={"hard_limit": f"{LIMIT_S}s"})
    start(namespace, tmp_path / "resume")
    until(lambda: acted_on(namespace, "silent"), "the job that said nothing is restarted", 400)
    until(lambda: logged(namespace, "phase evaluation ends"), "the phase is over", 300)
    assert acted_on(namespace, "said") is None
    held_back = [
        found["status"].get("actsWhy", "")
        for found in incidents(namespace)
        if found["spec"]["job"]["name"] == "said"
    ]
    assert any("its program announced a phase" in why for why in held_back)
