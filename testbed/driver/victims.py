"""The ranks of a job as processes of this machine, which the nodes of a test bed share, and what is done to them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from testbed.driver.cluster import JOBS, Namespace, until

JOB = "batch.kubernetes.io/job-name=demo"
"""The pods of the example Job."""


FAULTS = {
    "stop": ("HUNG", "stopped"),
    "kill": ("CRASHED", "killed"),
    "cut": ("LOST_LINK", "link"),
}
"""What `hurt` does: verdict and cause. The base layer sees it: what threads wait for, exits, sockets."""

_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def observed(namespace: Namespace, *, numbered: bool = False) -> None:
    """Start the example Job, not armed, so that nothing ends it; `numbered`: its ranks know their number."""
    text = (
        (JOBS / "job.yaml").read_text().replace("kcover.io/cascading-recovery", "example.org/team")
    )
    if numbered:
        rank = f'{{name: RANK, valueFrom: {{fieldRef: {{fieldPath: "{_INDEX}"}}}}}}'
        text = text.replace("env: [", f"env: [{rank}, ")
    namespace.apply(text)
    namespace.wait_for_steps(JOB, 2, 3, 300)


def ranks(namespace: Namespace, selector: str = JOB, program: str = "train.py") -> dict[str, int]:
    """Name of each pod to the pid of its rank; pods without one are left out."""
    pods = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in namespace.pods(selector)}
    found: dict[str, int] = {}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            cgroup = (folder / "cgroup").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if program.encode() in command:
            for uid, name in pods.items():
                if uid in cgroup:
                    found.setdefault(name, int(folder.name))
    return found


def has_trained(namespace: Namespace) -> bool:
    """Whether every node that reports on the job saw it training: before, silence says nothing."""
    reports = [item["spec"] for item in namespace.items("faultreports")]
    return bool(reports) and all(report.get("trained") for report in reports)


def hurt(namespace: Namespace, fault: str) -> str:
    """Do a fault to one rank; the name of its pod."""
    pod, pid = next(iter(ranks(namespace).items()))
    if fault == "cut":
        for chain in ("INPUT", "OUTPUT"):
            rule = ["iptables", "-I", chain, "-p", "tcp", "-j", "DROP"]
            subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *rule], check=True)
    else:
        os.kill(pid, {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[fault])
    return pod


def incident_verdict(namespace: Namespace) -> dict[str, Any] | None:
    """The status of the job's incident, once it says what is wrong."""
    for incident in namespace.items("incidents"):
        status: dict[str, Any] = incident.get("status", {})
        if status.get("verdict") not in (None, "WORKING", "UNKNOWN"):
            return status
    return None


def assert_detected(namespace: Namespace, fault: str) -> None:
    """Do a fault to one rank; its incident has the right verdict, cause and pod."""
    began_s = time.monotonic()
    pod = hurt(namespace, fault)
    said = until(lambda: incident_verdict(namespace), "a verdict", 180)
    print(f"{fault}: {said['verdict']} {said['cause']} after {time.monotonic() - began_s:.1f} s")
    assert (said["verdict"], said["cause"]) == FAULTS[fault]
    if fault != "cut":  # a link has two ends
        assert said["culprit"]["pod"] == pod
