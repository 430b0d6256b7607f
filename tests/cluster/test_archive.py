"""The evidence of a hung job on two nodes: kept by real agents, fetched and merged by the plug-in, shown as a page."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.agent.containers import Containers, processes
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.archive.incident_archive import Archive, unpacked
from kcover_ebpf.archive.node_part import EvidenceTrigger
from kcover_ebpf.output.archives import read_files
from testbed.driver.agents import Agent
from testbed.driver.cluster import JOBS, Namespace, until
from testbed.driver.restarts import incidents, policy, running, wait_for_phase
from tests.cluster.stub_agents import COMMAND, start_pods

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]

SELECTOR = "training.kubeflow.org/job-name=demo"


def plugin(namespace: Namespace, *arguments: str) -> str:
    command = [COMMAND.replace("kcover-ebpf", "kubectl-kcover"), *arguments, "-n", namespace.name]
    command += ["--agent-namespace", namespace.name]
    command += ["--kubeconfig", str(namespace.cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bundles(namespace: Namespace, name: str) -> list[str]:
    (found,) = [entry for entry in incidents(namespace) if entry["metadata"]["name"] == name]
    return list(found["status"].get("bundles", ()))


def fetched(
    namespace: Namespace, incident: dict[str, Any], folder: Path, nodes: set[str]
) -> Archive:
    """The archive, once all nodes have reported theirs."""
    name = incident["metadata"]["name"]
    until(
        lambda: {entry.partition(":")[0] for entry in bundles(namespace, name)} == nodes,
        "both nodes report their bundles",
    )
    begin_s = time.monotonic()
    said = plugin(namespace, "bundle", name, "--to", str(folder))
    print(f"fetched in {time.monotonic() - begin_s:.1f} s: {said}")
    assert "missing:" not in said
    page = folder.with_suffix(".html")
    plugin(namespace, "report", name, "--to", str(page))
    assert page.read_text().count("</html>") == 1
    return unpacked(read_files(folder), str(folder))


def worker(namespace: Namespace) -> tuple[Pod, int]:
    """The pod of a worker, and the pid of its rank."""
    pods = [pod_of(pod) for pod in namespace.pods(SELECTOR)]
    pod = next(other_pod for other_pod in pods if "worker" in other_pod.name)
    return pod, min(processes(Containers().of_work(pod)))


def check(archive: Archive, pod: Pod, trigger: EvidenceTrigger, nodes: set[str]) -> None:
    assert {part.node for part in archive.parts} == nodes
    assert archive.missing == ()
    assert archive.incident is not None
    assert archive.incident.status is not None
    assert archive.incident.status.culprit is not None
    assert archive.incident.status.culprit.pod == pod.name
    ranks = {rank.rank for part in archive.parts if part.report for rank in part.report.ranks}
    assert ranks >= {0, 1, 2, 3}
    assert all(part.trigger is trigger for part in archive.parts)
    with_stacks = {stack.rank for part in archive.parts for stack in part.stacks}
    if trigger is EvidenceTrigger.SNAPSHOT:
        assert with_stacks >= {0, 1, 2, 3}
        assert any(stack.python for part in archive.parts for stack in part.stacks)


def test_a_hung_job_on_two_nodes_has_one_archive_and_one_page(
    namespace: Namespace, agents: dict[str, Agent], tmp_path: Path
) -> None:
    """Once where the policy stops at a snapshot, and once where the gang is replaced."""
    start_pods(namespace)
    namespace.apply((JOBS / "pytorchjob.yaml").read_text())
    namespace.wait_for_steps(SELECTOR, 4, 5, 300)
    policy(namespace, action="Snapshot")
    kept = Path(os.environ.get("KCOVER_KEPT_ARCHIVES", tmp_path))
    with running(namespace, tmp_path / "controller.log"):
        pod, pid = worker(namespace)
        os.kill(pid, signal.SIGSTOP)
        observed = wait_for_phase(namespace, ("Observed",))
        archive = fetched(namespace, observed, kept / "snapshot", set(agents))
        check(archive, pod, EvidenceTrigger.SNAPSHOT, set(agents))
        policy(namespace, ways=["Replace"])
        recovered = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        assert recovered["status"]["phase"] == "Recovered"
        name = recovered["metadata"]["name"]
        until(lambda: len(bundles(namespace, name)) >= 4, "both nodes report a second bundle")
        archive = fetched(namespace, recovered, kept / "replaced", set(agents))
        check(archive, pod, EvidenceTrigger.KILL_TERMINATING, set(agents))
        assert archive.incident is not None
        assert archive.incident.status is not None
        phases = [moment.phase for moment in archive.incident.status.timeline]
        assert phases[-1] == "Recovered"
