"""What real pods print, by agents and a controller here: crashes behind prefixes, a loss that stops, a first cause.

A crash whose traceback is behind what a launcher, a logger or a terminal puts in front of it is one bug of the
program, so the job is restarted once and not again. A rule of the policy restarts a job whose loss is not printed any
more, although its ranks continue. Where 64 ranks print an error, the Incident names the one that was first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.driver.cluster import Namespace, until
from testbed.driver.restarts import incidents, policy, ways

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.usefixtures("reading_agents", "restart_in_place", "controller"),
]
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: %(name)s}
spec:
  completionMode: Indexed
  completions: 1
  parallelism: 1
  backoffLimit: 0
  template:
    metadata: {labels: {kcover.io/cascading-recovery: "true"}}
    spec:
      automountServiceAccountToken: false
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/kcover-train:1
        command: %(command)s
        env:
        - {name: RANK, value: "0"}
        - {name: WORLD_SIZE, value: "1"}
        - {name: LOCAL_RANK, value: "0"}
        resources: {requests: {cpu: 20m}}
"""
CRASH = """
import json, sys, time, traceback
def train():
    for step in range(20):
        say(f"step {step}")
        time.sleep(0.3)
    raise ValueError("sample 20")
def say(text):
    for line in text.splitlines():
        sys.stderr.write(put(line) + "\\n")
def put(line):
    return %s
def put_all(text):
    return json.dumps({"level": "error", "message": "failed", "exc_info": text}) + "\\n"
try:
    train()
except ValueError:
    %s
    sys.exit(1)
"""
TRACEBACK = "say(traceback.format_exc())"
STYLES = {
    "ranked": ('"[rank3]: " + line', TRACEBACK),
    "tagged": ('"[1,3]<stderr>:" + line', TRACEBACK),
    "numbered": ('"3: " + line', TRACEBACK),
    "coloured": (r'"\x1b[31m" + line + "\x1b[0m"', TRACEBACK),
    "record": (
        'json.dumps({"level": "error", "message": line})',
        "sys.stderr.write(put_all(traceback.format_exc()))",
    ),
}
SILENT = """
import time
step = 0
while True:
    step += 1
    time.sleep(0.3)
    if step <= 20:
        print(f"step {step} loss: {3 - step / 20}", flush=True)
    if step == 15:
        print("kcover: checkpoint 15 is complete", flush=True)
"""
RANKS_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: many}
spec:
  completionMode: Indexed
  completions: 8
  parallelism: 8
  backoffLimit: 0
  template:
    spec:
      automountServiceAccountToken: false
      restartPolicy: Never
      terminationGracePeriodSeconds: 10
      containers:
      - name: main
        image: localhost/kcover-train:1
        command: %(command)s
        volumeMounts: [{name: shared, mountPath: /shared}]
        resources: {requests: {cpu: 20m}}
      volumes:
      - {name: shared, hostPath: {path: %(folder)s}}
"""
FIRST = 37
"""The rank that fails by itself; the other 63 then lose it."""
RANKS = """
import os, pathlib, subprocess, sys, time, traceback
shared = pathlib.Path("/shared")
def launch():
    first = 8 * int(os.environ["JOB_COMPLETION_INDEX"])
    environs = [
        {"RANK": str(first + local), "LOCAL_RANK": str(local), "WORLD_SIZE": "64"} for local in range(8)
    ]
    ranks = [subprocess.Popen(sys.orig_argv, env={**os.environ, **mine}) for mine in environs]
    sys.exit(max(rank.wait() for rank in ranks))
def train(rank):
    (shared / str(rank)).touch()
    while len(list(shared.iterdir())) < 64:
        time.sleep(0.2)
    for step in range(10_000):
        say(rank, f"step {step}")
        time.sleep(0.3)
        if (shared / "failed").exists():
            raise ConnectionResetError(104, "Connection reset by peer")
        if rank == FIRST and step == 20:
            raise ValueError("sample 20")
def say(rank, text):
    os.write(2, "".join(f"[rank{rank}]: {line}\\n" for line in text.splitlines()).encode())
if "RANK" not in os.environ:
    launch()
try:
    train(int(os.environ["RANK"]))
except Exception:
    say(int(os.environ["RANK"]), traceback.format_exc())
    (shared / "failed").touch()
    time.sleep(3)
    sys.exit(1)
"""
LOSS = {
    "name": "loss",
    "line": "loss",
    "withinSeconds": 120,
    "everySeconds": 10,
    "action": "Restart",
}


def start(namespace: Namespace, name: str, program: str) -> None:
    command = json.dumps(["python3", "-u", "-c", program])
    namespace.apply(JOB % {"name": name, "command": command})


def of_job(namespace: Namespace, name: str) -> list[dict[str, Any]]:
    """The incidents of a job."""
    return [found for found in incidents(namespace) if found["spec"]["job"]["name"] == name]


def given_up(namespace: Namespace, name: str) -> dict[str, Any] | None:
    """What is said of a job that is not restarted any more."""
    statuses = (found.get("status", {}) for found in of_job(namespace, name))
    return next(
        (status for status in statuses if "a bug of the program" in status.get("message", "")), None
    )


def test_a_crash_behind_each_prefix_is_one_bug_and_one_restart(namespace: Namespace) -> None:
    policy(namespace)
    for name, (put, end) in STYLES.items():
        start(namespace, name, CRASH % (put, end))
    for name in STYLES:
        status = until(lambda name=name: given_up(namespace, name), f"{name} is given up", 600)  # type: ignore[misc]
        assert "at step 19 as before the restart" in status["message"], status["message"]
        assert status["class"] == "program"
    restarts = {name: sum(len(ways(found)) for found in of_job(namespace, name)) for name in STYLES}
    print(restarts)
    assert restarts == dict.fromkeys(STYLES, 1)


def test_a_job_whose_loss_stops_being_printed_is_restarted_once(namespace: Namespace) -> None:
    policy(namespace, jobRules=[LOSS])
    start(namespace, "silent", SILENT)

    def restarted() -> dict[str, Any] | None:
        found = [one for one in of_job(namespace, "silent") if ways(one)]
        return found[0]["status"] if found else None

    status = until(restarted, "it is restarted", 400)
    print(json.dumps(status, indent=1))
    texts = [evidence["text"] for evidence in status["evidence"]]
    assert any(text.startswith("rule loss: the last such line came ") for text in texts)
    assert (status["verdict"], status["certainty"]) == ("HUNG", "announced")
    assert status["work"]["step"] == 20
    assert status["work"]["unsavedSteps"] == 5


def test_of_64_ranks_that_all_print_an_error_the_first_is_named(
    namespace: Namespace, tmp_path: Path
) -> None:
    policy(namespace)
    folder = tmp_path / "shared"
    folder.mkdir()
    program = RANKS.replace("FIRST", str(FIRST))
    command = json.dumps(["python3", "-u", "-c", program])
    namespace.apply(RANKS_JOB % {"command": command, "folder": folder})

    def named() -> list[str]:
        statuses = [found.get("status", {}) for found in of_job(namespace, "many")]
        evidence = [line for status in statuses for line in status.get("evidence", ())]
        said = [line["text"] for line in evidence if line["kind"] == "log"]
        return said if any(text.endswith("; 7 others followed") for text in said) else []

    (line, *_) = said = until(named, "the first cause is named", 400)
    print("\n".join(said))
    assert f" rank {FIRST}: first cause: traceback " in line
    assert ", step 20 (python_error)" in line
    assert sum("first cause" in text or "traceback" in text for text in said) == 1
