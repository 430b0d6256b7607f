"""Broken or stolen agents against the controller: what an agent's real token may have done to others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from kcover_ebpf.api import fault_report
from kcover_ebpf.api.fault_report import (
    FaultReport,
    PodRef,
    ReportedDeviceFault,
    ReportedJob,
)
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from testbed.attacks.hostile import JOB_NAME, pod
from testbed.attacks.stage import Stage, Tenant, shut
from testbed.driver import nodes
from testbed.driver.cluster import Cluster, Namespace, until
from testbed.driver.fake_agent import processes
from testbed.driver.installed import NAMESPACE
from testbed.driver.orders import GROUP, ByHand, reports_of, without_controllers
from testbed.driver.restarts import incidents
from tests.attack.conftest import Peace
from tests.cluster.fake_nodes import fake_node

pytestmark = pytest.mark.timeout(900, func_only=True)


def crash_of(pods: tuple[PodRef, ...], node: str, by: str, job_name: str) -> FaultReport:
    """A report by the agent of node `by` that a rank on `node` died by a signal, announced by the kernel."""
    first = pods[0]
    return FaultReport(
        node=by,
        time_s=time.time(),
        sequence=int(time.time()),
        agent="forged",
        job=ReportedJob(job_name, {JOB_NAME: job_name}, "Job"),
        pods=pods,
        trained=True,
        verdict=Verdict(
            VerdictKind.CRASHED,
            Cause.SEGFAULT,
            since_s=time.time() - 0.1,
            evidence=(Evidence(EvidenceKind.EVENT, "rank 0 died by SIGSEGV"),),
            culprit=Culprit(rank=0, pod=first.name, pod_uid=first.uid, node=node),
        ),
    )


def send(client: ApiClient, namespace: str, name: str, report: FaultReport) -> None:
    """Publish it as an agent does; raises ApiError where it is refused."""
    body = fault_report.object_of(report, namespace, name)
    client.apply(f"{GROUP}/{namespace}/faultreports/{name}", body, "kcover-agent")


def name_of(job_name: str, node: str) -> str:
    """The name under which the API server takes a report of a node about a gang: JOB-HASH.NODE."""
    return f"{job_name}-{crc32(job_name.encode()) & 0xFFFFFF:06x}.{node}"


def refs(pods: list[dict[str, Any]]) -> tuple[PodRef, ...]:
    return tuple(PodRef(entry["metadata"]["name"], entry["metadata"]["uid"]) for entry in pods)


def test_a1_an_agent_cannot_have_a_job_ended_that_has_no_pod_on_its_node(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    """The job is another tenant's; the last lines are the proof that such a report does end a job."""
    pods = tenant.started_on("node1", "far")
    mine, space = refs(pods), tenant.namespace
    forged = crash_of(mine, "node1", "node2", "far")
    thief = stage.agent("node2")
    for number in range(20):
        send(thief, space.name, name_of(f"forged-{number % 2}", "node2"), forged)
        time.sleep(0.5)
    assert [incident.get("status") for incident in incidents(space)] == []
    assert refs(space.pods(f"{JOB_NAME}=far")) == mine
    peace.assert_recovers()
    own = crash_of(mine, "node1", "node1", "far")
    send(stage.agent("node1"), space.name, name_of("forged", "node1"), own)
    until(lambda: incidents(space), "the agent of the job's own node is believed")


def devices_of(node: str, *faults: ReportedDeviceFault) -> FaultReport:
    """What a node reports of itself."""
    return FaultReport(
        node=node, time_s=time.time(), sequence=int(time.time()), agent="forged", devices=faults
    )


LOST = ReportedDeviceFault(
    "0000:17:00.0", "xid_94", "contained error", fatal=True, unfit=False, age_s=0.0
)
"""Ends the jobs on the device, which is as good as new for the next."""


def test_a8_a_lost_job_cordons_no_node_and_an_unfit_device_does(
    peace: Peace, stage: Stage, cluster: Cluster
) -> None:
    agent = stage.agent("node2")
    for _ in range(20):
        send(agent, NAMESPACE, "node2", devices_of("node2", LOST))
        time.sleep(0.5)
    peace.assert_kept()

    def is_shut() -> bool:
        send(agent, NAMESPACE, "node2", devices_of("node2", replace(LOST, unfit=True)))
        return "node2" in shut(cluster)

    until(is_shut, "an unfit device cordons")
    send(agent, NAMESPACE, "node2", devices_of("node2"))
    nodes.uncordon(cluster, "node2")
    peace.assert_recovers()


def test_a9_forged_lines_in_the_kernel_log_fill_no_board(peace: Peace, stage: Stage) -> None:
    """A privileged program of the node writes Xids of all kinds, at most as fast as it can."""
    kinds = [13, 31, 43, 45, 8, 32, 68, 69, 79, 95]
    with open("/dev/kmsg", "w") as log:
        for number in range(2000):
            device, kind = number % 200, kinds[number % len(kinds)]
            log.write(f"<3>NVRM: Xid (PCI:0000:{device:02x}:00): {kind}, pid=1, name=x, forged\n")
            log.flush()
    peace.assert_kept(10)
    for node in ("node1", "node2"):
        found = [
            item["spec"].get("devices", [])
            for item in Namespace(stage.cluster, NAMESPACE).items("faultreports")
            if item["metadata"]["name"] == node
        ]
        assert not any(item.get("unfit") or item.get("fatal") for one in found for item in one)
    peace.assert_recovers()


@contextmanager
def ghost(stage: Stage, name: str) -> Iterator[ApiClient]:
    """A node that exists in the API server only, and a session as its agent."""
    body = fake_node(name, "ghost")
    body["spec"] = {}
    body["metadata"]["labels"]["kubernetes.io/os"] = "linux"  # or it would be given no agent
    stage.cluster.ctl("create", "--filename=-", stdin=json.dumps(body))
    try:
        yield stage.agent(name)
    finally:
        stage.cluster.ctl("delete", "node", name, "--wait=false")


def test_a11_an_agent_that_reports_ever_new_gangs_makes_no_endless_incidents(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    space, most = tenant.namespace, 100
    with ghost(stage, "ghost") as agent:
        gangs = [f"gang-{number}" for number in range(most + 30)]
        bodies = [pod(gang, labels={JOB_NAME: gang}) for gang in gangs]
        for body in bodies:
            body["spec"]["nodeName"] = "ghost"
        tenant.create(*bodies)
        for entry in space.pods():
            ref = refs([entry])
            name = ref[0].name
            report = crash_of(ref, "ghost", "ghost", name)
            send(agent, space.name, name_of(name, "ghost"), report)
        until(lambda: len(incidents(space)) >= most, "as many incidents as may be", 240)
        peace.assert_kept(10)
        opened = [
            incident
            for incident in incidents(space)
            if "closedAt" not in incident.get("status", {})
        ]
        assert len(opened) <= most
        peace.assert_recovers()
        space.ctl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")


def test_a7_a_restarted_agent_with_many_orders_behind_it_still_reports(
    peace: Peace, stage: Stage, tenant: Tenant, cluster: Cluster
) -> None:
    """The orders come from a token of the controller, while the controllers are away."""
    space = tenant.namespace
    tenant.started_on("node1", "obeys", armed=False)
    until(lambda: report_on(space, "node1"), "the agent reports on the gang")
    with without_controllers(stage.release, space):
        by_hand = ByHand(stage.controller(), space, "obeys", {JOB_NAME: "obeys"})
        for number in range(12):
            by_hand.order(f"order-{number}", "Resume" if number % 2 else "Stop")
    old = stage.agent_pod("node1")
    stage.release.ctl("delete", "pod", old, "--wait=true")
    fresh = until(lambda: (now := stage.agent_pod("node1")) != old and now, "a new agent")
    stage.release.ctl("wait", f"pod/{fresh}", "--for=condition=Ready", "--timeout=60s")
    began = report_on(space, "node1")["sequence"]
    until(lambda: report_on(space, "node1")["sequence"] > began + 1, "it reports on the gang")
    assert 0 < len(report_on(space, "node1").get("acks", ())) <= 8
    assert all(processes(entry["metadata"]["uid"]) for entry in space.pods())
    peace.assert_recovers()


def report_on(namespace: Namespace, node: str) -> dict[str, Any]:
    """What the agent of a node says about the namespace's gang; empty where it says nothing."""
    return next((entry for entry in reports_of(namespace) if entry["node"] == node), {})
