"""A cluster small enough to be right: job controller, kubelets and agents, as far as a restart meets them.

What would be counted against us in a real cluster ends the job here: a pod that dies or is deleted while
the job is not suspended, and a job resumed while old pods are there. Time continues in ticks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kcover_ebpf.api import incident
from kcover_ebpf.api.codec import decode
from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.order import Verb

TICK_S = 0.25
START_S = 10_000.0


@dataclass
class SimPod:
    name: str
    uid: str
    node: str
    created_s: float
    index: int
    deleted_s: float | None = None
    grace_s: float = 30.0
    phase: str = "Running"
    restarts: int = 0
    started_s: float | None = None
    ready: bool = True
    process: str = "running"
    """running, stopped, dead, making, gone; "stuck" is state D."""
    died_s: float = 0.0


@dataclass
class World:
    """What happens without us: the job's controller, the kubelets, and agents that carry out orders."""

    method: str = "suspend"
    count: int = 4
    in_place_rule: bool = True
    making_s: float = 0.5
    """How long a kubelet takes to make a container."""
    agents: frozenset[str] = frozenset({"n0", "n1"})
    deaf: frozenset[str] = frozenset()
    """Nodes whose agent reports, and carries out no order."""
    stuck_index: int | None = None
    """This rank is in state D until `thaw_s`."""
    thaw_s: float = 1e9
    unreachable: frozenset[str] = frozenset()
    """Nodes whose kubelet does not answer."""
    fenced: frozenset[str] = frozenset()
    """Nodes that carry the taint out-of-service."""
    kept_s: float = 0.0
    """A finalizer keeps the object of a pod for so long after its processes are gone."""
    launcher: int | None = None
    """This pod holds no rank, and is alone on node n9."""
    helps: bool = True
    """Training makes progress after a restart."""
    policy: FaultPolicy = field(default_factory=FaultPolicy)
    crashes: set[int] = field(default_factory=set)
    """The controller dies at these calls of `_point`."""
    outages: tuple[tuple[float, float], ...] = ()
    """The API server is away from .. to, seconds after the start."""
    now_s: float = START_S
    suspended: bool = False
    suspended_by: str | None = None
    version: int = 1
    ended: str | None = None
    status: dict[str, Any] | None = None
    pods: list[SimPod] = field(default_factory=list)
    acked: dict[str, list[Ack]] = field(default_factory=dict)
    refuses: Mapping[str, AckResult] = field(default_factory=dict)
    """Agents that answer so, and do nothing."""
    resume_at: dict[str, float] = field(default_factory=dict)
    points: int = 0
    log: list[str] = field(default_factory=list)
    cordoned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._uids = itertools.count(1)
        self._read: tuple[Any, incident.Status] | None = None
        self.make_pods()
        for pod in self.pods:
            pod.created_s = START_S - 100
            pod.started_s = START_S - 90
            if pod.index == self.stuck_index:
                pod.process = "stuck"

    def make_pods(self) -> None:
        here = {pod.index for pod in self.pods if pod.phase == "Running"}
        for index in range(self.count):
            if index not in here:
                uid = f"u{next(self._uids)}"
                node = "n9" if index == self.launcher else f"n{index % 2}"
                pod = SimPod(f"j-{index}", uid, node, self.now_s, index)
                pod.ready = False
                self.pods.append(pod)
                self.log.append(f"{self.now_s - START_S:.2f} new {uid}")

    @property
    def api(self) -> bool:
        since_s = self.now_s - START_S
        return not any(begin <= since_s < end for begin, end in self.outages)

    def tick(self) -> None:
        self.now_s += TICK_S
        self._agents()
        self._kubelets()
        if self.api:
            self._job_controller()

    def _fail(self, why: str) -> None:
        if self.ended is None:
            self.ended = "Failed"
            self.log.append(f"{self.now_s - START_S:.2f} FAILED: {why}")

    def _job_controller(self) -> None:
        if self.ended:
            return
        if self.method == "suspend":
            if self.suspended:
                for pod in self.pods:
                    if pod.deleted_s is None:
                        self.mark(pod, pod.grace_s)
            elif any(pod.deleted_s is not None for pod in self.pods):
                self._fail("a pod is being deleted and the job is not suspended")
            else:
                self.make_pods()
            return
        if self.method == "leader":
            self._follow_the_leader()
        if not any(pod.deleted_s is not None for pod in self.pods):
            self.make_pods()

    def _follow_the_leader(self) -> None:
        leaders = [pod for pod in self.pods if pod.index == 0]
        if any(pod.deleted_s is not None for pod in leaders):
            for pod in self.pods:
                if pod.created_s < max(leader.created_s for leader in leaders) + 1:
                    self.mark(pod, pod.grace_s)

    def mark(self, pod: SimPod, grace_s: float) -> None:
        if pod.deleted_s is None:
            pod.deleted_s = self.now_s + max(grace_s, 2.0)
            self.log.append(f"{self.now_s - START_S:.2f} marked {pod.uid}")

    def _kubelets(self) -> None:
        for pod in list(self.pods):
            if pod.process == "stuck" and self.now_s - START_S >= self.thaw_s:
                pod.process = "dead" if pod.deleted_s else "running"
                pod.died_s = self.now_s
            if pod.deleted_s is not None:
                if pod.process != "stuck" and self.now_s >= pod.deleted_s:
                    pod.process = "dead"
                if pod.process == "dead" and pod.phase == "Running":
                    pod.phase, pod.died_s = "Failed", self.now_s
                if pod.process == "dead" and self.now_s - pod.died_s >= self.kept_s:
                    self.pods.remove(pod)
                    self.log.append(f"{self.now_s - START_S:.2f} gone {pod.uid}")
            elif pod.process in ("dead", "making"):
                self._restart(pod)
            elif not pod.ready and self.now_s - max(pod.created_s, pod.started_s or 0) >= 1.0:
                pod.started_s = pod.started_s or self.now_s
                pod.ready = True

    def _restart(self, pod: SimPod) -> None:
        dead_s = self.now_s - pod.died_s
        if pod.process == "making" and dead_s >= 0.5 + self.making_s:
            pod.process, pod.started_s = "running", self.now_s
        elif pod.process == "dead" and dead_s >= 0.5:
            if self.in_place_rule:
                pod.process, pod.restarts, pod.started_s = "making", pod.restarts + 1, None
                pod.ready = False
            else:
                pod.phase = "Failed"
                self._fail(f"rank {pod.uid} died")

    def _agents(self) -> None:
        for node in self.agents:
            if self.now_s >= self.resume_at.get(node, 1e18):
                self._signal(node, "running", only="stopped")
                del self.resume_at[node]
        if not self.api or self.status is None:
            return
        status = self.read()
        order = status.order
        if order is None or status.phase is not incident.Phase.SHUTTING_DOWN:
            return
        for node in self.agents - self.deaf:
            done = {ack.order for ack in self.acked.get(node, [])}
            if order.id in done or self.now_s > order.expires_s:
                continue
            self._obey(node, order)
            kept = order.verb in (Verb.STOP, Verb.SNAPSHOT)
            bundle = f"/state/{order.id}" if kept else None
            killed = order.verb is Verb.KILL_TERMINATING
            gone = [pod.uid for pod in self.pods if pod.node == node and pod.deleted_s is not None]
            ack = Ack(
                order.id,
                order.verb,
                self.refuses.get(node, AckResult.DONE),
                bundle=bundle,
                pods=tuple(gone) if killed and node not in self.refuses else (),
            )
            self.acked.setdefault(node, []).append(ack)

    def _obey(self, node: str, order) -> None:
        self.log.append(f"{self.now_s - START_S:.2f} {node} {order.verb.value}")
        match order.verb:
            case Verb.STOP:
                self._signal(node, "stopped", only="running", before_s=order.created_before_s)
                self.resume_at[node] = order.expires_s
            case Verb.KILL:
                self._signal(node, "dead", only="stopped", before_s=order.created_before_s)
                self.resume_at.pop(node, None)
            case Verb.RESUME:
                self._signal(node, "running", only="stopped")
                self.resume_at.pop(node, None)
            case Verb.KILL_TERMINATING:
                for pod in self.pods:
                    if pod.node == node and pod.deleted_s is not None and pod.process != "stuck":
                        pod.process = "dead"

    def _signal(self, node: str, to: str, only: str, before_s: float = 1e18) -> None:
        for pod in self.pods:
            if pod.node == node and pod.process == only and pod.created_s < before_s:
                pod.process = to
                pod.died_s = self.now_s

    def read(self) -> incident.Status:
        """What is stored, as another controller would read it."""
        if self._read is None or self._read[0] is not self.status:
            self._read = self.status, decode(incident.Status, self.status)
        return self._read[1]
