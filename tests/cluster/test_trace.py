"""`kcover-ebpf trace POD` and `--job`, through pods that stand for the agents: this checkout, on every node."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.driver.cluster import JOBS, ROOT, Cluster, Namespace, home, until
from testbed.driver.kinds import sized
from testbed.driver.victims import has_trained
from tests.cluster.stub_agents import COMMAND, start_pods


def job() -> str:
    """The example Job with four ranks, which have their number from the index of their pod alone."""
    return sized((JOBS / "job.yaml").read_text(), 4)


@pytest.fixture
def watched(namespace: Namespace) -> Namespace:
    """A namespace with stub agents and a job of four ranks that trains."""
    start_pods(namespace)
    namespace.apply(job())
    namespace.wait_for_steps("job-name=demo", 4, 3)
    return namespace


def trace(namespace: Namespace, *arguments: str, kubeconfig: Path | None = None) -> Any:
    chosen = str(kubeconfig or namespace.cluster.kubeconfig)
    return subprocess.run(
        [COMMAND, "trace", *arguments, "-n", namespace.name, "--kubeconfig", chosen],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def signal_rank(namespace: Namespace, found: dict[str, Any], rank: int, name: str) -> None:
    """Send a signal to a rank's process, from an agent, which sees the pids of the host."""
    (pid,) = [row["pid"] for row in found["threads"] if row["lead"] and row["rank"] == rank]
    namespace.ctl("exec", "daemonset/agent", "--", "kill", f"-{name}", str(pid))


@pytest.mark.timeout(600)
def test_the_stopped_rank_of_a_job_on_two_nodes_is_named(watched: Namespace) -> None:
    mine = ("--agent-namespace", watched.name)
    healthy = trace(watched, "--job", "demo", *mine, "-o", "json")
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    found = json.loads(healthy.stdout)
    assert {row["rank"] for row in found["threads"] if row["lead"]} == {0, 1, 2, 3}
    (pod,) = {row["pod"] for row in found["threads"] if row["rank"] == 2}
    signal_rank(watched, found, 2, "STOP")
    try:
        time.sleep(10)
        hung = trace(watched, "--job", "demo", *mine, "-o", "json")
        said = json.loads(hung.stdout)
        assert (said["verdict"], said["cause"], said["culprit"]["rank"]) == ("HUNG", "stopped", 2)
        assert (said["victims"], said["culprit"]["pod"]) == ([0, 1, 3], pod)
        assert hung.returncode == 1
        one = trace(watched, pod, *mine)
        assert one.returncode == 1
        assert "stopped (SIGSTOP)" in one.stdout
    finally:
        signal_rank(watched, found, 2, "CONT")


@pytest.fixture
def unprivileged(watched: Namespace, tmp_path: Path) -> Path:
    """A kubeconfig of a user who may see pods, and nothing else."""
    watched.ctl("create", "serviceaccount", "unprivileged")
    watched.ctl("create", "role", "see", "--verb=get,list", "--resource=pods")
    who = f"--serviceaccount={watched.name}:unprivileged"
    watched.ctl("create", "rolebinding", "see", "--role=see", who)
    token = watched.ctl("create", "token", "unprivileged").strip()
    path = tmp_path / "kubeconfig"
    path.write_text(watched.cluster.kubeconfig.read_text())
    changed = Cluster(path, watched.cluster.kubectl)
    changed.ctl("config", "set-credentials", "unprivileged", f"--token={token}")
    changed.ctl("config", "set-context", "--current", "--user=unprivileged")
    return path


@pytest.mark.timeout(600)
def test_what_prevents_a_trace_is_reported_and_a_dead_client_leaves_nothing(
    watched: Namespace, unprivileged: Path
) -> None:
    pod = watched.pods("job-name=demo")[0]["metadata"]["name"]
    mine = ("--agent-namespace", watched.name)
    for arguments, kubeconfig, code, text in (
        (("nowhere", *mine), None, 2, "no pod nowhere"),
        ((pod, *mine, "-c", "none"), None, 2, "no container none; it has main"),
        ((pod, "--agent-namespace", "default"), None, 3, "no agent of kcover-ebpf runs on node"),
        ((pod, *mine), unprivileged, 3, "not allowed to exec into the agents"),
        ((pod,), unprivileged, 3, "--agent-namespace"),
    ):
        done = trace(watched, *arguments, kubeconfig=kubeconfig)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
        assert len(done.stderr.splitlines()) == 1
    where = ("-n", watched.name, *mine, "--kubeconfig", str(watched.cluster.kubeconfig))
    client = subprocess.Popen(
        [COMMAND, "trace", pod, "--live", "-o", "jsonl", *where],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert '"event":"trace"' in client.stdout.readline()
    assert running_traces(pod) == 1
    client.kill()
    client.wait()
    client.stdout.close()
    deadline = time.monotonic() + 60
    while running_traces(pod):
        assert time.monotonic() < deadline, "the trace continues in the agent"
        time.sleep(0.5)


@pytest.fixture
def pods_at_home(cluster: Cluster) -> Iterator[Namespace]:
    """Such pods in the namespace of the real agents, whose Leases are there."""
    there = Namespace(cluster, home(cluster))
    start_pods(there)
    try:
        yield there
    finally:
        there.ctl("delete", "daemonset/agent", "configmap/start")


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("agents")
def test_of_a_job_that_agents_watch_the_verdict_is_theirs(
    namespace: Namespace, pods_at_home: Namespace
) -> None:
    """One pod of a hung ring is asked about: the culprit is in another pod."""
    namespace.apply(job())
    namespace.wait_for_steps("job-name=demo", 4, 3)
    until(lambda: has_trained(namespace), "the agents saw it training")
    mine = ("--agent-namespace", pods_at_home.name)
    found = json.loads(trace(namespace, "--job", "demo", *mine, "-o", "json").stdout)
    by_rank = {row["rank"]: row["pod"] for row in found["threads"] if row["lead"]}
    signal_rank(pods_at_home, found, 2, "STOP")
    try:
        until(lambda: is_reported(namespace), "an agent reports the hang")
        for _ in range(5):
            began_s = time.monotonic()
            done = trace(namespace, by_rank[0], *mine, "-o", "json")
            print(f"trace of one pod took {time.monotonic() - began_s:.2f} s")
            said = json.loads(done.stdout)
            assert (said["verdict"], said["cause"]) == ("HUNG", "stopped"), done.stdout
            assert (said["culprit"]["rank"], said["culprit"]["pod"]) == (2, by_rank[2])
            assert said["source"] == "agents"
    finally:
        signal_rank(pods_at_home, found, 2, "CONT")


def is_reported(namespace: Namespace) -> bool:
    reports = [item["spec"] for item in namespace.items("faultreports")]
    return any(report.get("verdict", {}).get("verdict") == "HUNG" for report in reports)


def running_traces(pod: str) -> int:
    """Runs of `trace` at a pod that agents of this machine have under way."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        named = any(word.endswith(f"={pod}".encode()) for word in words)
        count += named and b"--with-asker" in words and str(ROOT).encode() in b" ".join(words)
    return count
