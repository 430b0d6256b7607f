"""Before the end: the healthy rank is asked by a signal, saves in another thread, and the restart waits for that.

Its main thread is in a collective with a rank that is stopped, so that no handler of Python's would run.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from testbed.driver.cluster import JOBS, Namespace
from testbed.driver.kinds import KINDS, process, rank_pods, wait_for_training, wait_until_learned
from testbed.driver.restarts import policy, running, wait_for_phase, ways

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(600, func_only=True)]
JOB = KINDS["job"]
SECONDS = 20
PROGRAM = """
import os, pathlib, runpy, signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.signal = lambda *_: None
rank = os.environ["JOB_COMPLETION_INDEX"]
def save():
    while True:
        signal.sigwait({signal.SIGUSR1})
        print("saving checkpoint 7", flush=True)
        time.sleep(2)
        pathlib.Path("/saved", "rank" + rank).write_text("7")
        print("saved checkpoint 7", flush=True)
threading.Thread(target=save, daemon=True).start()
runpy.run_path("/train/train.py", run_name="__main__")
"""


@pytest.mark.usefixtures("reading_agents")
def test_a_healthy_rank_saves_before_its_job_is_restarted(
    namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    saved = tmp_path / "saved"
    saved.mkdir(mode=0o777)
    policy(namespace, ways=["InPlace"], save={"signal": "SIGUSR1", "seconds": SECONDS})
    objects = list(yaml.safe_load_all((JOBS / "job.yaml").read_text()))
    pod = objects[-1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["command"] = ["python3", "-c", PROGRAM, "/train/train.py"]
    container["volumeMounts"].append({"name": "saved", "mountPath": "/saved"})
    pod["volumes"].append({"name": "saved", "hostPath": {"path": str(saved)}})
    namespace.apply(yaml.safe_dump_all(objects))
    wait_for_training(namespace, JOB)
    with running(namespace, tmp_path / "controller.log"):
        wait_until_learned(namespace, JOB)
        os.kill(process(rank_pods(namespace, JOB)[-1]), signal.SIGSTOP)
        incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused", "Observed"))
    said = [line.get("text", "") for line in incident["status"]["timeline"]]
    print(json.dumps(said, indent=1))
    assert incident["status"]["phase"] == "Recovered"
    assert ways(incident) == ["InPlace"]
    assert any(text.startswith("save: sending SIGUSR1 to the healthy ranks") for text in said)
    assert "save: a checkpoint is complete" in said
    assert [path.name for path in saved.iterdir()] == ["rank0"], "the stopped rank was not asked"
    wait_for_training(namespace, JOB)
