"""What agents say in their Leases alone, under the installed chart: docs/decisions/0011-silence-means-unchanged.md."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kcover_ebpf.api.fault_report import report_of, written_s
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from testbed.driver.cluster import Cluster, Namespace, until
from testbed.driver.installed import NAMESPACE, Release, installed
from testbed.driver.orders import ByHand, leases_of, reports_of, session_of, without_controllers
from testbed.driver.restarts import hang, wait_for_phase
from testbed.driver.victims import JOB, observed

pytestmark = pytest.mark.timeout(900, func_only=True)
LABEL, _, NAME = JOB.partition("=")


def watched(namespace: Namespace) -> set[str]:
    """Start a job that trains on all nodes, and wait until their agents report it; the nodes."""
    observed(namespace)
    nodes = {pod["spec"]["nodeName"] for pod in namespace.pods(JOB)}
    until(
        lambda: {entry["node"] for entry in reports_of(namespace) if entry.get("trained")} == nodes,
        "the agents report that it trains",
    )
    return nodes


def by_hand(release: Release, namespace: Namespace, folder: Path) -> ByHand:
    """Orders to its agents, in the name of the controller."""
    controller = session_of(release, "kcover-ebpf-controller", folder)
    return ByHand(controller, namespace, NAME, {LABEL: NAME})


def test_an_answer_to_an_order_comes_in_the_lease(
    namespace: Namespace, release: Release, tmp_path: Path
) -> None:
    """The order changes nothing, so that nothing is new in a report."""
    nodes = watched(namespace)
    with without_controllers(release, namespace):
        order = by_hand(release, namespace, tmp_path).order("leased", "Resume")
        leases = leases_of(namespace.cluster, NAMESPACE)
        assert {
            node: {ack.order: ack.result.value for ack in leases[node].acks}.get(order)
            for node in nodes
        } == dict.fromkeys(nodes, "Done")


def test_a_report_of_a_calm_node_holds_by_the_lease_alone(
    namespace: Namespace, release: Release
) -> None:
    nodes = watched(namespace)
    cluster = release.cluster

    def alone() -> dict[str, ReceivedReport]:
        """The reports that are too old to count by themselves."""
        found = {}
        for raw in namespace.items("faultreports"):
            report, at_s = report_of(raw), written_s(raw["metadata"])
            assert at_s is not None
            if (seen := ReceivedReport(report, at_s)).is_stale(time.time()):
                found[report.node] = seen
        return found

    def all_old() -> dict[str, ReceivedReport] | None:
        return found if (found := alone()).keys() == nodes else None

    old = until(all_old, "nothing was new for as long as a report counts", 240)
    for node, lease in leases_of(cluster, NAMESPACE).items():
        if node in nodes:
            assert not confirmed(old[node], lease, lease.renewed_s).is_stale(time.time())
    victim = namespace.pods(JOB)[-1]
    hang(victim)
    incident = wait_for_phase(namespace, ("Observed",))
    assert incident["status"]["verdict"] == "HUNG"
    assert incident["status"]["culprit"]["pod"] == victim["metadata"]["name"]


def test_where_leases_are_refused_reports_say_everything(
    namespace: Namespace, cluster: Cluster, image: str, tmp_path: Path
) -> None:
    """Without the admission policy that holds agents to their own Leases they get no permission for any."""
    with installed(cluster, image, "admission.validating=false") as release:
        release.wait_until_ready()
        nodes = watched(namespace)
        before = {entry["node"]: entry["sequence"] for entry in reports_of(namespace)}
        with without_controllers(release, namespace):
            order = by_hand(release, namespace, tmp_path).order("plain", "Resume")
        assert leases_of(cluster, NAMESPACE) == {}
        reports = {entry["node"]: entry for entry in reports_of(namespace)}
        assert reports.keys() == nodes
        for report in reports.values():
            assert order in {ack["order"] for ack in report["acks"]}
        until(
            lambda: all(
                entry["sequence"] > before[entry["node"]] + 1 for entry in reports_of(namespace)
            ),
            "reports are repeated though nothing is new",
        )
