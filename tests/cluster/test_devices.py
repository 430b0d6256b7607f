"""A device fails on one node: through the kernel of a virtual machine to the node that is cordoned, and back again.

The bare host cannot show it: its kernel has neither kprobes nor modules, and what is written to /dev/kmsg from
outside is a user's line, which the sensor does not believe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from testbed import skips
from testbed.driver.agents import Agent
from testbed.driver.cluster import Cluster, Namespace, until
from testbed.driver.nodes import cordoned_nodes
from testbed.driver.restarts import incidents, policy
from tests.cluster.devices import (
    DRIVER,
    OTHER,
    ask,
    check_cordoned,
    check_replaced,
    check_trains_elsewhere,
    check_uncordoned,
    condition,
    declare_well,
    fatal,
    given,
    gpu_machine,
    gpu_node,
    holders,
    lose_gpu,
    rules,
    sliced,
    spread,
)
from tests.cluster.guest_node import GuestNode
from tests.vm.conftest import GPU
from tests.vm.guest import RDMA_UP, Guest, idle_card

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    """A virtual machine with the stub driver and an RDMA card, on the way to the host."""
    with gpu_machine(*idle_card()) as machine:
        yield machine


@pytest.fixture(scope="module")
def card(guest: Guest) -> str:
    """The PCI address of its RDMA card."""
    return guest.shell(RDMA_UP).strip()


@pytest.fixture
def node(
    cluster: Cluster, guest: Guest, card: str, agents: dict[str, Agent]
) -> Iterator[GuestNode]:
    """The virtual machine as a node, its agent at work."""
    assert agents, "the cluster's other nodes have theirs"
    assert card
    with gpu_node(cluster, guest) as found:
        yield found
    guest.monitor("set_link idle on")


@dataclass(frozen=True)
class Fault:
    """One way in which a device fails, and how it is reported."""

    cause: Callable[[Guest], object]
    code: str
    said: str
    of_card: bool = False
    """The RDMA card's; else the GPU's. A job that continues without it is left alone."""


FAULTS = {
    "xid": Fault(lose_gpu, "xid_79", "fallen off the bus"),
    "pcie": Fault(
        lambda guest: guest.python(f"inject('{GPU}', 0x40000, 0)"), "aer_fatal", "PCIe fatal error"
    ),
    "port": Fault(
        lambda guest: guest.monitor("set_link idle off"), "port_down", "RDMA port plug/1", True
    ),
}


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_node_whose_device_fails_is_cordoned_until_it_is_declared_well(
    cluster: Cluster, namespace: Namespace, node: GuestNode, card: str, fault: Fault
) -> None:
    device = card if fault.of_card else GPU
    policy(namespace)
    # one each: the test bed may have grown for other tests
    pods = len(cluster.get("nodes"))
    here = spread(namespace, node, pods)
    uids = {pod["metadata"]["uid"] for pod in here}
    until(lambda: holders(namespace, node, device) >= uids, "the agent knows who holds the device")
    fault.cause(node.guest)
    until(lambda: fatal(cluster, node) == [(device, fault.code, uids)], "the agent reports", 180)
    if fault.of_card:
        until(lambda: cordoned_nodes(cluster) == {node.name}, "the node is cordoned")
        check_cordoned(cluster, node, fault.code)
        assert incidents(namespace) == []
        declare_well(cluster, node)
        check_uncordoned(cluster, node)
        return
    status = check_replaced(namespace, node, device)
    assert status["culprit"]["pod"] in {pod["metadata"]["name"] for pod in here}
    assert fault.said in status["evidence"][0]["text"]
    check_cordoned(cluster, node, fault.code)
    check_trains_elsewhere(namespace, node, pods)
    declare_well(cluster, node)
    check_uncordoned(cluster, node)


@pytest.mark.usefixtures("controller")
def test_a_gpu_that_is_handed_out_alone_is_tainted_alone(
    cluster: Cluster, namespace: Namespace, node: GuestNode
) -> None:
    if not cluster.serves("devicetaintrules.resource.k8s.io"):
        skips.skip("devicetaintrules", "the cluster has no DeviceTaintRule")
    policy(namespace)
    with sliced(cluster, node):
        lose_gpu(node.guest)
        (rule,) = until(lambda: rules(cluster, node), "a DeviceTaintRule")
        selector = {"driver": DRIVER, "pool": node.name, "device": "gpu-0"}
        assert rule["spec"]["deviceSelector"] == selector
        assert rule["spec"]["taint"]["effect"] == "NoSchedule"
        until(lambda: condition(cluster, node)[0] == "True", "the node reports the fault")
        assert cordoned_nodes(cluster) == set(), "its other GPU continues working"
        ask(namespace, node, "bad", GPU)
        ask(namespace, node, "good", OTHER)
        assert until(lambda: given(namespace, "good"), "the other GPU is handed out") == ["gpu-1"]
        assert given(namespace, "bad") == []
        declare_well(cluster, node)
        until(lambda: not rules(cluster, node), "the rule is taken back")
        assert until(lambda: given(namespace, "bad"), "the GPU is handed out again") == ["gpu-0"]
