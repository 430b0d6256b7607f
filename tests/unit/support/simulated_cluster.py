"""The controller in a simulated cluster: what it reads, the steps of its restart, and its death at any point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kcover_ebpf.api import incident
from kcover_ebpf.api.codec import encode
from kcover_ebpf.api.fault_report import FaultReport, PodRef
from kcover_ebpf.api.pods import Container, ContainerKind, Pod
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.recovery.restart import advance, context, machine, methods, refusals, steps
from tests.unit.support.simulated_world import START_S, SimPod, World

SELECTOR = {"batch.kubernetes.io/job-name": "j"}
MARK = "ns/inc"
KINDS = {
    "suspend": ("kubeflow.org/v1", "PyTorchJob"),
    "delete": ("apps/v1", "StatefulSet"),
    "leader": ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
}


class Crash(Exception):
    """The controller was killed here."""


def assert_transition(before: dict[str, Any] | None, after: dict[str, Any]) -> None:
    """What is written next is in the table of transitions; only texts change without one."""
    old, new = (status.get("action") if status else None for status in (before, after))
    if new is not None and (
        old is None or (old["startedAt"], old["step"]) != (new["startedAt"], new["step"])
    ):
        came_from = steps.step_of(old["step"]) if old else None
        assert steps.Step(new["step"]) in steps.TRANSITIONS[came_from], (old, new)


@dataclass
class Sim(World):
    """The controller dies at each point of `crashes`; the next one reads what was written.

    A pod that is lost, or a resumption among old pods, ends the job.
    """

    refused: Callable[[context.Call], bool] = lambda _: False
    """True for a call that the API server refuses."""

    def world(self) -> context.RestartInput:
        api_version, kind = KINDS[self.method]
        row = methods.restarts().find(api_version, kind)
        target = None
        if self.method == "suspend":
            target = context.SuspendSwitch(
                api_version,
                "js",
                "j",
                ("spec", "suspend"),
                True,
                str(self.version),
                self.suspended,
                self.suspended_by,
            )
        top = context.TopOwner(
            incident.JobRef(kind, "j", "job-uid", api_version), row, target, True, self.ended
        )
        return context.RestartInput(
            now_s=self.now_s,
            top=top,
            pods=tuple(self._pod(pod) for pod in self.pods),
            reports=tuple(self._report(node) for node in sorted(self.agents)),
            agents=self.agents,
            ready=frozenset({"n0", "n1", "n9"}) - self.unreachable,
            fenced=self.fenced,
        )

    def _pod(self, pod: SimPod) -> context.GangPod:
        container = Container(
            "main", ContainerKind.MAIN, "", pod.restarts, self.in_place_rule, pod.started_s
        )
        if pod.process == "dead":
            container = replace(container, started_s=None)
        labels = {"leaderworkerset.sigs.k8s.io/worker-index": str(pod.index)}
        if pod.index == self.launcher:
            labels = {
                "training.kubeflow.org/job-name": "j",
                "training.kubeflow.org/operator-name": "mpi-operator",
                "training.kubeflow.org/job-role": "launcher",
            }
        seen = Pod(
            "ns",
            pod.name,
            pod.uid,
            pod.node,
            pod.phase,
            float(int(pod.created_s)),
            pod.deleted_s,
            labels,
            {},
            (),
            (container,),
            pod.ready and pod.process != "dead",
            finalizers=("example.com/kept",) if self.kept_s else (),
        )
        return context.GangPod(seen, pod.grace_s, "Never")

    def _report(self, node: str) -> ReceivedReport:
        mine = [pod for pod in self.pods if pod.node == node]
        restarted = all(
            (pod.restarts or pod.created_s > START_S) and pod.ready and pod.process == "running"
            for pod in mine
        )
        ranks = [pod for pod in mine if pod.index != self.launcher]
        trained = bool(ranks) and restarted and self.helps
        report = FaultReport(
            node=node,
            time_s=self.now_s,
            sequence=0,
            pods=tuple(PodRef(pod.name, pod.uid) for pod in mine),
            suspicious=not restarted,
            trained=trained,
            acks=tuple(self.acked.get(node, [])[-8:]),
        )
        return ReceivedReport(report, self.now_s)

    def _point(self) -> None:
        self.points += 1
        if self.points in self.crashes:
            self.log.append(f"{self.now_s - START_S:.2f} controller killed")
            raise Crash

    def begin(self, method: incident.RestartMethod) -> None:
        status = incident.Status(incident.Phase.DECIDED).enter(incident.Phase.OPEN, self.now_s, "")
        self.write(machine.start(self.turn(status), method, "HUNG stopped"))

    def begin_crash(self, *indices: int) -> None:
        """These ranks leave with an error, and it is decided to wait for the kubelets."""
        for pod in self.pods:
            if pod.index in indices:
                pod.process, pod.died_s = "dead", self.now_s
        detail = {"pods": str(self.count), "crashed": f"{self.now_s:.6f}"}
        action = incident.RestartAction(
            incident.RestartMethod.IN_PLACE, "Settle", 1, self.now_s, "", detail
        )
        status = incident.Status(incident.Phase.DECIDED, action=action)
        status = status.enter(incident.Phase.OPEN, self.now_s, "")
        status = status.enter(incident.Phase.SHUTTING_DOWN, self.now_s, "wait for the kubelets")
        self.write(status.begin(incident.RestartMethod.IN_PLACE, self.now_s))

    def turn(self, status: incident.Status) -> machine.RestartContext:
        return machine.RestartContext(status, self.world(), self.policy, "inc", MARK, SELECTOR)

    def write(self, status: incident.Status) -> None:
        before = self.status
        self.status = encode(status)
        assert_transition(before, self.status)
        if before is None or before["message"] != self.status["message"]:
            self.log.append(f"{self.now_s - START_S:.2f} {status.phase.value}: {status.message}")

    def reconcile(self) -> None:
        """One reconciliation, which may be cut off anywhere."""
        if not self.api or self.status is None:
            return
        try:
            for _ in range(20):
                status = self.read()
                if not status.phase.is_acting:
                    return
                move = advance.advance(self.turn(status))
                self._point()
                written = move.status or self._make(move.calls, status)
                if written is None:
                    return
                self.write(written)
                self._point()
        except Crash:
            return

    def _make(
        self, calls: tuple[context.Call, ...], status: incident.Status
    ) -> incident.Status | None:
        """Make the calls; the status to write if one is refused, else None."""
        for call in calls:
            if self.refused(call):
                text = f"{type(call).__name__}: 403 denied"
                return refusals.after(self.turn(status), text).status
            self._call(call)
            self._point()
        return None

    def _call(self, call: context.Call) -> None:
        match call:
            case context.Suspension():
                if call.target.resource_version == str(self.version):
                    self.version += 1
                    self.suspended, self.suspended_by = (
                        call.suspended,
                        MARK if call.suspended else None,
                    )
                    self.log.append(f"{self.now_s - START_S:.2f} suspended={call.suspended}")
            case context.Delete():
                for pod in list(self.pods):
                    if (pod.name, pod.uid) not in call.pods:
                        continue
                    if call.grace_s == 0:
                        self.pods.remove(pod)
                    else:
                        self.mark(pod, call.grace_s)
            case context.DeleteAll():
                for pod in self.pods:
                    self.mark(pod, pod.grace_s)
            case context.Cordon():
                self.cordoned.update(call.nodes)

    def run(self, seconds: float = 600.0) -> incident.Status:
        """Let time pass until the incident is over."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.reconcile()
            status = self.read()
            if status.phase.is_over:
                break
            self.tick()
        for _ in range(80):
            self.tick()
        return self.read()
