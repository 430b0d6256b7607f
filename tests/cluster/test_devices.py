"""A device fails on one node: through the kernel of a virtual machine to the node that is cordoned, and back again.

The bare host cannot show it: its kernel has neither kprobes nor modules, and what is written to /dev/kmsg from
outside is a user's line, which the sensor does not believe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests import skips
from tests.cluster.agents import Agent
from tests.cluster.cluster import JOBS, Cluster, Namespace, until
from tests.cluster.devices import (
    DRIVER,
    OTHER,
    ask,
    check_uncordoned,
    condition,
    declare_well,
    given,
    gpu_machine,
    gpu_node,
    lose_gpu,
    of_node,
    report,
    rules,
    sliced,
)
from tests.cluster.guest_node import GuestNode
from tests.cluster.kinds import KINDS, rank_pods, sized
from tests.cluster.nodes import cordoned_nodes, events_of
from tests.cluster.restarts import incidents, policy, wait_for_phase, ways
from tests.vm.conftest import GPU
from tests.vm.guest import RDMA_UP, Guest, idle_card

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]
TWO = KINDS["job"]


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


def spread(text: str) -> str:
    """The example Job with three pods, which go to three nodes as long as there are as many."""
    rule = (
        "topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, "
        "whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: "
        "{batch.kubernetes.io/job-name: demo}}}]"
    )
    old = "      subdomain: demo"
    assert old in text
    return sized(text, 3).replace(old, f"{old}\n      {rule}")


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_node_whose_device_fails_is_cordoned_until_it_is_declared_well(
    cluster: Cluster, namespace: Namespace, node: GuestNode, card: str, fault: Fault
) -> None:
    device = card if fault.of_card else GPU
    policy(namespace)
    namespace.apply(spread((JOBS / "job.yaml").read_text()))
    for name in namespace.wait_for_pods(TWO.selector, 3):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)
    here = [pod for pod in rank_pods(namespace, TWO) if pod["spec"]["nodeName"] == node.name]
    assert here, "no pod of the job landed in the guest"
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
    incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused", "Observed"), 1, 240)
    status = incident["status"]
    assert status["phase"] == "Recovered", status["timeline"]
    assert (status["verdict"], status["cause"]) == ("DEVICE_FAULT", "device")
    culprit = status["culprit"]
    assert (culprit["device"], culprit["node"]) == (device, node.name)
    assert culprit["pod"] in {pod["metadata"]["name"] for pod in here}
    assert fault.said in status["evidence"][0]["text"]
    assert ways(incident) == ["Replace"]
    assert len(incidents(namespace)) == 1
    check_cordoned(cluster, node, fault.code)
    check_trains_elsewhere(namespace, node)
    declare_well(cluster, node)
    check_uncordoned(cluster, node)


def check_trains_elsewhere(namespace: Namespace, node: GuestNode) -> None:
    """The job is back whole, without the node, and was never counted as failed."""
    pods = rank_pods(namespace, TWO)
    assert len(pods) == 3
    assert node.name not in {pod["spec"]["nodeName"] for pod in pods}
    for pod in pods:
        namespace.wait_for_log(pod["metadata"]["name"], r"rank \d step 3$")
    (job,) = namespace.get("jobs", "demo")
    assert not job["status"].get("failed")


def fatal(cluster: Cluster, node: GuestNode) -> list[tuple[str, str, set[str]]]:
    """Device, fault and pods of each fatal fault that the node reports."""
    devices = report(cluster, node.name).get("devices", ())
    return [(x["device"], x["fault"], set(x.get("pods", ()))) for x in devices if x.get("fatal")]


def check_cordoned(cluster: Cluster, node: GuestNode, code: str) -> None:
    """Condition, cordon, taint and Events of a node whose device failed."""
    spec = of_node(cluster, node)["spec"]
    assert spec["unschedulable"]
    assert "kcover.io/device-fault" in {taint["key"] for taint in spec["taints"]}
    status, message = condition(cluster, node)
    assert status == "True"
    assert code in message
    assert cordoned_nodes(cluster) == {node.name}
    wanted = {"KcoverDeviceFault", "KcoverCordoned"}
    until(
        lambda: events_of(cluster, node.name) >= wanted,
        "the Events, which a thread of their own writes",
    )


def holders(namespace: Namespace, node: GuestNode, device: str) -> set[str]:
    """Pods (uids) on a node that hold a device, as its agent reports."""
    return {
        pod["uid"]
        for each in namespace.items("faultreports")
        if each["spec"]["node"] == node.name
        for pod in each["spec"].get("pods", ())
        if device in pod.get("devices", ())
    }


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
