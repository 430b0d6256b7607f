"""A job whose controller and kubelet the test plays, on real processes in real control groups."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.driver.control_plane import User
from tests.kernel.pods import FakePod

TEAM, NODE, JOB = "ml", "n1", "train"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
JOBS = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
INCIDENTS = f"/apis/kcover.io/v1alpha1/namespaces/{TEAM}/incidents"
REPORTS = f"/apis/kcover.io/v1alpha1/namespaces/{TEAM}/faultreports"
JOB_LABEL = "batch.kubernetes.io/job-name"
ARMED = {"kcover.io/cascading-recovery": "true"}
_RANK = """
import os, sys, time
if "RANK" not in os.environ:
    os.environ |= {"RANK": "%d", "WORLD_SIZE": "2"}
    os.execv(sys.executable, sys.orig_argv)
print("up", flush=True)
while True: time.sleep(0.01)
"""


def made(answer: Any) -> dict[str, Any]:
    assert answer.code in (200, 201), answer.message
    return dict(answer.body)


def until(reached: Callable[[], Any], what: str, timeout_s: float = 90.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := reached()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.2)
    return found


@dataclass
class PlayedJob:
    """A job of two pods on one node, and who plays its controller and its kubelet."""

    root: User
    groups: Path
    pods: dict[str, FakePod] = field(default_factory=dict)
    leaders: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Of all pods, also of those that are gone."""

    def job(self) -> dict[str, Any]:
        return made(self.root.ask("GET", f"{JOBS}/{JOB}"))

    def make_job(self) -> None:
        container = {"name": "main", "image": "x"}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        spec = {"managedBy": "kcover.io/test", "template": template}
        body = {"metadata": {"name": JOB, "labels": ARMED}, "spec": spec}
        made(self.root.ask("POST", JOBS, body))

    def make_pods(self, start: str) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": JOB, "controller": True}
        owner["uid"] = self.job()["metadata"]["uid"]
        for index in range(2):
            labels = {JOB_LABEL: JOB, "batch.kubernetes.io/job-completion-index": str(index)}
            metadata = {"name": f"{JOB}-{index}-{start}", "labels": labels}
            spec = {
                "nodeName": NODE,
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "x"}],
            }
            body = {"metadata": metadata | {"ownerReferences": [owner]}, "spec": spec}
            uid = made(self.root.ask("POST", PODS, body))["metadata"]["uid"]
            pod = FakePod(self.groups, str(metadata["name"]), uid=uid)
            pod.add("main", program=_RANK % index)
            self.pods[pod.name] = pod
            self.leaders += pod.leaders
            status = pod.api()["status"]
            assert isinstance(status, dict)
            status["conditions"] = [{"type": "Ready", "status": "True"}]
            for container_status in status["containerStatuses"]:
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                container_status |= {"ready": True, "restartCount": 0, "image": "x", "imageID": "x"}
                container_status["state"] = {"running": {"startedAt": now}}
            made(self.root.merge(f"{PODS}/{pod.name}/status", {"status": status}))

    def reported(self) -> set[str]:
        items = made(self.root.ask("GET", REPORTS))["items"]
        return {pod["name"] for item in items for pod in item["spec"].get("pods", ())}

    def incident(self, job: str = JOB) -> dict[str, Any]:
        items = made(self.root.ask("GET", INCIDENTS))["items"]
        mine = [item for item in items if item["spec"]["job"]["name"] == job]
        return mine[0] if mine else {}

    def phase(self, job: str = JOB) -> str:
        return str(self.incident(job).get("status", {}).get("phase", ""))

    def delete_pods(self) -> None:
        """As the job's controller does when the job is suspended."""
        for name in self.pods:
            made(self.root.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 30}))

    def bury_pods(self) -> None:
        """As the kubelet does when the processes of pods that are being deleted are gone."""
        pods = self.pods.values()
        until(lambda: not any(pod.pids() for pod in pods), "the agent ends all processes")
        for pod in pods:
            self.root.ask("DELETE", f"{PODS}/{pod.name}", {"gracePeriodSeconds": 0})
        self.pods.clear()


def replaced(played: PlayedJob) -> None:
    """What the job's controller and the kubelet do while the job is being replaced, until it is over."""
    until(lambda: played.job()["spec"].get("suspend") is True, "the controller suspends the job")
    played.delete_pods()
    played.bury_pods()
    until(lambda: not played.job()["spec"].get("suspend"), "the controller lets the job continue")
    played.make_pods("b")
    until(lambda: played.phase() == "Recovering", "all pods run again")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ends = ("SuccessCriteriaMet", "Complete")
    conditions = [
        {"type": end, "status": "True", "lastTransitionTime": now, "reason": "CompletionsReached"}
        for end in ends
    ]
    status = {"conditions": conditions, "startTime": now, "completionTime": now}
    made(played.root.merge(f"{JOBS}/{JOB}/status", {"status": status}))
    until(lambda: played.phase() == "Recovered", "the job is over")
