"""An operator's Job mends a stub GPU that an inspection found broken, and its node returns without a person."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.recovery.nodes.node_health import OFFENCES
from testbed.driver import agents as real_agents
from testbed.driver import nvml_stub
from testbed.driver.cluster import ROOT, Cluster, Namespace, home, until
from testbed.driver.nodes import cordoned_nodes, events_of
from testbed.driver.restarts import policy, running
from tests.cluster.node_health import all_pass, of_node

pytestmark = [
    pytest.mark.needs("root", "bpf", "gcc"),
    pytest.mark.timeout(1200, func_only=True),
]
ASKS_FOR_A_RESET = "recovery 0 1\n"
"""NVML's recovery action of the first GPU: NVML_RECOVERY_ACTION_GPU_RESET."""


@pytest.fixture
def scripts(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A folder with a file for each node, which says what NVML answers there; its agents inspect every second."""
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    library = nvml_stub.build(tmp_path)
    folder = tmp_path / "scripts"
    folder.mkdir()

    def inspects(node: str) -> tuple[list[str], dict[str, str]]:
        (folder / node).write_text("")
        environ = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(folder / node)}
        return ["--inspect-every=2s", "--inspect-checks=nvml"], environ

    with real_agents.running(cluster, tmp_path, for_node=inspects):
        yield folder
    cluster.run("delete", "nodehealths", "--all")


def repairs(folder: Path) -> dict[str, object]:
    """One step: a Job whose pod takes away, on the node, what the stub of NVML reads."""
    command = ["sh", "-ec", 'test -n "$KCOVER_DEVICES"; : > "/scripts/$KCOVER_NODE"']
    container = {
        "name": "reset",
        "image": "localhost/kcover-train:1",
        "command": command,
        "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}],
    }
    volume = {"name": "scripts", "hostPath": {"path": str(folder)}}
    spec = {"containers": [container], "volumes": [volume]}
    job = {"template": {"spec": spec}, "ttlSecondsAfterFinished": 600}
    return {"steps": [{"step": "ResetGPU", "drain": True, "job": job}]}


def test_a_repair_mends_a_gpu_and_the_node_returns_without_a_person(
    cluster: Cluster, namespace: Namespace, scripts: Path, tmp_path: Path
) -> None:
    operators = Namespace(cluster, home(cluster))
    policy(operators, node={"inspection": "Devices", "cleanRounds": 2})
    file = tmp_path / "repairs.json"
    file.write_text(json.dumps(repairs(scripts)))
    names = sorted(entry["metadata"]["name"] for entry in cluster.get("nodes"))
    node = names[0]
    options = [f"--repairs={file}"]
    try:
        with running(namespace, tmp_path / "controller.log", options=options) as program:
            until(lambda: all_pass(cluster, names), "all nodes are inspected, and pass", 300)
            cluster.run("annotate", "node", node, f"{OFFENCES}-")
            (scripts / node).write_text(ASKS_FOR_A_RESET)
            until(lambda: cordoned_nodes(cluster) == {node}, "the node is cordoned", 240)
            until(lambda: (scripts / node).read_text() == "", "the Job has mended the GPU", 240)
            until(lambda: not cordoned_nodes(cluster), "the node is at work again", 300)
            print(program.log)
        assert not of_node(cluster, node)["spec"].get("unschedulable")
        assert events_of(cluster, node) >= {"KcoverCordoned", "KcoverRepair", "KcoverUncordoned"}
    finally:
        operators.ctl("delete", "faultpolicies", "--all")
        operators.ctl("delete", "jobs", "--selector=kcover.io/repair")
        cluster.run("annotate", "node", node, f"{OFFENCES}-")
