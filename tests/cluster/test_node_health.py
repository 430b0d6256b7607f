"""A node fails an inspection, is cordoned, is mended, and is back at work by itself; the second time it takes longer.

The check is an operator's own, driven by a file, in the real agents of all nodes; the rounds follow each other within
seconds, so that what takes half an hour by the defaults takes half a minute.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcover_ebpf.recovery.nodes.node_health import OFFENCES
from testbed.driver.cluster import ROOT, Cluster, Namespace, home, until
from testbed.driver.installed import NAMESPACE, installed
from testbed.driver.nodes import all_uncordoned, cordoned_nodes, events_of, inside
from testbed.driver.restarts import policy
from tests.cluster.node_health import (
    CHECK,
    KUBECTL,
    PROBE,
    all_pass,
    health,
    inspected,
    listed,
    of_node,
)

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]
CLEAN_ROUNDS = 2
STATE = "/var/lib/kcover-ebpf"
"""The folder of the node that the agent of the chart has."""


@pytest.fixture
def broken(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A folder: a file named after a node makes it fail the check of the operator."""
    with inspected(cluster, tmp_path) as folder:
        yield folder


@pytest.fixture
def operators(cluster: Cluster) -> Iterator[Namespace]:
    """The namespace whose policies are about nodes: that of the controller."""
    found = Namespace(cluster, home(cluster))
    yield found
    found.ctl("delete", "faultpolicies", "--all")


def condition(cluster: Cluster, node: str) -> str:
    conditions = of_node(cluster, node)["status"]["conditions"]
    found = [
        other_condition
        for other_condition in conditions
        if other_condition["type"] == "KcoverInspectionFailed"
    ]
    return f"{found[0]['status']}: {found[0]['message']}" if found else ""


def fail_and_mend(
    cluster: Cluster, node: str, break_it: Callable[[], object], mend: Callable[[], object]
) -> int:
    """Break a node and mend it; clean rounds in a row when it was found at work again."""
    break_it()
    until(lambda: cordoned_nodes(cluster) == {node}, "the node is cordoned")
    spec = of_node(cluster, node)["spec"]
    assert spec["unschedulable"]
    assert "kcover.io/device-fault" in {taint["key"] for taint in spec["taints"]}
    until(lambda: condition(cluster, node) == f"True: {CHECK}: the licence is gone", "a condition")
    row = listed(cluster, node)
    assert (row["health"], row["kept_out_by"]) == ("fail", "kcover")
    assert "the licence is gone" in row["reason"]
    mend()
    until(lambda: not cordoned_nodes(cluster), "the node is at work again", 240)
    assert not of_node(cluster, node)["spec"].get("unschedulable")
    until(lambda: condition(cluster, node) == "False: no check failed", "the condition is over")
    return int(health(cluster, node)["cleanRounds"])


@pytest.mark.usefixtures("controller")
def test_a_node_fails_an_inspection_and_is_back_at_work_by_itself(
    cluster: Cluster, operators: Namespace, broken: Path
) -> None:
    policy(operators, node={"inspection": "All", "cleanRounds": CLEAN_ROUNDS})
    names = sorted(entry["metadata"]["name"] for entry in cluster.get("nodes"))
    node, other = names[0], names[-1]
    until(lambda: all_pass(cluster, names), "all nodes are inspected, and pass")
    cluster.run("annotate", "node", node, f"{OFFENCES}-")
    cluster.ctl("cordon", other)
    try:
        file = broken / node
        first = fail_and_mend(cluster, node, file.touch, file.unlink)
        second = fail_and_mend(cluster, node, file.touch, file.unlink)
        assert of_node(cluster, other)["spec"]["unschedulable"], "a person's cordon is left alone"
        assert listed(cluster, other)["kept_out_by"] == "operator"
    finally:
        cluster.ctl("uncordon", other)
        count = of_node(cluster, node)["metadata"]["annotations"].get(OFFENCES, "")
        cluster.run("annotate", "node", node, f"{OFFENCES}-")
    print(f"clean inspections when it was back: {first}, then {second}")
    assert first >= CLEAN_ROUNDS
    assert second >= 2 * CLEAN_ROUNDS
    assert count.startswith("2 ")
    assert events_of(cluster, node) >= {
        "KcoverInspectionFailed",
        "KcoverCordoned",
        "KcoverUncordoned",
    }


def test_the_chart_and_its_permissions_suffice(cluster: Cluster, image: str) -> None:
    """The same by agents and controller of the chart, and an inspection on demand."""
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    values = (
        "agent.inspection.intervalSeconds=2",
        f"agent.inspection.checks={{{CHECK}}}",
        f"agent.inspection.plugins.probe={PROBE.format(STATE + '/broken')}",
    )
    node = min(entry["metadata"]["name"] for entry in cluster.get("nodes"))
    with all_uncordoned(cluster), installed(cluster, image, *values) as release:
        release.wait_until_ready()
        policy(Namespace(cluster, NAMESPACE), node={"inspection": "All", "cleanRounds": 2})
        until(lambda: health(cluster, node).get("result") == "pass", "the node is inspected")
        cluster.run("annotate", "node", node, f"{OFFENCES}-")
        broken = f"{STATE}/broken"
        try:
            rounds = fail_and_mend(
                cluster,
                node,
                lambda: inside(cluster, node, "touch", broken),
                lambda: inside(cluster, node, "rm", broken),
            )
            assert rounds >= 2
            assert inspected_now(cluster, node) == (0, "pass", "fine")
            inside(cluster, node, "touch", broken)
            assert inspected_now(cluster, node) == (1, "fail", "the licence is gone")
        finally:
            inside(cluster, node, "rm", "-f", broken)
            cluster.run("delete", "faultpolicies", "--all", f"--namespace={NAMESPACE}")
            cluster.run("annotate", "node", node, f"{OFFENCES}-")


def inspected_now(cluster: Cluster, node: str) -> tuple[int, str, str]:
    """Exit code, result and evidence of the operator's check on demand."""
    command = [KUBECTL, "inspect", node, "--checks", CHECK, "-o", "json"]
    done = subprocess.run(
        [*command, f"--kubeconfig={cluster.kubeconfig}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    (check,) = json.loads(done.stdout)["checks"]
    return done.returncode, check["result"], check["evidence"][0]
