"""A gang of thousands of pods, under the real controllers, is replaced whole; KWOK plays the kubelets.

`KCOVER_PODS=5000 pytest -s tests/cluster/test_large_gang.py` prints what docs/cluster.md says. Most of its time
the Job controller makes pods, 20 a second. A request, as of kubectl kcover restart, takes the place of a fault.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kcover_ebpf.api.rfc3339 import from_text
from kcover_ebpf.kube.client import connect
from kcover_ebpf.kube.reflector import Change, Event, Reflector
from testbed import skips
from testbed.driver.cluster import ROOT, Namespace, until
from testbed.driver.restarts import moment, policy, running, until_reported, wait_for_phase, ways
from tests.cluster import fake_nodes as fakes
from tests.cluster.faked_job import ask_for_recovery

PODS = int(os.environ.get("KCOVER_PODS", "500"))
MARKED_WITHIN_S = 10.0
"""The goal for 5,000."""
pytestmark = pytest.mark.timeout(1800, func_only=True)


def test_every_pod_of_a_large_gang_is_marked_at_once_and_the_job_is_resumed(
    namespace: Namespace, install: Callable[[Iterable[str]], None], tmp_path: Path
) -> None:
    install(["kwok"])
    cluster = namespace.cluster
    if not cluster.serves("stages.kwok.x-k8s.io"):
        skips.skip("kwok", "the cluster of $KUBECONFIG does not have it")
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    policy(namespace, ways=["Replace"])
    marked: dict[str, float] = {}

    def on_event(event: Event) -> None:
        metadata = event.object.get("metadata") or {}
        if event.change is Change.GONE or metadata.get("deletionTimestamp"):
            marked.setdefault(str(metadata.get("uid")), time.time())

    session = connect(str(cluster.kubeconfig))
    with (
        fakes.fake_nodes(cluster, namespace.name, max(2, PODS // 250)),
        running(namespace, tmp_path / "log"),
    ):
        namespace.apply(json.dumps(fakes.fake_job("demo", namespace.name, PODS)))
        until(lambda: fakes.running(cluster, namespace.name) >= PODS, "all pods run", 60 + PODS / 5)
        old = {pod["metadata"]["uid"] for pod in namespace.pods("job-name=demo")}
        watch = Reflector(session, f"/api/v1/namespaces/{namespace.name}/pods", {}, on_event)
        watch.start()
        ask_for_recovery(namespace, namespace.pods("job-name=demo")[0])
        until_reported(namespace, "the job is resumed")
        incident = wait_for_phase(namespace, ("ShuttingDown", "Recovering", "Recovered"))
        watch.stop()
        begun_s = moment(incident, "ShuttingDown")
        (resumed,) = [
            line["time"]
            for line in incident["status"]["timeline"]
            if "the job is resumed" in line.get("text", "")
        ]
        resumed_s = from_text(resumed) - begun_s
        (job,) = namespace.get("jobs", "demo")
        assert not job["spec"].get("suspend")
        assert not job["status"].get("failed")
        assert ways(incident) == ["Replace"]
        assert old <= marked.keys()
        all_marked_s = max(marked[uid] for uid in old) - begun_s
        taken = {"marked_s": round(all_marked_s, 1), "resumed_s": round(resumed_s, 1)}
        print(json.dumps({"pods": PODS, **taken}))
        namespace.ctl("delete", "job", "demo", "--cascade=background", "--wait=false")
    assert all_marked_s < MARKED_WITHIN_S
