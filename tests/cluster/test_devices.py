"""A device fails on one node: through the kernel of a virtual machine to the node that is kept out, and back again.

The bare host cannot show it: its kernel has neither kprobes nor modules, and what is written to /dev/kmsg from
outside is a user's line, which the sensor does not believe.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import skips
from tests.cluster.agents import Agent
from tests.cluster.cluster import JOBS, Cluster, Namespace, home, until
from tests.cluster.guest_node import CARD, CARD_UP, GuestNode
from tests.cluster.kinds import KINDS, rank_pods, sized
from tests.cluster.nodes import events_of, kept_out
from tests.cluster.restarts import incidents, policy, wait_for_phase, ways
from tests.vm import kernels
from tests.vm.conftest import GPU, insert_driver, teach
from tests.vm.guest import RDMA_UP, Guest, gpu_slot, idle_card
from tests.vm.packages import Missing

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]
DRIVER, OTHER = "gpu.kcover.test", "0000:5e:00.0"
TWO = KINDS["job"]


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    """A virtual machine with the stub driver and an RDMA card, on the way to the host."""
    try:
        kernel = kernels.prepared(kernels.DEFAULT)
    except Missing as reason:
        skips.skip("vm", str(reason))
    if kernel.stub is None:
        skips.skip("vm", "no stub driver can be built")
    with Guest(kernel, devices=[*CARD, *gpu_slot(), *idle_card()]) as machine:
        insert_driver(machine, kernel.stub)
        teach(machine)
        machine.shell(CARD_UP)
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
    with GuestNode(cluster, guest, f"guest-{uuid.uuid4().hex[:4]}") as found:
        found.run_agent(home(cluster))
        until(lambda: report(cluster, found.name), "the agent in the guest reports", 300)
        yield found
    guest.monitor("set_link idle on")


def report(cluster: Cluster, name: str) -> dict[str, Any]:
    """What the agent of a node says about its devices; empty while it said nothing."""
    found = Namespace(cluster, home(cluster)).items("faultreports")
    return next((each["spec"] for each in found if each["metadata"]["name"] == name), {})


@dataclass(frozen=True)
class Fault:
    """One way in which a device fails, and how it is reported."""

    cause: Callable[[Guest], object]
    code: str
    said: str
    of_card: bool = False
    """The RDMA card's; else the GPU's. A job that continues without it is left alone."""


def lose_gpu(guest: Guest) -> None:
    """The driver's stub prints, as the kernel, what the driver prints."""
    guest.python(f"say('xid 79 {GPU} GPU has fallen off the bus.')")


FAULTS = {
    "xid": Fault(lose_gpu, "xid_79", "fallen off the bus"),
    "pcie": Fault(
        lambda guest: guest.python(f"inject('{GPU}', 0x40000, 0)"), "aer_fatal", "PCIe fatal error"
    ),
    "port": Fault(
        lambda guest: guest.monitor("set_link idle off"), "port_down", "RDMA port plug/1", True
    ),
}


def declare_well(cluster: Cluster, node: GuestNode) -> None:
    """As a person would."""
    command = [str(Path(sys.executable).with_name("kubectl-kcover")), "uncordon", node.name]
    subprocess.run([*command, f"--kubeconfig={cluster.kubeconfig}"], check=True)


def of_node(cluster: Cluster, node: GuestNode) -> dict[str, Any]:
    (found,) = cluster.get("nodes", node.name)
    return found


def condition(cluster: Cluster, node: GuestNode) -> tuple[str, str]:
    """Status and message of the condition that reports a device fault; empty without one."""
    for each in of_node(cluster, node)["status"]["conditions"]:
        if each["type"] == "KcoverDeviceFault":
            return each["status"], each["message"]
    return "", ""


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
        until(lambda: kept_out(cluster) == {node.name}, "the node is kept out")
        check_kept_out(cluster, node, fault.code)
        assert incidents(namespace) == []
        declare_well(cluster, node)
        check_let_in(cluster, node)
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
    check_kept_out(cluster, node, fault.code)
    check_trains_elsewhere(namespace, node)
    declare_well(cluster, node)
    check_let_in(cluster, node)


def check_trains_elsewhere(namespace: Namespace, node: GuestNode) -> None:
    """The job is back whole, without the node, and was never counted as failed."""
    pods = rank_pods(namespace, TWO)
    assert len(pods) == 3
    assert node.name not in {pod["spec"]["nodeName"] for pod in pods}
    for pod in pods:
        namespace.wait_for_log(pod["metadata"]["name"], r"rank \d step 3$")
    (job,) = namespace.get("jobs", "demo")
    assert not job["status"].get("failed")


def check_let_in(cluster: Cluster, node: GuestNode) -> None:
    """A node whose faults a person declared over."""
    until(lambda: condition(cluster, node)[0] == "False", "the condition is taken back")
    until(lambda: not kept_out(cluster), "the node is uncordoned")
    spec = of_node(cluster, node)["spec"]
    assert not spec.get("unschedulable")
    assert "kcover.io/device-fault" not in {taint["key"] for taint in spec.get("taints", ())}


def fatal(cluster: Cluster, node: GuestNode) -> list[tuple[str, str, set[str]]]:
    """Device, fault and pods of each fatal fault that the node reports."""
    devices = report(cluster, node.name).get("devices", ())
    return [(x["device"], x["fault"], set(x.get("pods", ()))) for x in devices if x.get("fatal")]


def check_kept_out(cluster: Cluster, node: GuestNode, code: str) -> None:
    """Condition, cordon, taint and Events of a node whose device failed."""
    spec = of_node(cluster, node)["spec"]
    assert spec["unschedulable"]
    assert "kcover.io/device-fault" in {taint["key"] for taint in spec["taints"]}
    status, message = condition(cluster, node)
    assert status == "True"
    assert code in message
    assert kept_out(cluster) == {node.name}
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


def slice_of(node: GuestNode) -> list[dict[str, Any]]:
    """Two GPUs of a node, as a DRA driver would hand them out, and the class that asks for one of them."""
    group = {"apiVersion": "resource.k8s.io/v1"}
    devices = [
        {"name": name, "attributes": {"resource.kubernetes.io/pciBusID": {"string": address}}}
        for name, address in (("gpu-0", GPU), ("gpu-1", OTHER))
    ]
    pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node.name, "pool": pool, "devices": devices}
    chosen = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    names = {"metadata": {"name": node.name}}
    return [
        {**group, "kind": "ResourceSlice", **names, "spec": spec},
        {**group, "kind": "DeviceClass", **names, "spec": chosen},
    ]


def asking(node: GuestNode, name: str, address: str) -> list[dict[str, Any]]:
    """A claim of one GPU, and a pod that has it."""
    where = f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'
    exactly = {"deviceClassName": node.name, "selectors": [{"cel": {"expression": where}}]}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    container = {"name": "main", "image": "localhost/kcover-train:1", "command": ["sleep", "600"]}
    claims = [{"name": "gpu", "resourceClaimName": name}]
    pod = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container | {"resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": claims,
    }
    return [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        | {"spec": claim},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod},
    ]


def given(namespace: Namespace, claim: str) -> list[str]:
    """The devices that a claim was given; empty while it waits."""
    (found,) = namespace.get("resourceclaims.resource.k8s.io", claim)
    allocation = found.get("status", {}).get("allocation", {})
    return [each["device"] for each in allocation.get("devices", {}).get("results", ())]


@pytest.mark.usefixtures("controller")
def test_a_gpu_that_is_handed_out_alone_is_tainted_alone(
    cluster: Cluster, namespace: Namespace, node: GuestNode
) -> None:
    if not cluster.serves("devicetaintrules.resource.k8s.io"):
        skips.skip("devicetaintrules", "the cluster has no DeviceTaintRule")
    policy(namespace)
    objects = slice_of(node)
    cluster.ctl(
        "apply",
        "--filename=-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )
    try:
        lose_gpu(node.guest)
        (rule,) = until(lambda: rules(cluster, node), "a DeviceTaintRule")
        selector = {"driver": DRIVER, "pool": node.name, "device": "gpu-0"}
        assert rule["spec"]["deviceSelector"] == selector
        assert rule["spec"]["taint"]["effect"] == "NoSchedule"
        until(lambda: condition(cluster, node)[0] == "True", "the node reports the fault")
        assert kept_out(cluster) == set(), "its other GPU continues working"
        for name, address in (("bad", GPU), ("good", OTHER)):
            for each in asking(node, name, address):
                namespace.apply(json.dumps(each))
        assert until(lambda: given(namespace, "good"), "the other GPU is handed out") == ["gpu-1"]
        assert given(namespace, "bad") == []
        declare_well(cluster, node)
        until(lambda: not rules(cluster, node), "the rule is taken back")
        assert until(lambda: given(namespace, "bad"), "the GPU is handed out again") == ["gpu-0"]
    finally:
        for each in objects:
            cluster.run("delete", each["kind"].lower(), node.name)
        cluster.run("delete", "devicetaintrules", f"--selector=kcover.io/node={node.name}")


def rules(cluster: Cluster, node: GuestNode) -> list[dict[str, Any]]:
    """The rules that taint a device of this node."""
    return cluster.get("devicetaintrules", f"--selector=kcover.io/node={node.name}")
