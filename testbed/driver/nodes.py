"""Nodes of the cluster under test: which are cordoned, and what lies behind one that is on this host."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kcover_ebpf.collectives.ras import netns
from kcover_ebpf.controller.node_patches import release
from kcover_ebpf.errors import Conflict
from kcover_ebpf.ids import Pid
from kcover_ebpf.kube.client import connect
from kcover_ebpf.kube.kubelet import PORT
from kcover_ebpf.recovery.nodes.node_plan import view_of
from testbed.cluster.layout import DEFAULT_NAME, MAX_NODES, Bed
from testbed.driver.cluster import Cluster, ClusterError, Namespace


def cordoned_nodes(cluster: Cluster) -> set[str]:
    """Nodes that a controller of ours keeps new pods off."""
    return {node.name for node in map(view_of, cluster.get("nodes")) if node.ours}


def uncordon(cluster: Cluster, name: str) -> None:
    """Take back what our controller did to a node, whether or not it runs."""
    session = connect(str(cluster.kubeconfig))
    for last in (False, False, True):
        (raw,) = cluster.get("nodes", name)
        try:
            release(session, view_of(raw))
            return
        except Conflict:  # the controller, or a kubelet, was quicker
            if last:
                raise


def events_of(cluster: Cluster, node: str) -> set[str]:
    """The reasons of the Events about a node."""
    events = cluster.get("events", "--all-namespaces", "--field-selector=involvedObject.kind=Node")
    return {event["reason"] for event in events if event["involvedObject"]["name"] == node}


@contextmanager
def all_uncordoned(cluster: Cluster) -> Iterator[None]:
    """Nodes that a test's controller cordons are uncordoned at the end: the next test needs all of them."""
    out = cordoned_nodes(cluster)
    try:
        yield
    finally:
        for node in cordoned_nodes(cluster) - out:
            uncordon(cluster, node)


def inside(cluster: Cluster, node: str, *command: str) -> str:
    """Run a command in the mounts of a node of the test bed, which are those of its kubelet; its output."""
    done = subprocess.run(
        ["nsenter", f"--target={_kubelet(cluster, node)}", "--mount", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"{node}: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def pod_logs(cluster: Cluster, node: str) -> Path:
    """The folder of containers' logs of a node of the test bed: on its disk, which lies on this host.

    Not through the root of one of its processes, which takes a capability (CAP_SYS_PTRACE) that no reader of logs has.
    """
    (bed_node,) = (bed_node for bed_node in _bed(cluster).nodes(MAX_NODES) if bed_node.name == node)
    return bed_node.folder / "var/log/pods"


@contextmanager
def kubelet_port(cluster: Cluster, node: str) -> Iterator[int]:
    """A port of this host's loopback that leads to a node's kubelet, to whose network this host has no way."""
    pid = Pid(_kubelet(cluster, node))

    def carry(near: socket.socket) -> None:
        with near, suppress(OSError), netns.connect(("127.0.0.1", PORT), 10.0, pid) as far:
            back = threading.Thread(target=copy, args=(far, near), daemon=True)
            back.start()
            copy(near, far)
            back.join()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=carry, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def still(cluster: Cluster, node: str) -> Iterator[None]:
    """The kubelet of a node of the test bed is stopped, and so leaves the node's status as it is.

    After 40 s the node is not ready any more.
    """
    pid = _kubelet(cluster, node)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def partitioned(cluster: Cluster, node: str) -> Iterator[None]:
    """A node of the test bed has lost its network: its kubelet and its pods run, and reach nothing."""
    control = _bed(cluster).control_netns
    (port,) = re.findall(r"\d+$", node)
    _set_link(control, f"port{port}", "down")
    try:
        yield
    finally:
        _set_link(control, f"port{port}", "up")


def _bed(cluster: Cluster) -> Bed:
    folder = cluster.kubeconfig.parent
    name = re.fullmatch(r"\.testbed(?:-(.+))?", folder.name)
    assert name is not None, "use a cluster that tools/testbed made"
    return Bed.of_checkout(name[1] or DEFAULT_NAME, folder.parent)


def _set_link(namespace: str, device: str, state: str) -> None:
    command = ["ip", "-n", namespace, "link", "set", device, state]
    subprocess.run(command, check=True, capture_output=True)


_ONE_DISK = threading.Lock()
"""A test that freezes a node's disk has the node cordoned: the jobs of other scenarios need the other nodes."""


@contextmanager
def disk(namespace: Namespace) -> Iterator[tuple[str, str]]:
    """(node, folder): a file system on one node that can be frozen; it is let go before the end."""
    cluster = namespace.cluster
    with _ONE_DISK:
        node = min(entry["metadata"]["name"] for entry in cluster.get("nodes"))
        yield from _disk(namespace, node, f"/var/{namespace.name}")


def _disk(namespace: Namespace, node: str, folder: str) -> Iterator[tuple[str, str]]:
    cluster = namespace.cluster
    inside(cluster, node, "mkdir", folder)
    inside(cluster, node, "truncate", "--size=64M", f"{folder}.img")
    inside(cluster, node, "mkfs.ext4", "-q", f"{folder}.img")
    inside(cluster, node, "mount", "-o", "loop", f"{folder}.img", folder)
    try:
        yield node, folder
    finally:
        thaw(cluster, node, folder)
        namespace.ctl("delete", "jobs", "--all", "--cascade=foreground", "--timeout=60s")
        inside(cluster, node, "umount", folder)
        inside(cluster, node, "rm", f"{folder}.img")


def thaw(cluster: Cluster, node: str, folder: str) -> None:
    try:
        inside(cluster, node, "fsfreeze", "--unfreeze", folder)
    except ClusterError as error:
        if "Invalid argument" not in str(error):  # it is not frozen any more
            raise


def _kubelet(cluster: Cluster, node: str) -> int:
    program = os.fsencode(cluster.kubeconfig.parent / "bin/kubelet")
    wanted = f"--hostname-override={node}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == program and wanted in words:
            return int(folder.name)
    raise ClusterError(f"the kubelet of {node} does not run on this host")
