"""A node: own network, mounts and host name, with the real containerd, kubelet and kube-proxy.

Inside, /var and /run are the node's own, so that the usual paths (/var/lib/kubelet,
/run/containerd/containerd.sock, a hostPath of a DaemonSet) are where a node has them, and two nodes
do not meet in them. Processes and cgroups are those of the machine, as on a real node. All
mounts vanish with the last process of the node.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from testbed.cluster import cgroups, components, config, images, network, pki, shell
from testbed.cluster.components import Component
from testbed.cluster.layout import Node
from testbed.cluster.probes import HttpProbe, SocketProbe
from testbed.cluster.state import State

CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
READY = Path("/run/node-ready")


def parts(state: State, node: Node) -> list[Component]:
    """What runs on a node, in the order of their start."""
    return [holder(state, node), containerd(state, node), kubelet(state, node), proxy(state, node)]


def holder(state: State, node: Node) -> Component:
    """The process that keeps a node's namespaces; the rest of the node is started inside them."""
    folder = shlex.quote(str(node.folder))
    mounts = "\n".join(
        f"mount --bind -o ro {shlex.quote(layer.path)} /var/lib/containerd/{layer.place}"
        for layer in images.layers()
    )
    script = f"""set -e
mount -t overlay overlay -o lowerdir=/var,upperdir={folder}/var,workdir={folder}/work /var
mkdir -p /var/lib/containerd /var/lib/kubelet /var/log/pods
mount --bind {folder}/containerd /var/lib/containerd
mount --bind {folder}/kubelet /var/lib/kubelet
{mounts}
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
mount --make-rshared /
hostname {node.name}
touch {READY}
exec sleep infinity
"""
    command = [*network.entered(node.netns), "unshare", "--mount", "--uts", "sh", "-c", script]
    return _component(node, "holder", command, lambda: path(state, node, READY).exists())


def entered(state: State, node: Node) -> list[str | Path]:
    """The command prefix that runs a program on the node."""
    namespaces = f"/proc/{_holder_pid(state, node)}/ns"
    return [*network.entered(node.netns), f"--mount={namespaces}/mnt", f"--uts={namespaces}/uts"]


def path(state: State, node: Node, inside: Path) -> Path:
    """A path of the node, as seen from the host."""
    return Path(f"/proc/{_holder_pid(state, node)}/root{inside}")


def containerd(state: State, node: Node) -> Component:
    settings = node.bed.etc / f"{node.name}-containerd.toml"
    command = [*entered(state, node), "containerd", "--config", settings]
    probe = SocketProbe(path(state, node, CONTAINERD_SOCKET))
    return _component(node, "containerd", command, probe)


def kubelet(state: State, node: Node) -> Component:
    etc = node.bed.etc
    command = [
        *entered(state, node),
        node.bed.bin / "kubelet",
        f"--kubeconfig={etc / f'{node.name}.kubeconfig'}",
        f"--config={etc / f'{node.name}-kubelet.yaml'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        "--cert-dir=/var/lib/kubelet/pki",
    ]
    probe = HttpProbe(node.netns, "http://127.0.0.1:10248/healthz")
    return _component(node, "kubelet", command, probe)


def proxy(state: State, node: Node) -> Component:
    settings = node.bed.etc / f"{node.name}-kube-proxy.yaml"
    command = [*entered(state, node), node.bed.bin / "kube-proxy", f"--config={settings}"]
    probe = HttpProbe(node.netns, "http://127.0.0.1:10256/livez")
    return _component(node, "kube-proxy", command, probe)


def prepare(state: State, node: Node) -> None:
    """Network, cgroups, identity, disk and settings of the node, or what is missing of them."""
    network.create_node(node, state.bed.nodes(state.nodes))
    cgroups.create(node.components_cgroup)
    cgroups.weigh(node.cgroup, os.cpu_count() or 1)
    pki.create_node_identity(node)
    for name in ("var", "work", "kubelet"):
        (node.folder / name).mkdir(parents=True, exist_ok=True)
    if not (node.folder / "containerd").exists():
        images.copy_store(node.folder / "containerd")
    config.write_node(node)


def ensure(state: State, node: Node) -> None:
    """Start the node, or what is missing of it; if the holder died, all of it again."""
    held = state.processes.get(f"{node.name}-holder")
    if held is not None and not held.alive():
        stop(state, node)
    prepare(state, node)
    for component in (holder, containerd, kubelet, proxy):
        components.ensure(state, component(state, node))


def stop(state: State, node: Node) -> None:
    """As if its power failed: processes and cgroups of the node are gone, its disk stays.

    A kubelet that finds cgroups of containers that its runtime does not know waits 3 s for each of them.
    """
    cgroups.kill(node.cgroup)
    cgroups.remove(node.cgroup)
    for part in parts(state, node):
        state.processes.pop(part.name, None)
    state.save()


def _component(node: Node, name: str, command: shell.Words, probe: components.Probe) -> Component:
    return Component(f"{node.name}-{name}", node.components_cgroup, command, probe)


def _holder_pid(state: State, node: Node) -> int:
    """0 while there is none: no such process, so that nothing is healthy."""
    process = state.processes.get(f"{node.name}-holder")
    return process.pid if process is not None else 0
