"""Nodes of the cluster under test: who is kept out, and what lies behind one that is on this host."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kcover_ebpf.cluster.nodes import view_of
from kcover_ebpf.controller.nodes import release
from kcover_ebpf.kube.session import connect
from tests.cluster.cluster import Cluster, ClusterError


def kept_out(cluster: Cluster) -> set[str]:
    """Nodes that a controller of ours keeps new pods off."""
    return {node.name for node in map(view_of, cluster.get("nodes")) if node.ours}


def let_in(cluster: Cluster, name: str) -> None:
    """Take back what our controller did to a node, whether or not it runs."""
    (raw,) = cluster.get("nodes", name)
    release(connect(str(cluster.kubeconfig)), view_of(raw))


def inside(node: str, *command: str) -> str:
    """Run a command in the mounts of a node of the test bed, which are those of its kubelet; its output."""
    done = subprocess.run(
        ["nsenter", f"--target={_kubelet(node)}", "--mount", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"{node}: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _kubelet(node: str) -> int:
    wanted = f"--hostname-override={node}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"kubelet") and wanted in words:
            return int(folder.name)
    raise ClusterError(f"the kubelet of {node} does not run on this host")
