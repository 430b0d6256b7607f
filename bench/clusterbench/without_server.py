"""`python -m bench.clusterbench turn`: what a controller's turn over one gang costs, without an API server.

The controller's own cache and reconciler get the objects of a gang and of the other nodes as the API server would hand
them over, as text. CPU time is that of this process alone, so a busy machine changes it little.
"""

from __future__ import annotations

import json
import resource
import time
from types import SimpleNamespace
from typing import Any

from bench.clusterbench.gang import RANKS, stalled
from bench.clusterbench.load import report_of
from bench.clusterbench.plane import NAMESPACE, SELECTOR
from kcover_ebpf.agent.reports.report_pace import Pace, valid_s
from kcover_ebpf.api import agent_lease, incident
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.incident import Incident, JobRef, Status
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.pods import Container, ContainerKind, Pod
from kcover_ebpf.controller.breaker import Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.main import collect_rarely
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.restart.context import GangPod, TopOwner

_JOB = "llm"
_LABELS = {SELECTOR: _JOB}
_MOST_TURNS = 60
_AGE_S = 900.0
"""Of pods and containers at the fault."""


class _Writer:
    """Keeps in the cache what the controller writes."""

    def create(self, made_incident: Incident) -> dict[str, Any]:
        raw = incident.object_of(made_incident)
        raw["metadata"] |= {
            "uid": made_incident.name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        return raw

    def status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        return {**self.create(known_incident), "status": incident.status_of(status)}

    def guard(self, *_: object) -> None:
        """No finalizer is wanted."""


class _Controller:
    """Cache and reconciler over a gang whose owner is known; its clock is `now_s`."""

    def __init__(self, gang_nodes: int, nodes: int) -> None:
        self.now_s = time.time()
        self.cache = ObjectCache(lambda _: None, wall=lambda: self.now_s)
        pods = tuple(GangPod(_pod(index, self.now_s - _AGE_S)) for index in range(gang_nodes))
        top = TopOwner(JobRef("Job", _JOB, "ju", "batch/v1"), None, None, armed=True)
        owners: Any = SimpleNamespace(of_pods=lambda *_: FoundOwner(top))
        gangs: Any = SimpleNamespace(
            pods=lambda _: pods, shown=lambda _: pods, forget=lambda _: None
        )
        telemetry: Any = SimpleNamespace(created_s={}, publish=lambda *_: None)
        writer: Any = _Writer()
        self.reconciler = GangReconciler(self.cache, gangs, owners, writer, telemetry, Limits())
        self.reconciler.wall = self.cache.wall
        lease_s = valid_s(Pace(nodes).heartbeat_s, fast=False)
        for index in range(nodes):
            name = f"n{index}"
            ready = {"type": "Ready", "status": "True"}
            node = {"metadata": {"name": name}, "status": {"conditions": [ready]}}
            self.cache.on_node(Event(Change.SET, node))
            lease = AgentLease(name, self.now_s, lease_s, frozenset({1}))
            self.cache.on_lease(Event(Change.SET, agent_lease.object_of(lease)))

    def read(self, bodies: list[dict[str, Any]]) -> float:
        """CPU seconds until all these reports are in the cache."""
        for body in bodies:
            body["metadata"] |= {"uid": f"report-{body['metadata']['name']}"}
        texts = [json.dumps(body) for body in bodies]
        begun_s = time.process_time()
        for text in texts:
            self.cache.on_report(Event(Change.SET, json.loads(text)))
        return time.process_time() - begun_s

    def turn(self) -> float:
        """CPU seconds of one."""
        begun_s = time.process_time()
        self.reconciler.reconcile(GangId.of(NAMESPACE, _LABELS))
        return time.process_time() - begun_s

    @property
    def named_rank(self) -> int | None:
        """The rank that its incident names."""
        known = [one.status for one in self.cache.incidents.values() if one.status is not None]
        culprits = [status.culprit for status in known if status.culprit is not None]
        return culprits[0].rank if culprits else None


def _pod(index: int, started_s: float) -> Pod:
    container = Container("main", ContainerKind.MAIN, "", 0, True, started_s)
    return Pod(
        NAMESPACE, f"{_JOB}-{index}", f"u{index}", f"n{index}", "Running", started_s, None, _LABELS,
        {}, (), (container,), True,
    )  # fmt: skip


def turn(nodes: int, gang_nodes: int) -> dict[str, Any]:
    """Reports of a calm gang, then of one with a stopped rank; turns of a second each until that rank is named."""
    collect_rarely()
    controller = _Controller(gang_nodes, nodes)
    pods = [
        {"metadata": {"name": f"{_JOB}-{index}", "uid": f"u{index}"}} for index in range(gang_nodes)
    ]
    numbered = list(enumerate(pods))
    calm_s = controller.read([report_of(at, pod, gang_nodes, "training") for at, pod in numbered])
    calm_turn_s = controller.turn()
    stopped = gang_nodes * RANKS // 3
    bodies = [stalled(at, pod, gang_nodes, stopped) for at, pod in numbered]
    controller.now_s = time.time()
    read_s, turns_s = controller.read(bodies), [controller.turn()]
    while controller.named_rank is None and len(turns_s) < _MOST_TURNS:
        controller.now_s += 1.0
        turns_s.append(controller.turn())
    return {
        "nodes": nodes,
        "gang_nodes": gang_nodes,
        "ranks": gang_nodes * RANKS,
        "calm_cpu_s": {"reports": round(calm_s, 3), "turn": round(calm_turn_s, 3)},
        "reports_mb": round(sum(len(json.dumps(body)) for body in bodies) / 1e6, 1),
        "fault_cpu_s": {"reports": round(read_s, 2), "turns": [round(one, 2) for one in turns_s]},
        "until_named_cpu_s": round(read_s + sum(turns_s), 2),
        "is_right": controller.named_rank == stopped,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, 1),
    }
