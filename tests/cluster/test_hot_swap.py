"""A Job that Kueue placed by topology: we taint its node, and Kueue gives its pod another one.

Kueue has `waitForPodsReady`: no restart of ours takes as long as its `recoveryTimeout`. While one pod moves the quota
is kept; while all of them are replaced it is released.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import skips
from testbed.driver.cluster import ROOT, Cluster, Namespace, until
from testbed.driver.kinds import KINDS
from testbed.driver.restarts import counters, moment, policy, row_of, wait_for_phase, ways
from tests.cluster.brought_back import Trained, events, of_jobs, training
from tests.cluster.spares import DEVICE, one_device_a_node

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(600, func_only=True)]
JOB = KINDS["job"]
WORKLOADS = "workloads.v1beta2.kueue.x-k8s.io"
RACK = "example.com/rack"
# Kueue looks for a place for a replacement while the old pod still counts: without quota for one more it evicts all.
QUEUES = f"""
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {{name: swap}}
spec: {{levels: [{{nodeLabel: {RACK}}}, {{nodeLabel: kubernetes.io/hostname}}]}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: swap}}
spec: {{nodeLabels: {{{RACK}: a}}, topologyName: swap}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: swap}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [cpu, {DEVICE}]
    flavors:
    - name: swap
      resources: [{{name: cpu, nominalQuota: 1}}, {{name: {DEVICE}, nominalQuota: 4}}]
"""
QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: queue}
spec: {clusterQueue: swap}
"""


@pytest.fixture(scope="module")
def bed(cluster: Cluster, install: Callable[[Iterable[str]], None]) -> Iterator[Cluster]:
    """Three nodes of one rack with a device each, and a queue that places by them."""
    install(["kueue"])
    if not cluster.serves(WORKLOADS):
        skips.skip("kueue", "the cluster of $KUBECONFIG does not have it")
    cluster.grow(3)
    cluster.ctl("label", "nodes", "--all", f"{RACK}=a", "--overwrite")
    with one_device_a_node(cluster):
        cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
        cluster.ctl("apply", "--filename=-", stdin=QUEUES)
        yield cluster


def _queued(objects: list[dict[str, Any]]) -> None:
    of_jobs(objects)
    job = objects[-1]
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "queue"}
    template = job["spec"]["template"]["metadata"]
    template["annotations"] = {"kueue.x-k8s.io/podset-required-topology": RACK}


def _workload(namespace: Namespace) -> dict[str, Any]:
    (workload,) = namespace.get(WORKLOADS)
    return workload


def _is_true(workload: dict[str, Any], condition: str) -> bool:
    found = [one for one in workload["status"]["conditions"] if one["type"] == condition]
    return [one["status"] for one in found] == ["True"]


def _since(workload: dict[str, Any], condition: str) -> str:
    """When the condition changed last."""
    (since,) = [
        str(one["lastTransitionTime"])
        for one in workload["status"]["conditions"]
        if one["type"] == condition
    ]
    return since


def _places(workload: dict[str, Any]) -> str:
    """Where Kueue has assigned its pods, as it writes it."""
    return json.dumps(
        [one["topologyAssignment"] for one in workload["status"]["admission"]["podSetAssignments"]]
    )


@pytest.mark.parametrize("way", ["Hybrid", "Replace"])
def test_kueue_gives_the_pod_of_a_tainted_node_another_one(
    way: str, bed: Cluster, namespace: Namespace, restart_in_place: bool, tmp_path: Path
) -> None:
    if way == "Hybrid" and not restart_in_place:
        pytest.skip("a cluster older than 1.36 does not restart in place")
    namespace.apply(QUEUE)
    with training(bed, namespace, JOB, _queued, tmp_path) as trained:
        before = counters(namespace, row_of(JOB.api_version, JOB.kind), "demo")
        assert _is_true(_workload(namespace), "Admitted")
        reserved = _since(_workload(namespace), "QuotaReserved")
        figures = _move(trained, way)
        assert counters(namespace, row_of(JOB.api_version, JOB.kind), "demo") == before
        workload = _workload(namespace)
        assert _is_true(workload, "Admitted")
        assert _is_true(workload, "PodsReady")
        status = workload["status"]
        assert not status.get("unhealthyNodes")
        evictions = [
            one["reason"] for one in status.get("schedulingStats", {}).get("evictions", ())
        ]
        assert evictions == ([] if way == "Hybrid" else ["Deactivated"])
        assert (_since(workload, "QuotaReserved") == reserved) is (way == "Hybrid")
        victim = figures.pop("victim")
        assert way == "Replace" or victim not in _places(workload)
        print(json.dumps({"way": way, **figures}))


def _move(trained: Trained, way: str) -> dict[str, Any]:
    namespace = trained.namespace
    policy(namespace, ways=[way])
    trained.steps.wait_for(3)
    pods = namespace.pods(JOB.selector)
    old, heard = {pod["metadata"]["uid"] for pod in pods}, set(events(namespace))
    victim = pods[-1]
    fault_s = time.time()
    trained.fake.break_device(victim["metadata"]["name"], "0000:5d:00.0")
    incident = wait_for_phase(namespace, ("Recovering", "Recovered", "Failed", "Refused"))
    trained.fake.fault = trained.fake.device = None
    assert incident["status"]["phase"] in ("Recovering", "Recovered"), incident["status"]
    assert ways(incident) == [way]
    gap = until(lambda: trained.steps.gap(fault_s), "the job trains at the step before")
    assert gap.before < gap.after <= gap.before + 2, gap
    now = {pod["metadata"]["uid"]: pod for pod in namespace.pods(JOB.selector)}
    assert len(old & now.keys()) == (1 if way == "Hybrid" else 0)
    node = victim["spec"]["nodeName"]
    if way == "Hybrid":  # it cordons by itself; for a replacement a taint of the fault's own would
        assert node not in {pod["spec"]["nodeName"] for pod in now.values()}
    fresh = {reason for uid, reason in events(namespace).items() if uid not in heard}
    return {
        "victim": node,
        "running_s": round(moment(incident, "Recovering") - fault_s, 1),
        "step_s": round(gap.end_s - fault_s, 1),
        "said": sorted(fresh),
    }
