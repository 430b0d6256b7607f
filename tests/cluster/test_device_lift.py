"""A GPU fails in a virtual machine, its node or the GPU alone is cordoned, and is uncordoned without a person.

Either the driver asked for a recovery by NVML and no longer does, or the node was booted again. The kernel and the
driver's lines are real or the stub driver's; NVML is the real binding against a library that reads a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.recovery.nodes.node_plan import CLEARED
from testbed import skips
from testbed.driver import nvml_stub
from testbed.driver.agents import Agent
from testbed.driver.cluster import Cluster, Namespace, home, until
from testbed.driver.nodes import cordoned_nodes, events_of
from testbed.driver.restarts import policy
from tests.cluster.devices import (
    ask,
    bring_up,
    check_uncordoned,
    condition,
    given,
    gpu_machine,
    gpu_node,
    lose_gpu,
    of_node,
    rules,
    sliced,
)
from tests.cluster.guest_node import GuestNode
from tests.cluster.node_health import health
from tests.vm.conftest import GPU
from tests.vm.guest import Guest

pytestmark = [pytest.mark.needs("root", "bpf", "gcc"), pytest.mark.timeout(900, func_only=True)]
CLEAN_ROUNDS = 2
ASKS_FOR_A_RESET = "recovery 0 1\n"
"""NVML's recovery action of the first GPU: NVML_RECOVERY_ACTION_GPU_RESET."""


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with gpu_machine() as machine:
        nvml_stub.build(machine.share)
        yield machine


@pytest.fixture
def script(guest: Guest) -> Path:
    """What NVML answers; empty for healthy GPUs."""
    file = guest.share / "script"
    file.write_text("")
    return file


@pytest.fixture
def node(
    cluster: Cluster, guest: Guest, script: Path, agents: dict[str, Agent]
) -> Iterator[GuestNode]:
    """The virtual machine as a node that is inspected all the time, by its agent."""
    assert agents, "the cluster's other nodes have theirs"
    assert script.exists()
    with gpu_node(cluster, guest, start_agent) as found:
        until(lambda: passes(cluster, found), "the node is inspected, and passes", 300)
        yield found
    cluster.run("delete", "nodehealths", "--all")


@pytest.fixture
def operators(cluster: Cluster) -> Iterator[Namespace]:
    """The namespace whose policies are about nodes."""
    found = Namespace(cluster, home(cluster))
    policy(found, node={"inspection": "Devices", "cleanRounds": CLEAN_ROUNDS})
    yield found
    found.ctl("delete", "faultpolicies", "--all")


def start_agent(node: GuestNode, namespace: str) -> None:
    """Its agent, which inspects the GPUs every two seconds by NVML."""
    options = ("--inspect-every=2s", "--inspect-checks=nvml,kernel_log")
    node.run_agent(namespace, *options, environ="LD_LIBRARY_PATH=/share FAKE_NVML=/share/script")


def passes(cluster: Cluster, node: GuestNode) -> bool:
    return gpu_health(cluster, node).get("result") == "pass"


def gpu_health(cluster: Cluster, node: GuestNode) -> dict[str, Any]:
    """The health of the first GPU by the last inspection; empty while it is not reported."""
    devices = health(cluster, node.name).get("devices", ())
    return next((device for device in devices if device["name"] == GPU), {})


def rounds(cluster: Cluster, node: GuestNode) -> int:
    """Clean inspections in a row."""
    return int(health(cluster, node.name).get("cleanRounds", 0))


def check_mended(cluster: Cluster, node: GuestNode) -> None:
    """All that was done to the node is undone, and no person asked for it."""
    check_uncordoned(cluster, node)
    assert CLEARED not in of_node(cluster, node)["metadata"].get("annotations", {})
    until(lambda: "KcoverUncordoned" in events_of(cluster, node.name), "its Event")


def fail(cluster: Cluster, node: GuestNode, seen: Callable[[], object]) -> None:
    """An Xid that makes the GPU unfit, until it is acted on."""
    lose_gpu(node.guest)
    until(seen, "the fault is acted on", 180)
    until(lambda: condition(cluster, node)[0] == "True", "the node reports the fault")


@pytest.mark.usefixtures("controller", "operators")
def test_a_node_is_uncordoned_once_nvml_asks_for_no_recovery(
    cluster: Cluster, node: GuestNode, script: Path
) -> None:
    script.write_text(ASKS_FOR_A_RESET)
    fail(cluster, node, lambda: cordoned_nodes(cluster) == {node.name})
    found = until(lambda: failing(cluster, node), "an inspection shows it")
    assert "GPU reset" in found["evidence"][0]
    script.write_text("")
    check_mended(cluster, node)
    assert rounds(cluster, node) >= CLEAN_ROUNDS


def failing(cluster: Cluster, node: GuestNode) -> dict[str, Any] | None:
    found = gpu_health(cluster, node)
    return found if found.get("result") == "fail" else None


@pytest.mark.usefixtures("controller", "operators")
def test_a_node_is_uncordoned_once_it_was_booted_again(cluster: Cluster, node: GuestNode) -> None:
    fail(cluster, node, lambda: cordoned_nodes(cluster) == {node.name})
    passed = gpu_health(cluster, node)["rounds"] + 2 * CLEAN_ROUNDS
    until(lambda: gpu_health(cluster, node)["rounds"] > passed, "more inspections that pass")
    assert rounds(cluster, node) == 0, "a fault is open"
    assert cordoned_nodes(cluster) == {node.name}, "no inspection showed the fault: none ends it"
    node.guest.power_cycle()
    bring_up(node.guest)
    start_agent(node, home(cluster))
    check_mended(cluster, node)


@pytest.mark.usefixtures("controller", "operators")
def test_a_gpu_is_handed_out_again_once_nvml_asks_for_no_recovery(
    cluster: Cluster, namespace: Namespace, node: GuestNode, script: Path
) -> None:
    if not cluster.serves("devicetaintrules.resource.k8s.io"):
        skips.skip("devicetaintrules", "the cluster has no DeviceTaintRule")
    with sliced(cluster, node):
        script.write_text(ASKS_FOR_A_RESET)
        fail(cluster, node, lambda: rules(cluster, node))
        assert cordoned_nodes(cluster) == set(), "its other GPU continues working"
        until(lambda: failing(cluster, node), "an inspection shows it")
        ask(namespace, node, "bad", GPU)
        assert given(namespace, "bad") == []
        script.write_text("")
        until(lambda: not rules(cluster, node), "the rule is taken back", 240)
        assert until(lambda: given(namespace, "bad"), "the GPU is handed out") == ["gpu-0"]
    assert condition(cluster, node)[0] == "False"
