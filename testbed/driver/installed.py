"""The project as its users install it: the image in the nodes' store, the chart by helm."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kcover_ebpf import __version__
from testbed.cluster.layout import cache_folder
from testbed.driver.cluster import ROOT, Cluster, ClusterError

NAMESPACE = "kcover-system"
RELEASE = "kcover-ebpf"
IMAGE = f"localhost/kcover-ebpf:{__version__}"
CHART = ROOT / "charts/kcover-ebpf"
PARTS = ("daemonset/kcover-ebpf-agent", "deployment/kcover-ebpf-controller")


@dataclass(frozen=True)
class Release:
    """An installed release; `began_s` is when `helm install` was started, monotonic."""

    cluster: Cluster
    began_s: float

    def wait_until_ready(self) -> float:
        """Seconds from `helm install` until all pods were ready."""
        for part in PARTS:
            self.ctl("rollout", "status", part, "--timeout=110s")
        return time.monotonic() - self.began_s

    def upgrade(self, *values: str) -> None:
        """`helm upgrade`, and wait until the new pods are ready."""
        options = ("--reuse-values", "--wait", "--timeout=8m", *values)
        _helm(self.cluster, "upgrade", CHART, *options)

    def upgrade_to(self, chart: Path, *values: str) -> None:
        """`helm upgrade` to another chart with its own defaults, not waited for."""
        _helm(self.cluster, "upgrade", chart, "--set=image.pullPolicy=Never", *values)

    def ctl(self, *arguments: str) -> str:
        """The output of kubectl in the release's namespace."""
        return self.cluster.ctl(f"--namespace={NAMESPACE}", *arguments)


def provide_image(cluster: Cluster) -> str:
    """Build the image and load it on every node of the test bed; its name.

    KCOVER_TEST_IMAGE names one that the nodes have, or can pull.
    """
    if given := os.environ.get("KCOVER_TEST_IMAGE"):
        return given
    build = image_build()
    out, err = build.communicate()
    assert build.returncode == 0, err or out
    command = cluster.testbed("load", str(ROOT / "build/image/kcover-ebpf.tar"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return IMAGE


@cache
def image_build() -> subprocess.Popen[str]:
    """The build of the image, begun by the first to ask; its base and layers are kept for all checkouts."""
    kept = os.environ.get("KCOVER_IMAGE_CACHE") or str(cache_folder() / "project-image")
    return subprocess.Popen(
        [str(ROOT / "tools/image"), "build"],
        cwd=ROOT,
        env=os.environ | {"KCOVER_IMAGE_CACHE": kept},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def installed(cluster: Cluster, image: str, *values: str, chart: Path = CHART) -> Iterator[Release]:
    """`helm install`, not waited for; uninstalled at the end."""
    repository, _, tag = image.rpartition(":")
    labels = ("pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    cluster.run("create", "namespace", NAMESPACE)
    cluster.ctl("label", "namespace", NAMESPACE, *labels)
    named = [f"image.repository={repository}", f"image.tag={tag}", "image.pullPolicy=Never"]
    options = [part for value in (*named, *values) for part in ("--set", value)]
    # of tests that were killed
    _run(cluster, "uninstall", RELEASE, "--ignore-not-found", "--no-hooks", "--wait")
    release = Release(cluster, time.monotonic())
    try:
        _helm(cluster, "install", chart, *options)
        yield release
    finally:
        done = _run(cluster, "uninstall", RELEASE, "--ignore-not-found", "--wait")
        if done.returncode != 0:
            log = release.cluster.run(
                "logs", f"--namespace={NAMESPACE}", "job/kcover-ebpf-withdraw", "--tail=20"
            )
            _run(cluster, "uninstall", RELEASE, "--no-hooks", "--wait")
            raise ClusterError(f"helm uninstall: {done.stderr}\n{log.stdout}")


def _helm(cluster: Cluster, verb: str, chart: Path, *options: str) -> None:
    done = _run(cluster, verb, RELEASE, str(chart), *options)
    if done.returncode != 0:
        pods = cluster.run("get", "pods", f"--namespace={NAMESPACE}", "--output=wide").stdout
        raise ClusterError(f"helm {verb}: {done.stderr}\n{pods}")


def _run(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [cluster.helm, f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
