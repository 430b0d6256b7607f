"""The chart, installed by a real helm."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.driver.control_plane import ControlPlane, User

CHART = Path(__file__).resolve().parents[2] / "charts/kcover-ebpf"
RELEASE = "kcover"
FULLNAME = "kcover-ebpf"
"""What the chart names its objects, followed by "-agent" or "-controller"."""
CONTROLLER = f"{FULLNAME}-controller"


@dataclass(frozen=True)
class Helm:
    """helm for one API server."""

    program: Path
    kubeconfig: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run helm; it may fail."""
        command = [str(self.program), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def __call__(self, *arguments: str) -> str:
        """What helm prints; raises AssertionError where it fails."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@dataclass(frozen=True)
class Installed:
    """A release in a cluster with nodes n1 and n2, and an agent's pod on each; nothing runs."""

    plane: ControlPlane
    namespace: str

    def agent(self, node: str) -> User:
        """With the token that the agent of that node would have."""
        return self._in_pod("agent", node)

    def controller(self) -> User:
        """With the token that the controller would have."""
        return self._in_pod("controller", "n1")

    def unbound_agent(self) -> User:
        """With a token of the agent's account that names no pod, and so no node."""
        return User(self.plane, self.plane.token(self.namespace, f"{FULLNAME}-agent"))

    def _in_pod(self, component: str, node: str) -> User:
        pod = make_pod(self.plane, self.namespace, node, f"{FULLNAME}-{component}")
        return User(self.plane, self.plane.token(self.namespace, f"{FULLNAME}-{component}", pod))


def make_pod(plane: ControlPlane, namespace: str, node: str, account: str) -> dict[str, Any]:
    """The pod of that account on that node, made if it is not there."""
    path, name = f"/api/v1/namespaces/{namespace}/pods", f"{account}-{node}"
    container = {"name": "main", "image": "none"}
    spec = {"nodeName": node, "serviceAccountName": account, "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    answer = plane.admin().ask("POST", path, body)
    if answer.code == 409:
        answer = plane.admin().ask("GET", f"{path}/{name}")
    assert answer.code in (200, 201), answer.message
    return answer.body


def kubeconfig(installed: Installed, folder: Path, token: str) -> Path:
    """The administrator's, with this token in place of the certificate."""
    config = json.loads(installed.plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
