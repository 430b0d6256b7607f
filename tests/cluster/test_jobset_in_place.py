"""A JobSet that restarts in place by itself (KEP-467): why ours replaces it, and what its controller says otherwise.

It counts each restart of a container towards maxRestarts, whoever restarted it. Suspending it costs nothing.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.kube.client import connect
from testbed import skips
from testbed.driver.cluster import JOBS, ROOT, Namespace, until
from testbed.driver.fake_agent import FakeAgent, is_first, processes
from testbed.driver.kinds import KINDS, Kind, wait_for_training
from testbed.driver.nodes import all_uncordoned
from testbed.driver.restarts import policy, recover, running, ways
from tests.cluster.brought_back import restarts

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(600, func_only=True)]
JOBSET: Kind = KINDS["jobset"]
MOST = 1
"""Restarts that it allows."""


def _asked() -> list[dict[str, Any]]:
    """The example with its own restart in place, and what its webhook wants for that."""
    objects: list[dict[str, Any]] = list(yaml.safe_load_all((JOBS / "jobset.yaml").read_text()))
    spec = objects[-1]["spec"]
    spec["failurePolicy"] = {"maxRestarts": MOST, "restartStrategy": "InPlaceRestart"}
    for job in spec["replicatedJobs"]:
        wanted = {"backoffLimit": 2**31 - 1, "podReplacementPolicy": "Failed"}
        job["template"]["spec"] |= wanted
    return objects


def _failed(namespace: Namespace) -> str | None:
    """What the controller says of a JobSet that failed."""
    (jobset,) = namespace.get(JOBSET.plural, "demo")
    for condition in jobset.get("status", {}).get("conditions", ()):
        if condition["type"] == "Failed" and condition["status"] == "True":
            return f"{condition['reason']}: {condition['message']}"
    return None


def _restart_once(namespace: Namespace) -> None:
    """End the program of a pod, which its kubelet restarts in place."""
    pod = namespace.pods(JOBSET.selector)[0]
    before, name = restarts(pod), pod["metadata"]["name"]
    for pid in processes(pod["metadata"]["uid"]):
        if is_first(pid):
            os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        found = [pod for pod in namespace.pods(JOBSET.selector) if pod["metadata"]["name"] == name]
        return not found or restarts(found[0]) > before or _failed(namespace) is not None

    until(again, "its kubelet has restarted it", 60)


def test_a_jobset_that_restarts_in_place_by_itself_is_replaced_and_spends_nothing(
    namespace: Namespace,
    install: Callable[[Iterable[str]], None],
    restart_in_place: bool,
    tmp_path: Path,
) -> None:
    if not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    install([JOBSET.controller])
    cluster = namespace.cluster
    if not cluster.serves(JOBSET.plural):
        skips.skip(JOBSET.controller, "the cluster of $KUBECONFIG does not have it")
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    policy(namespace)
    key, _, value = JOBSET.selector.partition("=")
    session = connect(str(cluster.kubeconfig))
    namespace.apply(yaml.safe_dump_all(_asked()))
    wait_for_training(namespace, JOBSET)
    with (
        all_uncordoned(cluster),
        running(namespace, tmp_path / "log"),
        FakeAgent(session, namespace.name, {key: value}, JOBSET.kind) as fake,
    ):
        for count in (1, 2):  # more often than it allows
            fake.break_rank(namespace.pods(JOBSET.selector)[-1]["metadata"]["name"])
            incident = recover(namespace, fake, count)
            assert ways(incident) == ["Replace"], incident["status"]["timeline"]
            wait_for_training(namespace, JOBSET)
        (jobset,) = namespace.get(JOBSET.plural, "demo")
        assert not jobset["status"].get("restarts")
        assert _failed(namespace) is None
    for _ in range(MOST + 1):
        _restart_once(namespace)
    said = until(lambda: _failed(namespace), "its controller counts restarts in place", 60)
    print(json.dumps({"restarts in place": MOST + 1, "the controller says": said}))
    assert said.startswith("ReachedMaxRestarts")
