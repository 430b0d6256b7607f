"""`helm uninstall` while a node is cordoned and a job suspended: nothing of ours would ever undo it afterwards."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kcover_ebpf.api import fault_report
from kcover_ebpf.api.fault_report import FaultReport, ReportedDeviceFault
from kcover_ebpf.api.incident import FINALIZER
from kcover_ebpf.recovery.nodes.node_plan import CONDITION, TAINT
from testbed.attacks.hostile import FINALIZER as FINALIZER_OF_OTHERS
from testbed.attacks.stage import JOB, Victim
from testbed.driver.cluster import Cluster, Namespace, until
from testbed.driver.installed import NAMESPACE, Release, installed
from testbed.driver.kinds import start
from testbed.driver.nodes import cordoned_nodes
from testbed.driver.orders import GROUP, session_of
from testbed.driver.restarts import hang, incidents, policy

pytestmark = pytest.mark.timeout(600, func_only=True)
NODE = "node2"
LOST = ReportedDeviceFault(
    "0000:17:00.0", "xid_79", "fell off the bus", fatal=True, unfit=True, age_s=0.0
)


def cordon(release: Release, folder: Path) -> None:
    """Have the controller cordon a node, as its agent asks by a report of a lost device."""
    agents = (
        "--selector=app.kubernetes.io/component=agent",
        f"--field-selector=spec.nodeName={NODE}",
    )
    (pod,) = release.cluster.get("pods", f"--namespace={NAMESPACE}", *agents)
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}")
    agent = session_of(release, "kcover-ebpf-agent", folder, *bound)

    def is_cordoned() -> bool:
        report = FaultReport(
            node=NODE, time_s=time.time(), sequence=int(time.time()), agent="test", devices=(LOST,)
        )
        body = fault_report.object_of(report, NAMESPACE, NODE)
        agent.apply(f"{GROUP}/{NAMESPACE}/faultreports/{NODE}", body, "kcover-agent")
        return NODE in cordoned_nodes(release.cluster)

    until(is_cordoned, "a lost device cordons its node")


def suspend(namespace: Namespace) -> None:
    """Have the controller suspend a job that hangs; a finalizer keeps its pods, and the restart waits for them."""
    policy(namespace, ways=["Replace"])
    start(namespace, JOB)
    victim = Victim(namespace)
    victim.wait_until_learned()
    keep(namespace, [FINALIZER_OF_OTHERS])
    hang(victim.pods()[-1])
    namespace.wait("job/demo", "jsonpath={.spec.suspend}=true")


def keep(namespace: Namespace, finalizers: list[str] | None) -> None:
    """Set the finalizers of all pods."""
    patch = json.dumps({"metadata": {"finalizers": finalizers}})
    for name in namespace.ctl("get", "pods", "--output=name").split():
        namespace.cluster.run(
            "patch", name, f"--namespace={namespace.name}", "--type=merge", f"--patch={patch}"
        )


def test_an_uninstalled_release_leaves_no_node_cordoned_and_no_job_suspended(
    cluster: Cluster, namespace: Namespace, image: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        release = stack.enter_context(installed(cluster, image))
        release.wait_until_ready()
        cordon(release, tmp_path)
        suspend(namespace)
        (incident,) = incidents(namespace)
        assert FINALIZER in incident["metadata"]["finalizers"]
        began_s = time.monotonic()
        stack.close()
        print(f"helm uninstall took {time.monotonic() - began_s:.1f} s")
    try:
        (node,) = cluster.get("nodes", NODE)
        assert not node["spec"].get("unschedulable")
        assert TAINT not in str(node["spec"].get("taints"))
        assert CONDITION not in {condition["type"] for condition in node["status"]["conditions"]}
        (demo,) = namespace.get("jobs", "demo")
        assert demo["spec"]["suspend"] is False
        (incident,) = incidents(namespace)
        assert "finalizers" not in incident["metadata"]
        assert incident["status"]["phase"] == "Failed"
    finally:
        namespace.ctl("delete", "jobs", "--all", "--cascade=orphan")
        keep(namespace, None)
