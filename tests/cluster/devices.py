"""A virtual machine with a GPU driver as a node: how its GPU fails, and what the cluster shows of it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed import skips
from testbed.driver.cluster import JOBS, Cluster, Namespace, home, until
from testbed.driver.kinds import KINDS, rank_pods, replaced, sized
from testbed.driver.nodes import cordoned_nodes, events_of
from testbed.driver.restarts import incidents, wait_for_phase, ways
from testbed.machines.packages import Missing
from tests.cluster.guest_node import CARD, CARD_UP, GuestNode
from tests.vm import kernels
from tests.vm.conftest import GPU, insert_driver, teach
from tests.vm.guest import Guest, gpu_slot

JOB = KINDS["job"]
DRIVER, OTHER = "gpu.kcover.test", "0000:5e:00.0"


@contextmanager
def gpu_machine(*devices: str, driver_options: str = "") -> Iterator[Guest]:
    """A virtual machine with the stub driver, on the way to the host; skips where there is none."""
    try:
        kernel = kernels.prepared(kernels.DEFAULT)
    except Missing as reason:
        skips.skip("vm", str(reason))
    if kernel.stub is None:
        skips.skip("vm", "no stub driver can be built")
    with Guest(kernel, devices=[*CARD, *gpu_slot(), *devices]) as machine:
        bring_up(machine, driver_options)
        yield machine


def bring_up(guest: Guest, driver_options: str = "") -> None:
    """What has to be done after each boot."""
    stub = kernels.prepared(kernels.DEFAULT).stub
    assert stub is not None
    insert_driver(guest, stub, driver_options)
    teach(guest)
    guest.shell(CARD_UP)


@contextmanager
def gpu_node(
    cluster: Cluster,
    guest: Guest,
    start: Callable[[GuestNode, str], None] = GuestNode.run_agent,
) -> Iterator[GuestNode]:
    """The virtual machine as a node, its agent at work; `start` starts that, given its namespace."""
    with GuestNode(cluster, guest, f"guest-{uuid.uuid4().hex[:4]}") as found:
        start(found, home(cluster))
        until(lambda: report(cluster, found.name), "the agent in the guest reports", 300)
        yield found


def report(cluster: Cluster, name: str) -> dict[str, Any]:
    """What the agent of a node says about its devices; empty while it said nothing."""
    found = Namespace(cluster, home(cluster)).items("faultreports")
    return next((entry["spec"] for entry in found if entry["metadata"]["name"] == name), {})


def lose_gpu(guest: Guest) -> None:
    """The driver's stub prints, as the kernel, what the driver prints."""
    guest.python(f"say('xid 79 {GPU} GPU has fallen off the bus.')")


def declare_well(cluster: Cluster, node: GuestNode) -> None:
    """As a person would."""
    command = [str(Path(sys.executable).with_name("kubectl-kcover")), "uncordon", node.name]
    subprocess.run([*command, f"--kubeconfig={cluster.kubeconfig}"], check=True)


def of_node(cluster: Cluster, node: GuestNode) -> dict[str, Any]:
    (found,) = cluster.get("nodes", node.name)
    return found


def condition(cluster: Cluster, node: GuestNode) -> tuple[str, str]:
    """Status and message of the condition that reports a device fault; empty without one."""
    for other_condition in of_node(cluster, node)["status"]["conditions"]:
        if other_condition["type"] == "KcoverDeviceFault":
            return other_condition["status"], other_condition["message"]
    return "", ""


def check_uncordoned(cluster: Cluster, node: GuestNode) -> None:
    """A node whose faults a person declared over."""
    until(lambda: condition(cluster, node)[0] == "False", "the condition is taken back")
    until(lambda: not cordoned_nodes(cluster), "the node is uncordoned")
    spec = of_node(cluster, node)["spec"]
    assert not spec.get("unschedulable")
    assert "kcover.io/device-fault" not in {taint["key"] for taint in spec.get("taints", ())}


@contextmanager
def sliced(cluster: Cluster, node: GuestNode) -> Iterator[None]:
    """The node's GPUs are handed out one by one, by DRA, as long as the block lasts."""
    objects = _slice_of(node)
    items = {"apiVersion": "v1", "kind": "List", "items": objects}
    cluster.ctl("apply", "--filename=-", stdin=json.dumps(items))
    try:
        yield
    finally:
        for object_ in objects:
            cluster.run("delete", object_["kind"].lower(), node.name)
        cluster.run("delete", "devicetaintrules", f"--selector=kcover.io/node={node.name}")


def _slice_of(node: GuestNode) -> list[dict[str, Any]]:
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


def ask(namespace: Namespace, node: GuestNode, name: str, address: str) -> None:
    """Create a pod that wants one GPU, and its claim, both of this name."""
    for entry in _asking(node, name, address):
        namespace.apply(json.dumps(entry))


def _asking(node: GuestNode, name: str, address: str) -> list[dict[str, Any]]:
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
    return [result["device"] for result in allocation.get("devices", {}).get("results", ())]


def rules(cluster: Cluster, node: GuestNode) -> list[dict[str, Any]]:
    """The rules that taint a device of this node."""
    return cluster.get("devicetaintrules", f"--selector=kcover.io/node={node.name}")


def spread(namespace: Namespace, node: GuestNode, pods: int) -> list[dict[str, Any]]:
    """Start the example Job with so many pods, as many on each node; returns those of this node once all are ready.

    Once a node is cordoned, the others take its share.
    """
    rule = (
        "topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, "
        "whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor, labelSelector: {matchLabels: "
        "{batch.kubernetes.io/job-name: demo}}}]"
    )
    old = "      subdomain: demo"
    text = sized((JOBS / "job.yaml").read_text(), pods)
    namespace.apply(replaced(text, {old: f"{old}\n      {rule}"}))
    for name in namespace.wait_for_pods(JOB.selector, pods):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)
    here = [pod for pod in rank_pods(namespace, JOB) if pod["spec"]["nodeName"] == node.name]
    assert here, "no pod of the job landed in the guest"
    return here


def holders(namespace: Namespace, node: GuestNode, device: str) -> set[str]:
    """Pods (uids) on a node that hold a device, as its agent reports."""
    return {
        pod["uid"]
        for item in namespace.items("faultreports")
        if item["spec"]["node"] == node.name
        for pod in item["spec"].get("pods", ())
        if device in pod.get("devices", ())
    }


def fatal(cluster: Cluster, node: GuestNode) -> list[tuple[str, str, set[str]]]:
    """Device, fault and pods of each fatal fault that the node reports."""
    devices = report(cluster, node.name).get("devices", ())
    return [(x["device"], x["fault"], set(x.get("pods", ()))) for x in devices if x.get("fatal")]


def check_replaced(namespace: Namespace, node: GuestNode, device: str) -> dict[str, Any]:
    """A job lost a device of a node, and was replaced for it, once; returns the Incident's status."""
    incident = wait_for_phase(namespace, ("Recovered", "Failed", "Refused", "Observed"), 1, 300)
    status: dict[str, Any] = incident["status"]
    assert status["phase"] == "Recovered", status["timeline"]
    assert (status["verdict"], status["cause"]) == ("DEVICE_FAULT", "device")
    assert (status["culprit"]["device"], status["culprit"]["node"]) == (device, node.name)
    assert ways(incident) == ["Replace"]
    assert len(incidents(namespace)) == 1
    return status


def check_trains_elsewhere(namespace: Namespace, node: GuestNode, pods: int) -> None:
    """The job is back whole, without the node, and was never counted as failed."""
    found = rank_pods(namespace, JOB)
    assert len(found) == pods
    assert node.name not in {pod["spec"]["nodeName"] for pod in found}
    for pod in found:
        namespace.wait_for_log(pod["metadata"]["name"], r"rank \d step 3$")
    (job,) = namespace.get("jobs", "demo")
    assert not job["status"].get("failed")


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
