"""A virtual machine as a node of a real cluster: what its kernel says of a GPU reaches the pods and the node.

Real: kernel, the driver's door in it, agent, API server, controllers. No kubelet: the test makes the
control groups of the pods and tells their state. Needs KUBECONFIG and kubectl:

    tools/testbed up
    export KUBECONFIG=$PWD/.testbed/kubeconfig PATH=$PWD/.testbed/bin:$PATH
    .venv/bin/python -m pytest tests/vm/test_node.py
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cluster.cluster import Cluster, Namespace
from tests.cluster.restarts import incidents, policy, running
from tests.vm import kernels
from tests.vm.conftest import GPU, insert_driver, stub_of
from tests.vm.guest import Guest, gpu_slot
from tests.vm.packages import ROOT
from tests.vm.sensing import SAY

pytestmark = pytest.mark.family("node")

Figure = Callable[[str, object], None]
T = TypeVar("T")
NODE = "vm-node"
RANKS = 2
PATIENCE_S = 300.0
# QEMU's own network: the guest is .15, this machine's loopback .2
USER_NETWORK = ("-netdev", "user,id=cluster", "-device", "virtio-net-pci,netdev=cluster")
SET_UP = """
modprobe virtio_net; sleep 1; c=$(basename /sys/class/net/e*)
ip address add 10.0.2.15/24 dev $c; ip link set $c up; ip route add default via 10.0.2.2
"""
JOB = f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: demo}}
spec:
  completionMode: Indexed
  completions: {RANKS}
  parallelism: {RANKS}
  backoffLimit: 0
  template:
    metadata: {{labels: {{kcover.io/cascading-recovery: "true"}}}}
    spec:
      nodeName: {NODE}
      tolerations: [{{operator: Exists}}]
      automountServiceAccountToken: false
      restartPolicy: Never
      containers: [{{name: main, image: none}}]
"""
RUN = """
import os, pathlib, subprocess
def run(uid, container, environment, program):
    pods = pathlib.Path("/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice")
    pod = pods / f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    group = pod / f"cri-containerd-{container}.scope"
    group.mkdir(parents=True)
    subprocess.Popen(
        ["/usr/bin/python3", program], env={**os.environ, **environment}, start_new_session=True,
        preexec_fn=lambda: (group / "cgroup.procs").write_text("0"),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
"""


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    chosen, kubectl = os.environ.get("KUBECONFIG"), shutil.which("kubectl")
    if not chosen or kubectl is None:
        pytest.skip("needs a cluster: tools/testbed up, then KUBECONFIG and PATH as it says")
    return Cluster(Path(chosen), Path(kubectl))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """With the node, on which nobody else's pods land; both are gone afterwards."""
    name = f"vm-{secrets.token_hex(3)}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    taint = {"key": "kcover.io/test-vm", "effect": "NoSchedule"}
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    cluster.ctl("create", "namespace", name)
    try:
        cluster.ctl(
            "create", "--filename=-", stdin=json.dumps({**node, "spec": {"taints": [taint]}})
        )
        yield Namespace(cluster, name)
    finally:
        cluster.run("delete", "node", NODE, "--wait=false")
        # no kubelet says that the pods are gone
        cluster.run(f"--namespace={name}", "delete", "jobs", "--all", "--cascade=orphan")
        cluster.run(f"--namespace={name}", "delete", "pods", "--all", "--force")
        cluster.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def machine(prepared: kernels.Prepared, cluster: Cluster) -> Iterator[Guest]:
    """A guest that reaches the API server; the driver is loaded."""
    stub = stub_of(prepared)
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]
    address = urlsplit(server["server"])
    server["server"] = f"https://10.0.2.2:{address.port}"
    server["tls-server-name"] = address.hostname
    with Guest(prepared, devices=[*gpu_slot(), *USER_NETWORK]) as guest:
        guest.shell(SET_UP)
        insert_driver(guest, stub)
        guest.python(SAY)
        guest.python(RUN)
        (guest.share / "kubeconfig").write_text(yaml.safe_dump(config))
        yield guest


def until(look: Callable[[], T | None], what: Callable[[], str]) -> T:
    """The first answer that says something."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.3)
    pytest.fail(f"not within {PATIENCE_S:.0f} s: {what()}", pytrace=False)


def start_job(namespace: Namespace, machine: Guest) -> list[dict[str, Any]]:
    """What a kubelet would do: a control group and a process for each pod, and its state told."""
    namespace.apply(JOB)
    pods = until(
        lambda: found if len(found := namespace.get("pods")) == RANKS else None,
        lambda: "the job has its pods",
    )
    index = "batch.kubernetes.io/job-completion-index"
    pods.sort(key=lambda pod: str(pod["metadata"]["labels"][index]))
    for rank, pod in enumerate(pods):
        container = secrets.token_hex(32)
        # one rank holds the GPU
        words = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        program = str(ROOT / "tests/vm/job.py")
        machine.python(f"run({pod['metadata']['uid']!r}, {container!r}, {words}, {program!r})")
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": "main",
                    "containerID": f"containerd://{container}",
                    "image": "none",
                    "imageID": "none",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}},
                }
            ],
        }
        patch = json.dumps({"status": status})
        name = f"pod/{pod['metadata']['name']}"
        namespace.ctl("patch", name, "--subresource=status", "--type=merge", f"--patch={patch}")
    return pods


def start_agent(namespace: Namespace, machine: Guest) -> None:
    command = (
        f"{ROOT}/.venv/bin/kcover-ebpf agent --node={NODE} --namespace={namespace.name} "
        "--kubeconfig=/share/kubeconfig --state-dir=/run/kcover 2>/share/agent.log"
    )
    machine.start("/bin/sh", "-c", command, log="/dev/null")


def specs(namespace: Namespace, what: str) -> list[dict[str, Any]]:
    """Reports that say something of `what`: job or devices."""
    found = namespace.get("faultreports.kcover.io")
    return [each["spec"] for each in found if each["spec"].get(what)]


def trains(namespace: Namespace) -> bool:
    return any(
        each.get("verdict", {}).get("cause") == "training" for each in specs(namespace, "job")
    )


def device_fault(namespace: Namespace) -> dict[str, Any] | None:
    found = [each.get("status", {}) for each in incidents(namespace)]
    return next((each for each in found if each.get("verdict") == "DEVICE_FAULT"), None)


def kept_out(cluster: Cluster) -> dict[str, str] | None:
    """The node's condition, once new pods are kept off."""
    (node,) = cluster.get("nodes", NODE)
    ours = [each for each in node["status"]["conditions"] if each["type"] == "KcoverDeviceFault"]
    return ours[0] if ours and node["spec"].get("unschedulable") else None


def test_a_fatal_xid_in_the_kernel_of_a_node(
    cluster: Cluster,
    namespace: Namespace,
    machine: Guest,
    tmp_path: Path,
    record_property: Figure,
) -> None:
    log = machine.share / "agent.log"
    policy(namespace, action="Observe")
    with running(namespace, tmp_path / "controller.log") as controller:
        start_agent(namespace, machine)
        pods = start_job(namespace, machine)
        until(lambda: trains(namespace), lambda: f"training: {log.read_text()}")
        begun_s = time.time()
        machine.python(f"say('xid 79 {GPU} GPU has fallen off the bus.')")
        incident = until(lambda: device_fault(namespace), lambda: f"incident: {log.read_text()}")
        record_property("to_incident_s", round(time.time() - begun_s, 1))
        condition = until(lambda: kept_out(cluster), lambda: f"cordon: {controller.log}")
        record_property("to_cordon_s", round(time.time() - begun_s, 1))
    holder = pods[0]["metadata"]
    assert incident["culprit"]["pod"] == holder["name"]
    assert (incident["culprit"]["node"], incident["culprit"]["device"]) == (NODE, GPU)
    assert "fallen off the bus" in incident["evidence"][0]["text"]
    assert condition["status"] == "True"
    assert "xid_79" in condition["message"]
    (report,) = specs(namespace, "devices")
    (device,) = report["devices"]
    assert (device["device"], device["fatal"], device["pods"]) == (GPU, True, [holder["uid"]])
