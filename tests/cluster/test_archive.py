"""The evidence of a hung job on two nodes: kept by real agents, fetched and merged by the plug-in, shown as a page."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kcover_ebpf.agent.containers import Containers, processes
from kcover_ebpf.api import incident as incident_api
from kcover_ebpf.api.pods import Pod, pod_of
from kcover_ebpf.archive.incident_archive import Archive, packed, unpacked
from kcover_ebpf.archive.node_part import ArchivedThread, EvidenceTrigger, NodePart
from kcover_ebpf.output.archives import read_files
from kcover_ebpf.output.bundles import bundle_name, write_bundle
from testbed.driver.agents import Agent
from testbed.driver.cluster import JOBS, ROOT, Namespace, until
from testbed.driver.restarts import incidents, policy, running, wait_for_phase
from testbed.driver.servers import ACCESS_KEY, SECRET_KEY, ObjectStore, object_store
from tests.cluster.stub_agents import COMMAND, start_pods
from tests.unit import incident_archives as build

pytestmark = [pytest.mark.needs("root", "bpf", "go"), pytest.mark.timeout(900, func_only=True)]

PARTS = 64
SELECTOR = "training.kubeflow.org/job-name=demo"


def plugin(
    namespace: Namespace,
    *arguments: str,
    agents_in: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What it printed; `agents_in`: the namespace in which it searches for agents."""
    command = [COMMAND.replace("kcover-ebpf", "kubectl-kcover"), *arguments, "-n", namespace.name]
    command += ["--agent-namespace", agents_in or namespace.name]
    command += ["--kubeconfig", str(namespace.cluster.kubeconfig)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | dict(environment),
    )
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


def check(archive: Archive, pod: Pod, nodes: set[str]) -> None:
    assert {part.node for part in archive.parts} == nodes
    assert archive.missing == ()
    assert archive.incident is not None
    assert archive.incident.status is not None
    assert archive.incident.status.culprit is not None
    assert archive.incident.status.culprit.pod == pod.name
    ranks = {rank.rank for part in archive.parts if part.report for rank in part.report.ranks}
    assert ranks >= {0, 1, 2, 3}
    assert all(part.trigger is EvidenceTrigger.SNAPSHOT for part in archive.parts)
    in_python = {stack.rank for part in archive.parts for stack in part.stacks if stack.python}
    assert in_python >= {0, 1, 2, 3}


@contextmanager
def copied(agents: dict[str, Agent], folder: Path) -> Iterator[ObjectStore]:
    """A real store, and the uploader of each node."""
    credentials = folder / "credentials"
    credentials.mkdir()
    (credentials / "accessKey").write_text(ACCESS_KEY)
    (credentials / "secretKey").write_text(SECRET_KEY)
    with object_store(folder, "incidents") as store, ExitStack() as stack:
        for node, agent in agents.items():
            command = [
                COMMAND,
                "upload",
                "--from",
                str(agent.folder / node / "bundles"),
                "--node",
                node,
            ]
            command += ["--to", "s3://incidents/prod", "--endpoint", store.url]
            command += ["--credentials", str(credentials)]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 15.0)
            stack.callback(process.terminate)
        yield store


def read_back(
    namespace: Namespace, incident: dict[str, Any], store: ObjectStore, folder: Path
) -> Archive:
    """The archive as it is once no agent has its part any more: agents are searched for where there are none."""
    name = incident["metadata"]["name"]
    kept = bundles(namespace, name)
    parts = store.folder / "incidents/prod" / namespace.name / name
    until(lambda: len(list(parts.glob("*.tar.gz"))) == len(kept), "all parts are in the store")
    account = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    said = plugin(
        namespace, "bundle", name, "--to", str(folder), "--store", "s3://incidents/prod",
        "--endpoint", store.url, agents_in="default", environment=account,
    )  # fmt: skip
    assert "missing:" not in said
    return unpacked(read_files(folder), str(folder))


def in_full(part: NodePart) -> NodePart:
    """With the logs of eight ranks as long as they are kept, and the threads that a rank of PyTorch has."""
    dice = random.Random(part.node)
    logs = {
        f"{part.node}-{rank}.main.log": "\n".join(f"step {dice.random()}" for _ in range(700))
        for rank in range(8)
    }
    threads = tuple(
        ArchivedThread(
            dice.randrange(1 << 22),
            dice.randrange(1 << 22),
            "pt_autograd_0",
            "S",
            "futex in futex_wait",
        )
        for _ in range(8 * 150)
    )
    return replace(part, logs=logs, threads=threads)


def test_the_parts_of_sixty_four_nodes_are_fetched(namespace: Namespace, tmp_path: Path) -> None:
    """All of their agents share two nodes, and this machine: each part costs it a program in a container.

    Prints how long it takes; the goal is half a minute.
    """
    start_pods(namespace)
    namespace.cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    whole = build.archive(world=8 * PARTS, culprit=77)
    assert whole.incident is not None
    assert whole.incident.status is not None
    nodes = [node["metadata"]["name"] for node in namespace.cluster.get("nodes")]
    listed = []
    for number, part in enumerate(map(in_full, whole.parts)):
        name = bundle_name(1.8e9 + number, "train-x7k2")
        alone = Archive(whole.job, whole.name, parts=(part,))
        path = write_bundle(tmp_path / "bundles", name, packed(alone))
        listed.append(f"{nodes[number % len(nodes)]}:{path}")
    incident = incident_api.object_of(whole.incident)
    incident["metadata"] = {"name": "train-x7k2", "namespace": namespace.name}
    namespace.apply(json.dumps(incident))
    status = replace(whole.incident.status, bundles=tuple(listed), nodes=())
    patch = json.dumps({"status": incident_api.status_of(status)})
    command = ["patch", "incident", "train-x7k2", "--subresource=status", "--type=merge"]
    namespace.ctl(*command, f"--patch={patch}")
    begin_s = time.monotonic()
    said = plugin(namespace, "bundle", "train-x7k2", "--to", str(tmp_path / "kept"))
    took_s = time.monotonic() - begin_s
    kept = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file())
    print(f"{len(listed)} parts, {kept / 1e6:.1f} MB, in {took_s:.1f} s: {said}")
    assert "missing:" not in said


def test_a_hung_job_on_two_nodes_has_one_archive_and_one_page(
    namespace: Namespace, agents: dict[str, Agent], tmp_path: Path
) -> None:
    """Once where the policy stops at a snapshot, and once where the gang is replaced."""
    start_pods(namespace)
    namespace.apply((JOBS / "pytorchjob.yaml").read_text())
    namespace.wait_for_steps(SELECTOR, 4, 5, 300)
    policy(namespace, action="Snapshot")
    kept = Path(os.environ.get("KCOVER_KEPT_ARCHIVES", tmp_path))
    with running(namespace, tmp_path / "controller.log"), copied(agents, tmp_path) as store:
        pod, pid = worker(namespace)
        os.kill(pid, signal.SIGSTOP)
        observed = wait_for_phase(namespace, ("Observed",))
        archive = fetched(namespace, observed, kept / "snapshot", set(agents))
        check(archive, pod, set(agents))
        assert read_back(namespace, observed, store, kept / "stored").parts == archive.parts
        policy(namespace, ways=["Replace"])
        recovered = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        assert recovered["status"]["phase"] == "Recovered"
        name = recovered["metadata"]["name"]
        until(lambda: len(bundles(namespace, name)) >= 4, "both nodes report a second bundle")
        archive = fetched(namespace, recovered, kept / "replaced", set(agents))
        check(archive, pod, set(agents))
        assert archive.incident is not None
        assert archive.incident.status is not None
        phases = [moment.phase for moment in archive.incident.status.timeline]
        assert phases[-1] == "Recovered"
