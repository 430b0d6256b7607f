"""The ranks of a job as processes of this machine, which the nodes of a test bed share, and what is done to them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cluster import JOBS, Namespace

JOB = "batch.kubernetes.io/job-name=demo"
"""The pods of the example Job."""


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


def ranks(namespace: Namespace, selector: str = JOB) -> dict[str, int]:
    """Name of each pod to the pid of its rank; pods without one are left out."""
    pods = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in namespace.pods(selector)}
    found: dict[str, int] = {}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            cgroup = (folder / "cgroup").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"train.py" in command:
            for uid, name in pods.items():
                if uid in cgroup:
                    found.setdefault(name, int(folder.name))
    return found


def has_trained(namespace: Namespace) -> bool:
    """Whether every node that reports on the job saw it training: before, silence says nothing."""
    reports = [each["spec"] for each in namespace.items("faultreports")]
    return bool(reports) and all(each.get("trained") for each in reports)
