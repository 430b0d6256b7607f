"""What the hook of `helm uninstall` undoes, with the permissions that the chart gives, at a real API server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.api.incident import FINALIZER
from kcover_ebpf.controller.withdrawal import Withdrawal
from kcover_ebpf.kube.client import ApiClient, connect
from kcover_ebpf.kube.leader_election import LeaderElector
from kcover_ebpf.recovery.nodes.node_plan import (
    BY_OTHERS,
    BY_US,
    CONDITION,
    CORDONED,
    CORDONED_BY,
    INSPECTED,
    TAINT,
)
from kcover_ebpf.recovery.restart.context import SUSPENDED_BY
from testbed.driver.cluster import until
from testbed.driver.control_plane import User
from tests.chart.release import CONTROLLER as ACCOUNT
from tests.chart.release import Installed, kubeconfig, make_pod

INCIDENTS = "/apis/kcover.io/v1alpha1/namespaces/ml/incidents"
JOBS = "/apis/batch/v1/namespaces/ml/jobs"
THEIRS = {"key": "example.org/maintenance", "effect": "NoSchedule"}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


@pytest.fixture
def session(installed: Installed, tmp_path: Path) -> ApiClient:
    """As the pod of the hook has it: the controller's account."""
    pod = make_pod(installed.plane, installed.namespace, "n1", ACCOUNT)["metadata"]
    token = installed.plane.token(installed.namespace, ACCOUNT, {"metadata": pod})
    return connect(str(kubeconfig(installed, tmp_path, token)))


def elector(installed: Installed, session: ApiClient, identity: str) -> LeaderElector:
    return LeaderElector(session, installed.namespace, ACCOUNT, identity, time.monotonic)


def cordon(root: User, node: str, by: str) -> None:
    """As the controller does it, with what a person did before."""
    notes = {CORDONED: "2026-11-28T10:00:00Z a device", CORDONED_BY: by, "example.org/kept": "yes"}
    taints = [THEIRS, {"key": TAINT, "value": "fatal", "effect": "NoSchedule"}]
    body = {"metadata": {"annotations": notes}, "spec": {"unschedulable": True, "taints": taints}}
    assert root.ask("PATCH", f"/api/v1/nodes/{node}", body, MERGE).code == 200
    conditions = [{"type": kind, "status": "True"} for kind in (CONDITION, INSPECTED, "Theirs")]
    status = {"status": {"conditions": conditions}}
    assert root.ask("PATCH", f"/api/v1/nodes/{node}/status", status, STRATEGIC).code == 200


def suspend(root: User, session: ApiClient, name: str) -> None:
    """A job whose restart is under way, and whose incident a tenant has deleted."""
    container = {"name": "main", "image": "none"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {SUSPENDED_BY: f"ml/{name}"}},
        "spec": {"suspend": True, "template": template},
    }
    made = root.ask("POST", JOBS, job)
    assert made.code == 201, made.message
    ref = {
        "kind": "Job",
        "name": name,
        "uid": made.body["metadata"]["uid"],
        "apiVersion": "batch/v1",
    }
    incident: dict[str, Any] = {
        "apiVersion": "kcover.io/v1alpha1",
        "kind": "Incident",
        "metadata": {"name": name, "finalizers": [FINALIZER, "example.org/never"]},
        "spec": {"job": ref, "selector": {"batch.kubernetes.io/job-name": name}},
    }
    created = session.create(INCIDENTS, incident)
    action = {
        "way": "Replace",
        "step": "Terminate",
        "attempt": 1,
        "startedAt": "2026-11-28T10:00:00Z",
    }
    created["status"] = {"phase": "ShuttingDown", "action": action}
    session.replace(f"{INCIDENTS}/{name}/status", created)
    assert root.ask("DELETE", f"{INCIDENTS}/{name}").code == 200


@pytest.mark.timeout(180)
def test_what_the_controller_did_is_undone_and_what_others_did_stays(
    installed: Installed, session: ApiClient
) -> None:
    root = installed.plane.admin()
    cordon(root, "n1", BY_US)
    cordon(root, "n2", BY_OTHERS)
    suspend(root, session, "resumed")
    running = elector(installed, session, "a-controller")
    running.start(lambda _: None, time.time)
    until(lambda: running.leads, "a controller leads", 60)

    withdrawing = elector(installed, session, "the-hook")
    withdrawing.seizes = True
    assert Withdrawal(session, withdrawing).run() == []

    assert not running.leads
    for name, is_cordoned in (("n1", None), ("n2", True)):
        node = root.ask("GET", f"/api/v1/nodes/{name}").body
        assert node["spec"].get("unschedulable") is is_cordoned
        assert [
            taint["key"]
            for taint in node["spec"]["taints"]
            if "node.kubernetes" not in taint["key"]
        ] == [THEIRS["key"]]
        assert [kind for kind in node["metadata"]["annotations"] if "kcover" in kind] == []
        assert node["metadata"]["annotations"]["example.org/kept"] == "yes"
        kinds = {condition["type"] for condition in node["status"]["conditions"]}
        assert "Theirs" in kinds
        assert not kinds & {CONDITION, INSPECTED}
    job = root.ask("GET", f"{JOBS}/resumed").body
    assert job["spec"]["suspend"] is False
    assert SUSPENDED_BY not in (job["metadata"].get("annotations") or {})
    incident = root.ask("GET", f"{INCIDENTS}/resumed").body
    assert incident["metadata"]["finalizers"] == ["example.org/never"]
    assert (incident["status"]["phase"], "uninstalled" in incident["status"]["message"]) == (
        "Failed",
        True,
    )
    # nothing is left to be done, and that is no error
    assert Withdrawal(session, withdrawing).undo() == []
    running.stop()
    withdrawing.stop()


@pytest.mark.timeout(120)
def test_without_the_lease_nothing_is_undone_and_what_remains_is_named(
    installed: Installed, session: ApiClient
) -> None:
    root = installed.plane.admin()
    cordon(root, "n1", BY_US)
    left = Withdrawal(session, elector(installed, session, "the-hook")).undo()
    assert any("node n1: cordon and taint are lifted" in line for line in left), left
    node = root.ask("GET", "/api/v1/nodes/n1").body
    assert node["spec"]["unschedulable"] is True
