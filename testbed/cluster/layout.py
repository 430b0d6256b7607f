"""Where everything of one test bed is, and what it is called; pure.

Several test beds can run on one machine: everything that the machine has only once (network namespaces,
cgroups, the mark in /run) carries the test bed's name. Addresses need not differ, because every
test bed has its own wires.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "default"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
MAX_NODES = 9

CONTROL_ADDRESS = "10.90.0.1"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
POD_RANGE = "10.88.0.0/16"
API_PORT = 6443
"""Of the API server inside; the port on the host's loopback is in the state, as it may be taken."""

TRAIN_IMAGE = "localhost/kcover-train:1"
PAUSE_IMAGE = "localhost/kcover-pause:1"


def cache_folder() -> Path:
    """What is expensive to make and belongs to no checkout: programs and images."""
    if chosen := os.environ.get("KCOVER_CACHE"):
        return Path(chosen).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kcover-ebpf/testbed"


@dataclass(frozen=True, slots=True)
class Node:
    """One node: a network, mount and host name space with its own containerd and kubelet."""

    bed: Bed
    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def netns(self) -> str:
        return f"{self.bed.prefix}-{self.name}"

    @property
    def address(self) -> str:
        return f"10.90.0.{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.88.{self.number}.0/24"

    @property
    def folder(self) -> Path:
        return self.bed.folder / self.name

    @property
    def cgroup(self) -> str:
        """Holds all of the node; the kubelet makes those of the pods in it."""
        return f"{self.bed.cgroup}/{self.name}"

    @property
    def components_cgroup(self) -> str:
        """Holds containerd, its shims and the kubelet."""
        return f"{self.cgroup}/components"


@dataclass(frozen=True, slots=True)
class Bed:
    """One test bed; all its files are in `folder`."""

    name: str
    folder: Path

    @classmethod
    def of_checkout(cls, name: str = DEFAULT_NAME, checkout: Path = CHECKOUT) -> Bed:
        """The test bed of that name that belongs to a checkout."""
        suffix = "" if name == DEFAULT_NAME else f"-{name}"
        return cls(name, checkout / f".testbed{suffix}")

    @property
    def prefix(self) -> str:
        return f"kcover-{self.name}"

    @property
    def mark(self) -> Path:
        """A link to the folder of the one test bed of this name on this machine."""
        return Path("/run") / f"{self.prefix}.testbed"

    @property
    def control_netns(self) -> str:
        return f"{self.prefix}-control"

    @property
    def cgroup(self) -> str:
        """Holds every process of the test bed; relative to each hierarchy's mount."""
        return self.prefix

    @property
    def control_cgroup(self) -> str:
        return f"{self.cgroup}/control"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def etc(self) -> Path:
        """Generated configuration and the kubeconfig files of the components."""
        return self.folder / "etc"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def api_socket(self) -> Path:
        """Joins the host and the control plane's network, between which there is no route."""
        return self.folder / "api.sock"

    def nodes(self, count: int) -> list[Node]:
        return [Node(self, number) for number in range(1, count + 1)]
