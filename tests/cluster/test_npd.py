"""node-problem-detector, built from its module, at work on a node: what it reports is evidence, and never fought.

It reads a log of ours in the place of the kernel's, by its own rules for that, and writes conditions of the Node. It
sets no taints, so the taint is NVIDIA's.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.peerbench import daemons
from testbed.driver.cluster import Cluster, Namespace, home, until
from testbed.driver.nodes import cordoned_nodes
from testbed.driver.restarts import policy
from tests.cluster.node_health import all_pass, health, inspected, of_node

pytestmark = [pytest.mark.needs("root", "bpf", "go"), pytest.mark.timeout(900, func_only=True)]
THEIRS = "KernelDeadlock"
LINE = "{} {} kernel: [ 1234.5] task docker:1234 blocked for more than 120 seconds.\n"
TAINT = "nvidia.com/gpu.unhealthy"


@pytest.fixture(scope="module")
def built() -> tuple[Path, dict[str, Any]]:
    """The program, and its monitor for a kernel's log that is a file."""
    program, folder = daemons.npd()
    return program, json.loads((folder / "kernel-monitor-filelog.json").read_text())


@contextmanager
def detecting(
    cluster: Cluster, node: str, built: tuple[Path, dict[str, Any]], folder: Path
) -> Iterator[Path]:
    """It runs for this node; the value is the log that it reads."""
    folder.mkdir()
    program, config = built
    log, monitor = folder / "kern.log", folder / "monitor.json"
    log.touch()
    monitor.write_text(json.dumps(config | {"logPath": str(log)}))
    server = cluster.ctl("config", "view", "--output=jsonpath={.clusters[0].cluster.server}")
    auth = f"?inClusterConfig=false&auth={cluster.kubeconfig}"
    command = [str(program), f"--apiserver-override={server}{auth}", f"--hostname-override={node}"]
    command += [f"--config.system-log-monitor={monitor}", "--port=0", "--prometheus-port=0"]
    with open(folder / "npd.log", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(lambda: theirs(cluster, node).get("status") == "False", "its condition is False")
        yield log
    except AssertionError:
        print((folder / "npd.log").read_text()[-3000:])
        raise
    finally:
        process.kill()
        process.wait()


def theirs(cluster: Cluster, node: str) -> dict[str, Any]:
    conditions = of_node(cluster, node)["status"]["conditions"]
    return next((condition for condition in conditions if condition["type"] == THEIRS), {})


def writers(cluster: Cluster, node: str) -> set[str]:
    """Who owns a field of its condition."""
    (raw,) = cluster.get("nodes", node, "--show-managed-fields")
    key = f'k:{{"type":"{THEIRS}"}}'
    return {
        managed_field["manager"]
        for managed_field in raw["metadata"]["managedFields"]
        if key in managed_field["fieldsV1"].get("f:status", {}).get("f:conditions", {})
    }


def clean_rounds(cluster: Cluster, node: str) -> int:
    return int(health(cluster, node).get("cleanRounds", 0))


def taint_holds_it_back(
    cluster: Cluster,
    node: str,
    built: tuple[Path, dict[str, Any]],
    folder: Path,
    owner: set[str],
) -> None:
    """The program starts anew and calls the node well, but it has a taint; `owner`: of the condition."""
    cluster.ctl("taint", "node", node, f"{TAINT}=yes:NoSchedule", "--overwrite")
    with detecting(cluster, node, built, folder):
        rounds = clean_rounds(cluster, node)
        until(lambda: clean_rounds(cluster, node) >= rounds + 8, "as many once more")
        assert cordoned_nodes(cluster) == {node}, "NVIDIA's taint is evidence, too"
        taints = {taint["key"] for taint in of_node(cluster, node)["spec"]["taints"]}
        assert TAINT in taints
        cluster.ctl("taint", "node", node, f"{TAINT}-")
        until(lambda: not cordoned_nodes(cluster), "the node is at work again")
        assert theirs(cluster, node)["status"] == "False"
        assert writers(cluster, node) == owner


@pytest.mark.usefixtures("controller")
def test_a_node_that_it_calls_bad_is_not_uncordoned_and_its_condition_is_its_own(
    cluster: Cluster, namespace: Namespace, built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    del namespace
    operators = Namespace(cluster, home(cluster))
    names = sorted(entry["metadata"]["name"] for entry in cluster.get("nodes"))
    node = names[0]
    try:
        with inspected(cluster, tmp_path) as broken:
            until(lambda: all_pass(cluster, names), "all nodes are inspected, and pass")
            policy(operators, node={"inspection": "All", "cleanRounds": 2})
            with detecting(cluster, node, built, tmp_path / "bad") as log:
                owner = writers(cluster, node)
                assert len(owner) == 1
                assert cordoned_nodes(cluster) == set(), (
                    "a condition of another program cordons nothing"
                )
                (broken / node).touch()
                until(lambda: cordoned_nodes(cluster) == {node}, "the node is cordoned")
                log.write_text(LINE.format(time.strftime("%b %e %H:%M:%S"), node))
                until(lambda: theirs(cluster, node)["status"] == "True", "it finds a deadlock")
                reported = theirs(cluster, node)
                assert reported["reason"] == "DockerHung"
                (broken / node).unlink()
                until(lambda: clean_rounds(cluster, node) >= 8, "four times what is needed")
                assert cordoned_nodes(cluster) == {node}
                assert {**theirs(cluster, node), "lastHeartbeatTime": ""} == {
                    **reported,
                    "lastHeartbeatTime": "",
                }
            taint_holds_it_back(cluster, node, built, tmp_path / "well", owner)
    finally:
        cluster.run("taint", "node", node, f"{TAINT}-")
        operators.ctl("delete", "faultpolicies", "--all")
        gone = json.dumps({"status": {"conditions": [{"type": THEIRS, "$patch": "delete"}]}})
        cluster.run("patch", "node", node, "--subresource=status", f"--patch={gone}")
