"""A real cluster for tests: through kubectl, as its user would, and every wait is bounded."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kcover_ebpf.kube.client import ApiClient, connect
from testbed import skips

JOBS = Path(__file__).with_name("jobs")
ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "testbed/cluster/train.py"
PATIENCE_S = 120.0
_NOT_REACHED, _TRIES = "net/http: TLS handshake timeout", 3
"""What kubectl says where the busy server took no request: it is asked so often."""
_BED = re.compile(r"\.testbed(?:-(.+))?")
T = TypeVar("T")


class ClusterError(AssertionError):
    """kubectl failed, or something did not happen in time."""


def until(reached: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    """The first answer that says something; raises ClusterError, with `what`, where none comes in time."""
    deadline = time.monotonic() + timeout_s
    while not (found := reached()):
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.3)
    return found


@dataclass(frozen=True)
class Cluster:
    """A cluster that tests may use, each in its own namespace."""

    kubeconfig: Path
    kubectl: Path

    def run(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; it may fail."""
        command = [str(self.kubectl), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def ctl(self, *arguments: str, stdin: str | None = None, timeout_s: float = PATIENCE_S) -> str:
        """What kubectl prints; raises ClusterError when it fails."""
        for _ in range(_TRIES):
            done = self.run(*arguments, stdin=stdin, timeout_s=timeout_s)
            if _NOT_REACHED not in done.stderr:
                break
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects that `kubectl get` finds; for one by its name a list of one."""
        found: dict[str, Any] = json.loads(self.ctl("get", *arguments, "--output=json"))
        items: list[dict[str, Any]] = found.get("items", [found])
        return items

    def testbed(self, verb: str, *words: str) -> list[str]:
        """A command of the `tools/testbed` that made this cluster; skips the test on any other cluster."""
        folder = self.kubeconfig.parent
        program, name = folder.parent / "tools/testbed", _BED.fullmatch(folder.name)
        if name is None or not program.exists():
            skips.skip("testbed", "use a cluster that tools/testbed made")
        # from its own checkout, whose modules it is to run
        there = ["env", f"--chdir={folder.parent}", str(program)]
        return [*there, verb, "--name", name[1] or "default", *words]

    def grow(self, nodes: int) -> None:
        """Have the test bed add nodes until there are this many."""
        if len(self.get("nodes")) < nodes:
            command = self.testbed("up", f"--nodes={nodes}", "--controllers=none")
            subprocess.run(command, check=True, capture_output=True)

    @property
    def helm(self) -> str:
        """The program that the test bed brings."""
        return str(self.kubeconfig.parent / "bin/helm")

    def serves(self, resource: str) -> bool:
        """Whether the API server knows a resource, such as pytorchjobs.kubeflow.org."""
        return self.run("get", resource, "--all-namespaces", "--output=name").returncode == 0

    @property
    def arms_pods(self) -> bool:
        """Whether it is new enough for the policy that gives armed pods the kubelet's rule."""
        return self.serves("mutatingadmissionpolicies.admissionregistration.k8s.io")


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test."""

    cluster: Cluster
    name: str

    def ctl(self, *arguments: str, stdin: str | None = None, timeout_s: float = PATIENCE_S) -> str:
        """`Cluster.ctl` in this namespace."""
        namespace = f"--namespace={self.name}"
        return self.cluster.ctl(namespace, *arguments, stdin=stdin, timeout_s=timeout_s)

    def get(self, *arguments: str) -> list[dict[str, Any]]:
        """`Cluster.get` in this namespace."""
        return self.cluster.get(f"--namespace={self.name}", *arguments)

    def apply(self, manifest: str) -> None:
        """Apply the objects; tries again while a webhook that was just installed is not served."""
        deadline = time.monotonic() + 30
        while True:
            done = self.cluster.run(
                "apply", f"--namespace={self.name}", "--filename=-", stdin=manifest
            )
            if done.returncode == 0:
                return
            if "failed calling webhook" not in done.stderr or time.monotonic() > deadline:
                raise ClusterError(done.stderr.strip())
            time.sleep(1)

    def start(self, job: str) -> None:
        """Start the example `jobs/<job>.yaml`."""
        self.apply((JOBS / f"{job}.yaml").read_text())

    def wait(self, thing: str, condition: str, timeout_s: float = PATIENCE_S) -> None:
        """Watch until `thing` (such as pod/a) meets a condition of `kubectl wait --for`."""
        limit = f"--timeout={timeout_s:.0f}s"
        self.ctl("wait", thing, f"--for={condition}", limit, timeout_s=timeout_s + 10)

    def items(self, plural: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of this namespace, without starting a kubectl, which costs a tenth of a second of CPU time.

        `plural`: pods, or that of a resource of kcover.io.
        """
        group = "/api/v1" if plural == "pods" else "/apis/kcover.io/v1alpha1"
        path = f"{group}/namespaces/{self.name}/{plural}"
        found = _session(self.cluster.kubeconfig).list(path, {"labelSelector": selector})
        return list(found.get("items") or ())

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """The pods, by label selector; those that are being deleted too."""
        return self.items("pods", selector)

    def wait_for_log(
        self, pod: str, pattern: str, timeout_s: float = PATIENCE_S, container: str = ""
    ) -> re.Match[str]:
        """Follow a pod's log until a line matches; raises ClusterError with its end when none does."""
        command = [
            str(self.cluster.kubectl), f"--kubeconfig={self.cluster.kubeconfig}",
            f"--namespace={self.name}", "logs", "--follow", pod,
            *([f"--container={container}"] if container else []),
        ]  # fmt: skip
        deadline = time.monotonic() + timeout_s
        said = ""
        while time.monotonic() < deadline:  # the log can end because its container starts again
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as tail:
                try:
                    said = ""
                    for text in _chunks(tail, deadline):
                        said += text
                        if match := re.search(pattern, said, re.MULTILINE):
                            return match
                finally:
                    tail.kill()
            time.sleep(0.5)
        raise ClusterError(f"{pod} did not log {pattern!r} in {timeout_s:.0f} s: {said[-2000:]}")

    def wait_for_pods(self, selector: str, count: int, timeout_s: float = PATIENCE_S) -> list[str]:
        """Wait until this many pods exist, in any phase; returns their names."""
        deadline = time.monotonic() + timeout_s
        while True:
            names = [pod["metadata"]["name"] for pod in self.pods(selector)]
            if len(names) >= count:
                return names
            if time.monotonic() > deadline:
                raise ClusterError(f"{count} pods expected, only {names} came up")
            time.sleep(0.5)

    def wait_for_steps(self, selector: str, count: int, step: int, timeout_s: float = 180) -> None:
        """Wait until `count` pods are there and each has trained `step` steps."""
        deadline = time.monotonic() + timeout_s
        for name in self.wait_for_pods(selector, count, timeout_s):
            left = max(1.0, deadline - time.monotonic())
            self.wait(f"pod/{name}", "condition=Ready", left)
            self.wait_for_log(name, rf"rank \d+ step {step}$", left)


@cache
def _session(kubeconfig: Path) -> ApiClient:
    return connect(str(kubeconfig))


def titled(cluster: Cluster, title: str) -> Namespace:
    """A namespace that is not there yet, called after the title."""
    readable = re.sub(r"[^a-z0-9]+", "-", title.lower())[:40].strip("-")
    return Namespace(cluster, f"{readable}-{uuid.uuid4().hex[:6]}")


def home(cluster: Cluster) -> str:
    """The namespace of agents and controllers that run outside of a chart; made where it is missing, never deleted.

    It is one for both, as in a release: a controller reads the Leases of the agents in its own.
    """
    name = "kcover-programs"
    cluster.run("create", "namespace", name)
    return name


@contextmanager
def made(namespace: Namespace) -> Iterator[Namespace]:
    """The namespace, with the training program; deleted afterwards, which is not waited for."""
    namespace.cluster.ctl("create", "namespace", namespace.name)
    try:
        namespace.ctl("create", "configmap", "train", f"--from-file={TRAIN}")
        yield namespace
    finally:
        # before the namespace goes, which would give the ranks their 30 s
        namespace.ctl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
        namespace.cluster.ctl("delete", "namespace", namespace.name, "--wait=false")


def _chunks(tail: subprocess.Popen[bytes], deadline: float):
    """What the process says, as it says it, until it ends or the time is over."""
    assert tail.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(tail.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                return
            text = os.read(tail.stdout.fileno(), 1 << 16)
            if not text:
                return
            yield text.decode(errors="replace")
