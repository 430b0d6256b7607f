"""A node whose kernel has a GPU driver: a virtual machine with the real agent, beside the cluster's other nodes.

Its kubelet is played from here, as far as pods and heartbeats go: a pod that is bound to it becomes a process in the
guest, in a control group where a kubelet would have put it, and holds the device files of the GPUs and the RDMA card.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from kcover_ebpf.api import rfc3339
from kcover_ebpf.errors import ApiError
from kcover_ebpf.kube.client import connect
from testbed.driver.cluster import ROOT, Cluster
from tests.vm.guest import Guest, GuestError

HOST = "10.0.2.2"
"""The host, from a guest with QEMU's own network."""
_MAC = "02:00:00:00:00:01"
CARD = ["-netdev", "user,id=api", "-device", f"virtio-net-pci,netdev=api,mac={_MAC},bus=pcie.0"]
CARD_UP = f"""
modprobe virtio_net; sleep 1
card=$(basename $(dirname $(grep -l {_MAC} /sys/class/net/*/address)))
ip address add 10.0.2.15/24 dev $card; ip link set $card up
"""
# a longer sleep would be a rank that hangs, and the other ranks' verdict would come before a port's
_HOLD = """import glob, os, time
names = [*glob.glob('/dev/nvidia[0-9]'), *glob.glob('/dev/infiniband/uverbs*')]
held = [os.open(each, os.O_RDWR) for each in names]
while True:
    time.sleep(300)
"""
_BIG = {"cpu": "64", "memory": "64Gi", "pods": "100"}


class GuestNode:
    """A context manager; `Node` and pods are there as long as it lasts."""

    def __init__(self, cluster: Cluster, guest: Guest, name: str) -> None:
        self._cluster, self.guest, self.name = cluster, guest, name
        self._session = connect(str(cluster.kubeconfig))
        self._path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        self._agent = 0
        self._begun: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}},
            "status": {
                "allocatable": _BIG,
                "capacity": _BIG,
                "conditions": [_condition("Ready", lastHeartbeatTime=_now())],
            },
        }
        self._cluster.ctl("create", "--filename=-", stdin=json.dumps(node))
        metadata = {"name": self.name, "namespace": "kube-node-lease"}
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": _micro()}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        self._session.create(self._path, {**lease, "spec": spec})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        if self._agent:
            self.guest.run("/bin/kill", "-9", str(self._agent))
        self._cluster.run("delete", "lease", self.name, "--namespace=kube-node-lease")
        self._cluster.run("delete", "node", self.name)

    def run_agent(self, namespace: str, *options: str, environ: str = "") -> None:
        """Start the agent in the guest; its report about the node lies in that namespace.

        `environ`: assignments in front of its command. The Node names the boot, as a kubelet writes it.
        """
        boot = self.guest.shell("cat /proc/sys/kernel/random/boot_id").strip()
        patch = {"status": {"nodeInfo": {"bootID": boot}}}
        self._session.merge_patch(f"/api/v1/nodes/{self.name}/status", patch)
        config = yaml.safe_load(self._cluster.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        port = urlsplit(server["server"]).port or 443
        server |= {"server": f"https://{HOST}:{port}", "tls-server-name": "localhost"}
        (self.guest.share / "kubeconfig").write_text(yaml.safe_dump(config))
        command = f"{ROOT}/.venv/bin/kcover-ebpf agent --node={self.name} --namespace={namespace}"
        command += " --kubeconfig=/share/kubeconfig --state-dir=/run/kcover"
        line = " ".join(("exec env", environ, command, *options))
        self._agent = self.guest.start("/bin/sh", "-c", line, log="/share/agent.log")

    # ---- the kubelet

    def _run(self) -> None:
        renewed_s = 0.0
        while not self._stop.wait(0.3):
            with suppress(ApiError):
                if time.monotonic() - renewed_s > 5:
                    renewed = {"spec": {"renewTime": _micro()}}
                    self._session.merge_patch(f"{self._path}/{self.name}", renewed)
                    renewed_s = time.monotonic()
                query = {"fieldSelector": f"spec.nodeName={self.name}"}
                for pod in self._session.list("/api/v1/pods", query).get("items") or ():
                    self._sync(pod)

    def _sync(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        uid, path = metadata["uid"], f"/api/v1/namespaces/{metadata['namespace']}/pods"
        if "deletionTimestamp" in metadata:
            begun_s = self._begun.setdefault(f"end of {uid}", time.monotonic())
            if self._processes(uid) and time.monotonic() - begun_s > 20:
                self.guest.run("/bin/sh", "-c", f"kill -9 $(cat {_group(uid)}/cgroup.procs)")
            if not self._processes(uid):
                self._session.delete(f"{path}/{metadata['name']}", uid, grace_s=0)
        elif uid not in self._begun:
            self._begun[uid] = time.monotonic()
            index = metadata.get("annotations", {}).get(
                "batch.kubernetes.io/job-completion-index", ""
            )
            group = _group(uid)
            script = f'mkdir -p {group}; echo $$ > {group}/cgroup.procs; exec $0 -c "{_HOLD}"'
            self.guest.start(
                *("/usr/bin/env", f"JOB_COMPLETION_INDEX={index}", "/bin/sh", "-c", script),
                "/usr/bin/python3",
                log="/share/pods.log",
            )
            self._session.merge_patch(
                f"{path}/{metadata['name']}/status", {"status": _running(pod)}
            )

    def _processes(self, uid: str) -> bool:
        try:
            return bool(self.guest.shell(f"cat {_group(uid)}/cgroup.procs").strip())
        except GuestError:
            return False


def _identity(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()


def _group(uid: str) -> str:
    """As with the systemd driver; the test bed's own kubelets use cgroupfs."""
    pods = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice"
    pod = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return f"{pods}/{pod}/cri-containerd-{_identity(uid)}.scope"


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    container = pod["spec"]["containers"][0]
    status = {
        "name": container["name"],
        "image": container["image"],
        "imageID": container["image"],
        "containerID": f"containerd://{_identity(pod['metadata']['uid'])}",
        "ready": True,
        "restartCount": 0,
        "started": True,
        "state": {"running": {"startedAt": _now()}},
    }
    kept = [
        condition
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "PodScheduled"
    ]
    ready = [_condition(name) for name in ("Initialized", "ContainersReady", "Ready")]
    return {
        "phase": "Running",
        "conditions": [*kept, *ready],
        "containerStatuses": [status],
        "startTime": _now(),
    }


def _condition(name: str, **more: str) -> dict[str, str]:
    return {"type": name, "status": "True", "lastTransitionTime": _now(), **more}


def _now() -> str:
    return _micro()[:19] + "Z"


def _micro() -> str:
    return rfc3339.to_text(time.time())
