"""The project as its users install it: the image in the nodes' store, the chart by helm."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kcover_ebpf import __version__
from tests.cluster.cluster import ROOT, Cluster, ClusterError

NAMESPACE = "kcover-system"
RELEASE = "kcover-ebpf"
IMAGE = f"localhost/kcover-ebpf:{__version__}"


@dataclass(frozen=True)
class Release:
    """An installed release; `ready_s` is the time from `helm install` until all pods were ready."""

    cluster: Cluster
    helm: str
    ready_s: float

    def upgrade(self, *values: str) -> None:
        """`helm upgrade`, and wait until the new pods are ready."""
        _helm(self.cluster, self.helm, "upgrade", "--reuse-values", *values)

    def ctl(self, *arguments: str) -> str:
        """The output of kubectl in the release's namespace."""
        return self.cluster.ctl(f"--namespace={NAMESPACE}", *arguments)


def provide_image(bed: str) -> str:
    """Build the image and load it on every node of the test bed; its name.

    KCOVER_TEST_IMAGE names one that the nodes have, or can pull.
    """
    if given := os.environ.get("KCOVER_TEST_IMAGE"):
        return given
    for command in (
        [str(ROOT / "tools/image"), "build"],
        [str(ROOT / "tools/testbed"), "load", "--name", bed, "build/image/kcover-ebpf.tar"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr or done.stdout
    return IMAGE


@contextmanager
def installed(cluster: Cluster, helm: str, image: str, *values: str) -> Iterator[Release]:
    """`helm install`; uninstalled at the end."""
    repository, _, tag = image.rpartition(":")
    labels = ("pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    cluster.run("create", "namespace", NAMESPACE)
    cluster.ctl("label", "namespace", NAMESPACE, *labels)
    named = [f"image.repository={repository}", f"image.tag={tag}", "image.pullPolicy=Never"]
    options = [part for value in named for part in ("--set", value)]
    started = time.monotonic()
    try:
        _helm(cluster, helm, "install", *options, *values)
        yield Release(cluster, helm, time.monotonic() - started)
    finally:
        _run(cluster, helm, "uninstall", RELEASE, "--wait")


def _helm(cluster: Cluster, helm: str, verb: str, *options: str) -> None:
    chart = str(ROOT / "charts/kcover-ebpf")
    done = _run(cluster, helm, verb, RELEASE, chart, "--wait", "--timeout=8m", *options)
    if done.returncode != 0:
        pods = cluster.run("get", "pods", f"--namespace={NAMESPACE}", "--output=wide").stdout
        raise ClusterError(f"helm {verb}: {done.stderr}\n{pods}")


def _run(cluster: Cluster, helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [helm, f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
