"""Agents that inspect their nodes every second by one check of an operator, which a test breaks and mends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.driver import agents as real_agents
from testbed.driver.cluster import ROOT, Cluster

RELEASE = "app.kubernetes.io/name=kcover-ebpf"
KUBECTL = str(Path(sys.executable).with_name("kubectl-kcover"))
CHECK = "plugin/probe"
PROBE = """#!/bin/sh
[ -e {} ] && echo "the licence is gone" && exit 1
echo fine
"""


@contextmanager
def inspected(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """A folder: a file named after a node makes it fail the check."""
    release = cluster.get("daemonsets", "--all-namespaces", f"--selector={RELEASE}")
    assert not release, "uninstall the release of kcover-ebpf first: helm uninstall"
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    broken, plugins = folder / "broken", folder / "plugins"
    broken.mkdir()
    plugins.mkdir()
    probe = plugins / "probe"
    probe.write_text(PROBE.format(f'"{broken}/$NODE_NAME"'))
    probe.chmod(0o755)
    options = ("--inspect-every=1s", f"--inspect-checks={CHECK}", f"--plugins={plugins}")
    try:
        with real_agents.running(cluster, folder, options=options):
            yield broken
    finally:
        cluster.run("delete", "nodehealths", "--all")


def health(cluster: Cluster, node: str) -> dict[str, Any]:
    """The status of a node's health; empty while it is not reported."""
    found = cluster.get("nodehealths")
    return next((entry["status"] for entry in found if entry["metadata"]["name"] == node), {})


def all_pass(cluster: Cluster, names: Collection[str]) -> bool:
    """Whether each of them was inspected and passed."""
    return {health(cluster, name).get("result") for name in names} == {"pass"}


def of_node(cluster: Cluster, node: str) -> dict[str, Any]:
    """The Node object."""
    (found,) = cluster.get("nodes", node)
    return found


def listed(cluster: Cluster, node: str) -> dict[str, Any]:
    """What `kubectl kcover nodes` says about a node."""
    command = [KUBECTL, "nodes", "-o", "json", f"--kubeconfig={cluster.kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return next(item for item in json.loads(done.stdout)["items"] if item["node"] == node)
