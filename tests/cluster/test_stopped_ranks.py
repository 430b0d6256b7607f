"""Ranks that our agents have stopped are let go when the agents end: there may never be another agent."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from testbed.driver.cluster import Namespace, until
from testbed.driver.fake_agent import processes
from testbed.driver.installed import NAMESPACE, Release, installed
from testbed.driver.orders import ByHand, reports_of, scale, session_of
from testbed.driver.restarts import stopped
from testbed.driver.victims import JOB, observed, ranks

pytestmark = pytest.mark.timeout(900, func_only=True)
_AGENTS = "--selector=app.kubernetes.io/component=agent"


def stop_all(release: Release, namespace: Namespace, folder: Path) -> set[int]:
    """Have a training stopped on all of its nodes, as before a restart in place; the pids of its ranks."""
    observed(namespace)
    nodes = {pod["spec"]["nodeName"] for pod in namespace.pods(JOB)}
    until(
        lambda: {entry["node"] for entry in reports_of(namespace) if entry.get("trained")} == nodes,
        "the agents report that it trains",
    )
    scale(release, 0)
    controller = session_of(release, "kcover-ebpf-controller", folder)
    name, _, value = JOB.partition("=")
    ByHand(controller, namespace, "demo", {name: value}).order("stop", "Stop")
    pids = set(ranks(namespace).values())
    assert len(pids) == 2
    assert pids <= set(stopped(namespace.pods(JOB)))
    return pids


def agents_of(release: Release) -> list[int]:
    """The processes of the agents that run."""
    pods = release.cluster.get("pods", f"--namespace={NAMESPACE}", _AGENTS)
    return [pid for pod in pods for pid in processes(pod["metadata"]["uid"])]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_agents_that_are_asked_to_end_let_ranks_go(
    namespace: Namespace, image: str, tmp_path: Path
) -> None:
    """SIGTERM, which the kubelet sends; the next agent would wait until the order has expired."""
    with installed(namespace.cluster, image) as release:
        release.wait_until_ready()
        pids = stop_all(release, namespace, tmp_path)
        agents = agents_of(release)
        assert agents
        release.ctl("delete", "pods", _AGENTS, "--wait=false")
        until(lambda: gone(agents), "the agents have ended")
        assert stopped(namespace.pods(JOB)) == []
        assert set(ranks(namespace).values()) == pids


def test_an_uninstalled_release_leaves_no_rank_stopped(
    namespace: Namespace, image: str, tmp_path: Path
) -> None:
    """Its accounts and permissions are removed at the same time as its pods."""
    with ExitStack() as stack:
        release = stack.enter_context(installed(namespace.cluster, image))
        release.wait_until_ready()
        pids = stop_all(release, namespace, tmp_path)
        agents = agents_of(release)
        assert agents
        stack.close()  # helm uninstall --wait
        until(lambda: gone(agents), "the agents have ended")
        assert stopped(namespace.pods(JOB)) == []
        assert set(ranks(namespace).values()) == pids
