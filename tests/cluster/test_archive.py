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

from kcover_ebpf.api import incident as incident_api
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.archive.incident_archive import Archive, packed, unpacked
from kcover_ebpf.archive.node_part import ArchivedThread, EvidenceTrigger, NodePart
from kcover_ebpf.output.archives import read_files
from kcover_ebpf.output.bundles import bundle_name, write_bundle
from testbed.driver.agents import Agent
from testbed.driver.cluster import JOBS, ROOT, Namespace, until
from testbed.driver.kinds import SPREAD, replaced, sized
from testbed.driver.restarts import incidents, policy, running, wait_for_phase
from testbed.driver.servers import ACCESS_KEY, SECRET_KEY, ObjectStore, object_store
from tests.cluster.spread_job import SELECTOR, last_rank
from tests.cluster.stub_agents import COMMAND, start_pods
from tests.unit.support import incident_archives as build

pytestmark = [pytest.mark.needs("root", "bpf", "go"), pytest.mark.timeout(900, func_only=True)]

PARTS = 64
SECRET = "s3cr3t-0451"
TALKATIVE = f"""command:
        - sh
        - -c
        - 'echo "connecting with --api-key $WANDB_API_KEY"; exec python3 /train/train.py "$@"'
        - sh
        - --token={SECRET}
        env: [{{name: WANDB_API_KEY, value: {SECRET}}}, """
"""Ranks with a secret in their arguments and their environment, that print it."""


OBSERVE = """
apiVersion: kcover.io/v1alpha1
kind: FaultPolicy
metadata: {name: p}
spec: {action: Observe}
"""


def plugin(
    namespace: Namespace,
    *arguments: str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What it printed, which is shown with the time that it took."""
    command = [COMMAND.replace("kcover-ebpf", "kubectl-kcover"), *arguments, "-n", namespace.name]
    command += ["--kubeconfig", str(namespace.cluster.kubeconfig)]
    begin_s = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | dict(environment),
    )
    took_s = time.monotonic() - begin_s
    assert done.returncode == 0, done.stderr
    words = len(done.stdout.split())
    print(
        f"$ kubectl kcover {' '.join(arguments)}   # {took_s:.1f} s, {words} words\n{done.stdout}"
    )
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
    agents_in = ["--agent-namespace", namespace.name]
    assert "missing:" not in plugin(namespace, "bundle", name, "--to", str(folder), *agents_in)
    page = folder.with_suffix(".html")
    plugin(namespace, "report", name, "--to", str(page), *agents_in)
    assert page.read_text().count("</html>") == 1
    files = [page, *(path for path in folder.rglob("*") if path.is_file())]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    return unpacked(read_files(folder), str(folder))


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
    logs = "".join(text for part in archive.parts for text in part.logs.values())
    assert "connecting with --api-key [masked]" in logs
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
        "--endpoint", store.url, "--agent-namespace", "default", environment=account,
    )  # fmt: skip
    assert "missing:" not in said
    return unpacked(read_files(folder), str(folder))


def check_answers(namespace: Namespace, name: str, pod: Pod, folder: Path) -> None:
    """What a person asks who knows the alert alone, and what a changed policy would have done."""
    explained = plugin(namespace, "explain", name)
    assert "next: " in explained
    assert "owner: team-vision" in explained
    assert f"culprit: rank 3, pod {pod.name}, node {pod.node}" in explained
    assert "cause: " in explained
    file = folder / "observe.yaml"
    file.write_text(OBSERVE)
    tried = plugin(namespace, "simulate", "--policy", str(file), "--since", "1h")
    (row,) = [line for line in tried.splitlines() if line.startswith(f"{namespace.name}/{name} ")]
    assert row.endswith("would not be ended")
    assert f"{namespace.name}/demo" in plugin(namespace, "stats", "--since", "1h")


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
    asked = ["bundle", "train-x7k2", "--to", str(tmp_path / "kept")]
    said = plugin(namespace, *asked, "--agent-namespace", namespace.name)
    kept = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file())
    print(f"{len(listed)} parts, {kept / 1e6:.1f} MB")
    assert "missing:" not in said


def start_job(namespace: Namespace) -> None:
    """Four ranks that train, two on each node, beside the pods in which agents are asked."""
    start_pods(namespace)
    changes = {
        "command: [python3, /train/train.py]\n        env: [": TALKATIVE,
        "restartPolicy: Never": SPREAD,
    }
    namespace.apply(replaced(sized((JOBS / "job.yaml").read_text(), 4), changes))
    namespace.ctl("label", "job", "demo", "kcover.io/owner=team-vision")
    namespace.wait_for_steps(SELECTOR, 4, 5, 300)


def test_a_hung_job_on_two_nodes_has_one_archive_and_one_page(
    namespace: Namespace, reading_agents: dict[str, Agent], tmp_path: Path
) -> None:
    """Once where the policy stops at a snapshot, and once where the gang is replaced."""
    kept = Path(os.environ.get("KCOVER_KEPT_ARCHIVES", tmp_path))
    with copied(reading_agents, tmp_path) as store, running(namespace, tmp_path / "controller.log"):
        start_job(namespace)
        policy(namespace, action="Snapshot")
        pod, pid = last_rank(namespace)
        os.kill(pid, signal.SIGSTOP)
        observed = wait_for_phase(namespace, ("Observed",))
        archive = fetched(namespace, observed, kept / "snapshot", set(reading_agents))
        check(archive, pod, set(reading_agents))
        assert read_back(namespace, observed, store, kept / "stored").parts == archive.parts
        policy(namespace, ways=["Replace"])
        recovered = wait_for_phase(namespace, ("Recovered", "Failed", "Refused"))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        assert recovered["status"]["phase"] == "Recovered"
        name = recovered["metadata"]["name"]
        until(lambda: len(bundles(namespace, name)) >= 4, "both nodes report a second bundle")
        archive = fetched(namespace, recovered, kept / "replaced", set(reading_agents))
        check(archive, pod, set(reading_agents))
        assert archive.incident is not None
        assert archive.incident.status is not None
        phases = [moment.phase for moment in archive.incident.status.timeline]
        assert phases[-1] == "Recovered"
        check_answers(namespace, name, pod, tmp_path)
