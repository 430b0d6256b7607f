"""A serving gang: idle is no hang, a hung worker is named, its group is restarted, and the others are left alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.api.rfc3339 import from_text
from testbed import skips
from testbed.driver.cluster import JOBS, ClusterError, Namespace, until
from testbed.driver.fake_agent import processes
from testbed.driver.kinds import KINDS, wait_until_learned
from testbed.driver.restarts import incidents, moment, policy, running, wait_for_phase, ways

pytestmark = [
    pytest.mark.needs("root", "bpf"),
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.usefixtures("agents"),
]
LWS = KINDS["lws"]
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
PROGRAM = Path(__file__).with_name("serving_engine.py")
STEADY_BOUND_S = 60.0


def _start(namespace: Namespace, folder: Path) -> None:
    """Two groups of two pods."""
    (engines,) = yaml.safe_load_all((JOBS / "lws.yaml").read_text())
    engines["spec"]["replicas"] = 2
    pod = engines["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    (container,) = pod["containers"]
    container["command"] = ["python3", "/train/serving_engine.py"]
    container["volumeMounts"].append({"name": "engine", "mountPath": "/engine"})
    pod["volumes"].append({"name": "engine", "hostPath": {"path": str(folder)}})
    namespace.ctl("delete", "configmap", "train")
    namespace.ctl("create", "configmap", "train", f"--from-file={PROGRAM}")
    namespace.apply(yaml.safe_dump(engines))
    namespace.wait_for_steps(LWS.selector, 4, 5)


def _group(namespace: Namespace, number: int) -> dict[str, tuple[str, int]]:
    """By name the pods of a group: uid, and restarts."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ())),
        )
        for pod in namespace.pods(f"{LWS.selector},{GROUP}={number}")
    }


def _engine(pod: dict[str, Any]) -> int:
    """The process of its rank on this host: the eldest that runs the program."""
    found = [
        pid
        for pid in processes(pod["metadata"]["uid"])
        if b"serving_engine.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return min(found)


@pytest.mark.parametrize("idle_s", [0.0, 60.0], ids=["steady", "idle"])
def test_an_idle_engine_is_left_alone_and_a_hung_worker_has_its_group_restarted(
    idle_s: float, namespace: Namespace, install: Callable[[Iterable[str]], None], tmp_path: Path
) -> None:
    """An engine that was idle for a minute may be so again, so that a hang is called one later."""
    install([LWS.controller])
    with suppress(ClusterError):  # a new kind is served a few seconds after it was made
        until(lambda: namespace.cluster.serves(LWS.plural), "its kind is served", 20)
    if not namespace.cluster.serves(LWS.plural):
        skips.skip(LWS.controller, "the cluster of $KUBECONFIG does not have it")
    load = tmp_path / "load"
    load.touch()
    policy(namespace)
    with running(namespace, tmp_path / "controller.log"):
        _start(namespace, tmp_path)
        wait_until_learned(namespace, LWS)
        if idle_s:
            load.unlink()
            time.sleep(idle_s)
        assert [ways(one) for one in incidents(namespace) if ways(one)] == []
        assert [one["status"]["phase"] for one in incidents(namespace)] in ([], ["Observed"])
        before = len(incidents(namespace))
        load.touch()
        time.sleep(5)
        hurt, others = _group(namespace, 0), _group(namespace, 1)
        (worker,) = [
            pod
            for pod in namespace.pods(f"{LWS.selector},{GROUP}=0")
            if pod["metadata"]["name"].endswith("-0-1")
        ]
        fault_s = time.time()
        os.kill(_engine(worker), signal.SIGSTOP)
        incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"), before + 1)
        status = incident["status"]
        assert status["phase"] == "Recovered", status["timeline"]
        assert (status["verdict"], status["cause"]) == ("HUNG", "stopped")
        assert status["culprit"]["pod"] == worker["metadata"]["name"]
        assert ways(incident) == ["Replace"]
        fresh = _group(namespace, 0)
        assert fresh.keys() == hurt.keys()
        assert not {uid for uid, _ in fresh.values()} & {uid for uid, _ in hurt.values()}
        assert _group(namespace, 1) == others, "the other group serves on"
        for name in fresh:
            namespace.wait_for_log(name, r"rank \d+ step 5$")
        for line in status["timeline"]:
            print(f"{from_text(line['time']) - fault_s:6.1f} s {line['phase']}: {line['text']}")
        taken_s = moment(incident, "Recovered") - fault_s
        print(f"serving again {taken_s:.1f} s after the hang")
        assert idle_s or taken_s < STEADY_BOUND_S
