"""Agent and controller, each with its own account and nothing else, take a job through a whole restart.

The API server's audit log says which permissions they used. A permission that was not used needs a reason below, and
what was refused is a fault: of the chart, or of a program that asks for what it does not need. Agent and
controller are the real programs; the job controller and the kubelet, which are not in question here, are
played by the test, on real processes in real control groups.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.api import agent_lease
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.incident import NOTIFIED
from testbed.driver.control_plane import ControlPlane, User
from tests.chart.permissions import (
    AGENT,
    AT_HOME,
    CONTROLLER,
    OF_DEVICES,
    OF_NODES,
    OF_OTHER_KINDS,
    Permission,
)
from tests.chart.played_cluster import HOME, installed, plane, played, start
from tests.chart.played_job import (
    JOB,
    JOB_LABEL,
    JOBS,
    NODE,
    PODS,
    TEAM,
    PlayedJob,
    made,
    replaced,
    until,
)
from tests.chart.release import FULLNAME, Installed, make_pod
from tests.kernel.helpers import state_of
from tests.unit.support.fake_api_server import Answer, serving

__all__ = ["installed", "plane", "played"]
pytestmark = [
    pytest.mark.needs("root", "bpf", "cgroup2"),
    pytest.mark.timeout(600, func_only=True),
]

SOMETIMES = {Permission("patch", "", "events"), Permission("patch", "", "nodes/status")}
"""An Event is changed where the restart took longer than the Event waited for the last text; the node's condition is
written where the inspection of this host finds something, as on a machine that is overloaded."""

# ---- permissions that this restart does not use, and why they are there

OWNERS = (
    "asked by an admission plug-in that is on in OpenShift and here: may it say whose the Lease is?"
)

NOT_USED: dict[str, dict[Permission, str]] = {
    "agent": {Permission("delete", "coordination.k8s.io", "leases"): OWNERS},
    "controller": {
        Permission("delete", "coordination.k8s.io", "leases"): OWNERS,
        **dict.fromkeys(OF_OTHER_KINDS, "another kind of job (tests/cluster/test_kinds.py)"),
        **dict.fromkeys(
            OF_NODES - SOMETIMES,
            "cordon and taint of a node with a device fault (tests/unit/recovery/nodes/test_node_plan.py)",
        ),
        **dict.fromkeys(
            OF_DEVICES - {Permission("list", "resource.k8s.io", "devicetaintrules")},
            "a device fault where devices come by DRA (tests/unit/recovery/nodes/test_node_plan.py)",
        ),
        Permission(
            "delete", "kcover.io", "nodehealths"
        ): "of a node that is gone (tests/unit/recovery/nodes/test_node_lift.py)",
        Permission("create", "", "pods/eviction"): "a pod moves (tests/cluster/test_hybrid.py)",
        Permission("list", "discovery.k8s.io", "endpointslices"): "the same",
        Permission(
            "patch", "kcover.io", "jobkinds/status"
        ): "where an operator describes a kind (tests/cluster/test_custom_kinds.py)",
        Permission(
            "deletecollection", "", "pods"
        ): "gangs of more than 20 pods (bench/clusterbench)",
        Permission(
            "delete", "kcover.io", "incidents"
        ): "after a week (tests/unit/controller/test_incident_gc.py)",
    },
}


def lease(root: User) -> AgentLease:
    """What the agent says of itself."""
    path = f"{agent_lease.collection(HOME)}/{agent_lease.name_of(NODE)}"
    found = agent_lease.lease_of(root.ask("GET", path).body)
    assert found is not None, "the agent has no Lease"
    return found


def confirmed(root: User) -> bool:
    listed = root.ask("GET", f"/apis/kcover.io/v1alpha1/namespaces/{TEAM}/faultreports").body
    sequences = {item["spec"]["sequence"] for item in listed["items"]}
    return bool(sequences) and sequences <= lease(root).current


def ask_for_recovery(root: User) -> None:
    """Kcover's own way, about a pod of a job that is not armed: it is watched, reported, and left alone."""
    labels = {JOB_LABEL: "other"}
    owner: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", "name": "other"}
    owner["controller"] = True
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}}
    spec = {"managedBy": "kcover.io/test", "template": template}
    body = {"metadata": {"name": "other"}, "spec": spec}
    owner["uid"] = made(root.ask("POST", JOBS, body))["metadata"]["uid"]
    metadata = {"name": "other-0", "labels": labels, "ownerReferences": [owner]}
    pod = made(root.ask("POST", PODS, {"metadata": metadata, "spec": template["spec"]}))
    about = {"apiVersion": "v1", "kind": "Pod", "name": "other-0", "namespace": TEAM}
    event = {
        "metadata": {"name": "asks", "annotations": {"kcover.io/need-recovery": "true"}},
        "involvedObject": about | {"uid": pod["metadata"]["uid"]},
        "type": "Warning",
        "reason": "Broken",
        "source": {"component": "another"},
        "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    made(root.ask("POST", f"/api/v1/namespaces/{TEAM}/events", event))


def restart(played: PlayedJob) -> None:
    """A rank dies, and the job is replaced whole."""
    played.make_job()
    played.make_pods("a")
    until(lambda: len(played.reported()) == 2, "the agent reports both pods")
    time.sleep(3.0)
    (rank,) = next(iter(played.pods.values())).pids()
    os.kill(rank, signal.SIGKILL)
    replaced(played)


def used(plane: ControlPlane, component: str) -> set[Permission]:
    account = f"system:serviceaccount:{HOME}:{FULLNAME}-{component}"
    found = set()
    for entry in plane.audited():
        if entry["user"]["username"] != account:
            continue
        about = entry.get("objectRef")
        assert about is not None, f"{component} asked for {entry['requestURI']}"
        sub = f"/{about['subresource']}" if about.get("subresource") else ""
        found.add(Permission(entry["verb"], about.get("apiGroup", ""), about["resource"] + sub))
    return found


def test_a_whole_restart_uses_every_permission_or_says_why_not(
    installed: Installed, played: PlayedJob, tmp_path: Path
) -> None:
    plane = installed.plane
    with ExitStack() as stack:
        logs = [
            start(stack, installed, tmp_path, "controller", f"--lease={FULLNAME}-controller"),
            start(
                stack,
                installed,
                tmp_path,
                "agent",
                f"--node={NODE}",
                f"--state-dir={tmp_path / 's'}",
                "--inspect-every=5s",
            ),
        ]
        try:
            restart(played)
            renewals = Permission("patch", "coordination.k8s.io", "leases")
            until(lambda: renewals in used(plane, "agent"), "the agent renews its Lease")
            until(lambda: confirmed(played.root), "its Lease confirms the report of the job")
            ask_for_recovery(played.root)
            until(
                lambda: played.phase("other") == "Observed",
                "the other job is reported, and left alone",
            )
            until(
                lambda: Permission("create", "", "events") in used(plane, "controller"), "an Event"
            )
            played.root.ask("DELETE", f"{JOBS}/{JOB}")
            for pod in played.pods.values():
                played.root.ask("DELETE", f"{PODS}/{pod.name}", {"gracePeriodSeconds": 0})
            until(lambda: not played.reported(), "the agent takes its report away")
            until(
                lambda: Permission("patch", "kcover.io", "nodehealths") in used(plane, "agent"),
                "the agent inspects its node",
            )
        except AssertionError:
            print(*(log.read_text()[-3000:] for log in logs), sep="\n---\n")
            print(played.incident())
            raise
    refused = [
        (entry["user"]["username"], entry["verb"], entry["requestURI"])
        for entry in plane.audited()
        if entry["responseStatus"]["code"] in (401, 403)
    ]
    assert refused == []
    for component, granted in (
        ("agent", AGENT | AT_HOME["agent"]),
        ("controller", CONTROLLER | AT_HOME["controller"]),
    ):
        took, excused = used(plane, component), set(NOT_USED[component])
        assert took <= granted
        assert excused <= granted, "a reason for a permission that was not granted"
        assert granted - took - excused - SOMETIMES == set(), (
            f"{component} has permissions that it did not use"
        )
        assert took & excused == set(), "used after all: the reason is not needed"


def test_a_restart_on_demand_is_carried_out_and_its_owner_is_notified(
    installed: Installed, played: PlayedJob, tmp_path: Path
) -> None:
    policy = {"apiVersion": "kcover.io/v1alpha1", "kind": "FaultPolicy", "metadata": {"name": "p"}}
    policy["spec"] = {"notify": [{"target": "hook"}]}
    made(
        played.root.ask("POST", f"/apis/kcover.io/v1alpha1/namespaces/{TEAM}/faultpolicies", policy)
    )
    file = tmp_path / "notifications.json"
    with ExitStack() as stack:
        hook = stack.enter_context(serving(lambda _: Answer()))
        target = {"name": "hook", "form": "CloudEvents", "url": hook.url, "namespaces": [TEAM]}
        file.write_text(json.dumps({"targets": [target]}))
        options = [f"--lease={FULLNAME}-controller", f"--notifications={file}"]
        start(stack, installed, tmp_path, "controller", *options)
        options = [f"--node={NODE}", f"--state-dir={tmp_path / 's'}"]
        start(stack, installed, tmp_path, "agent", *options)
        played.make_job()
        owner = {"metadata": {"annotations": {"kcover.io/owner": "ada@example.com"}}}
        made(played.root.merge(f"{JOBS}/{JOB}", owner))
        played.make_pods("a")
        until(lambda: len(played.reported()) == 2, "the agent reports both pods")
        plugin = str(Path(sys.executable).with_name("kubectl-kcover"))
        asked = [plugin, "restart", JOB, f"--namespace={TEAM}", "--wait", "--timeout=2m"]
        asked += [f"--kubeconfig={installed.plane.kubeconfig}"]
        command = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
        stack.callback(command.kill)
        replaced(played)
        said = command.communicate(timeout=60)[0]
        until(lambda: hook.requests, "the message")
        until(lambda: NOTIFIED in notes(played), "what is noted on the incident")
    print(said)
    assert command.returncode == 0, said
    phases = [line.split()[2] for line in said.splitlines() if line.lstrip().startswith("+")]
    assert phases[:3] == ["Open", "Decided", "ShuttingDown"]
    assert phases[-1] == "Recovered"
    status = played.incident()["status"]
    assert (status["cause"], status["owner"]) == ("requested", "ada@example.com")
    assert notes(played)[NOTIFIED] == "hook:Recovered"
    (request,) = hook.requests
    assert request.body["type"] == "io.kcover.incident.recovered"
    assert request.body["data"]["owner"] == "ada@example.com"


def test_the_controllers_account_suffices_to_pass_on_what_a_user_says_of_a_node(
    installed: Installed, played: PlayedJob, tmp_path: Path
) -> None:
    plugin = str(Path(sys.executable).with_name("kubectl-kcover"))
    words = [plugin, "bad-node", NODE, "--why=slow", f"--namespace={TEAM}"]
    played.make_job()
    played.make_pods("a")
    with ExitStack() as stack:
        start(stack, installed, tmp_path, "controller", f"--lease={FULLNAME}-controller")
        subprocess.run([*words, f"--kubeconfig={installed.plane.kubeconfig}"], check=True)
        until(lambda: of_bad_nodes(played), "the Event about the node")
    (text,) = of_bad_nodes(played)
    assert text.startswith(f"pod {TEAM}/{JOB}-")
    assert text.endswith(": slow")


def of_bad_nodes(played: PlayedJob) -> list[str]:
    """What Events about the node say that users said of it."""
    found = played.root.ask("GET", "/api/v1/events?fieldSelector=reason%3DKcoverBadNode").body
    return [event["message"] for event in found["items"] if event["involvedObject"]["name"] == NODE]


def notes(played: PlayedJob) -> dict[str, str]:
    """The annotations of the incident."""
    return dict(played.incident()["metadata"].get("annotations") or {})


def test_an_agents_account_suffices_for_a_drill_of_a_pod_that_consents(
    installed: Installed, played: PlayedJob, tmp_path: Path
) -> None:
    plane, root = installed.plane, played.root
    played.make_job()
    played.make_pods("a")
    name = f"{JOB}-1-a"
    (rank,) = played.pods[name].pids()
    pod = make_pod(plane, HOME, NODE, f"{FULLNAME}-agent")
    config = plane.kubeconfig_of("drill", plane.token(HOME, f"{FULLNAME}-agent", pod))
    program = str(Path(sys.executable).with_name("kcover-ebpf"))
    asked = [program, "drill", name, f"--namespace={TEAM}", "--fault=stop", "--for=3s"]
    asked += [f"--node={NODE}", f"--state-dir={tmp_path}", f"--kubeconfig={config}"]
    refused = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "needs the label kcover.io/drill=true" in refused.stderr
    made(root.merge(f"{PODS}/{name}", {"metadata": {"labels": {"kcover.io/drill": "true"}}}))
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as drill:
        assert drill.stdout is not None
        injected = json.loads(drill.stdout.readline())
        until(lambda: state_of(rank) == "T", "the rank is stopped")
        over = json.loads(drill.stdout.readline())
    assert (injected["pid"], injected["rank"], injected["fault"]) == (rank, 1, "stop")
    assert over["end"] == "resumed"
    assert over["timeS"] - injected["timeS"] >= 3.0
    assert drill.returncode == 0
    assert state_of(rank) != "T"
    elsewhere = [*asked, "--node=n2"]
    assert subprocess.run(elsewhere, capture_output=True, check=False).returncode == 2
