"""The simulated agents of agents.go, built and run: when each of them heard which order."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bench.clusterbench.plane import NAMESPACE, pod_status, report_body
from kcover_ebpf.api import agent_lease
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.order import Verb
from kcover_ebpf.kube.client import ApiClient
from testbed.cluster import build as programs

_INCIDENTS = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/incidents"
_REPORTS = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/faultreports"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_VALID_S = 900


def build(folder: Path) -> Path:
    """Compile the program into a folder; its path."""
    made, source = folder / "agents", Path(__file__).with_name("agents.go")
    subprocess.run([*programs.go(), "build", "-o", made, source], check=True)
    return made


class Agents:
    """One agent for each pod of a gang; each has reported, and listens, when this returns."""

    def __init__(
        self,
        program: Path,
        client: ApiClient,
        agents: Sequence[dict[str, Any]],
        *,
        listening: bool = True,
    ) -> None:
        """`agents`: what `obedient` makes of each, or `beating`."""
        self.heard_s: dict[str, list[float]] = defaultdict(list)
        """By verb, when each agent heard an order, which is when it obeys; unix seconds."""
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        json.dump(_settings(client, agents, listening), self.process.stdin)
        self.process.stdin.close()
        said = self._read()
        if said != "up":
            raise RuntimeError(f"the agents did not start: {said}")
        threading.Thread(target=self._listen, daemon=True).start()

    def all_heard(self, verb: Verb) -> list[float]:
        """When each agent heard an order, sorted."""
        return sorted(self.heard_s[verb.value])

    def stop(self) -> None:
        """End them."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _listen(self) -> None:
        while line := self._read():
            verb, _, at_s = line.partition(" ")
            if verb not in {verb.value for verb in Verb}:
                print(f"agents: {line}")
                return
            self.heard_s[verb].append(float(at_s))


def _settings(
    client: ApiClient, agents: Sequence[dict[str, Any]], listening: bool
) -> dict[str, Any]:
    known = client.configuration()
    version = client.list(_INCIDENTS, {"limit": "1"})["metadata"]["resourceVersion"]
    query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "900"}
    return {
        "server": known.host,
        "ca": known.ssl_ca_cert,
        "token": client.authorization()["Authorization"],
        "watch": f"{_INCIDENTS}?{urlencode(query)}" if listening else "",
        "agents": agents,
    }


def obedient(
    job: str, gang: Sequence[dict[str, Any]], by_lease: bool = True
) -> list[dict[str, Any]]:
    """An agent for each pod that carries out orders, and acknowledges in its Lease or in its report."""
    return [
        {
            **_agent(f"n{index}", report_body(job, f"n{index}", [pod]), by_lease),
            "podStatus": f"{_PODS}/{pod['metadata']['name']}/status",
            "restarted": pod_status(1),
        }
        for index, pod in enumerate(gang)
    ]


def beating(
    reports: Sequence[dict[str, Any]], report_every_s: float, lease_every_s: float | None
) -> list[dict[str, Any]]:
    """An agent for each report that repeats it, and its Lease; None: it has none."""
    found = []
    for body in reports:
        made = _agent(body["spec"]["node"], body, lease_every_s is not None)
        change = {"path": made["report"], "type": "application/json-patch+json"}
        beats = [{**change, "body": body, "everyS": report_every_s}]
        if lease_every_s is not None:
            renewal = {"path": made["lease"], "type": "application/merge-patch+json"}
            beats.append({**renewal, "body": made["leaseBody"], "everyS": lease_every_s})
        found.append({**made, "beats": beats})
    return found


def _lease(node: str) -> AgentLease:
    return AgentLease(node, time.time(), _VALID_S, frozenset({1}))


def _agent(node: str, body: dict[str, Any], by_lease: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"report": f"{_REPORTS}/{body['metadata']['name']}", "body": body}
    if by_lease:
        made["lease"] = f"{agent_lease.collection(NAMESPACE)}/{agent_lease.name_of(node)}"
        made["leaseBody"] = agent_lease.object_of(_lease(node))
    return made
