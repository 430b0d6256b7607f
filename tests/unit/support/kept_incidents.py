"""A controller of one gang, and an API server that keeps the incidents that it writes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kcover_ebpf.api import agent_lease, fault_report, incident
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.fault_report import FaultReport, PodRef
from kcover_ebpf.api.incident import Incident, JobRef, Status
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.controller.breaker import Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.diagnosis.clock.pass_slots import slot_of
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.recovery.restart.context import GangPod, TopOwner

NOW_S = 1_767_225_600.0
LABELS = {"batch.kubernetes.io/job-name": "j"}
KEY = GangId.of("ns", LABELS)


class World:
    """A job that trains, and an API server that keeps what is written; it is `now_s`."""

    def __init__(self, *pods: Pod, strays: frozenset[str] = frozenset()) -> None:
        self.now_s = NOW_S
        self.store = ObjectCache(lambda _: None, wall=lambda: self.now_s)
        self.pods = tuple(GangPod(pod) for pod in pods)
        top = TopOwner(JobRef("Job", "j", "ju", "batch/v1"), None, None, armed=True)
        owners: Any = SimpleNamespace(of_pods=lambda *_: FoundOwner(top, strays=strays))
        gangs: Any = SimpleNamespace(
            pods=lambda _: self.pods, shown=lambda _: self.pods, forget=lambda _: None
        )
        story: Any = SimpleNamespace(publish=lambda *_: None)
        self.jobs = GangReconciler(self.store, gangs, owners, self, story, Limits())  # type: ignore[arg-type]
        self.jobs.wall = self.store.wall

    def report(self, verdict: Verdict | None = None, index: int = 0, **more: Any) -> None:
        """The node of a pod reports that its rank trains, unless `more` says otherwise."""
        said = FaultReport(
            node=f"n{index}", time_s=self.now_s, sequence=1, agent="x", trained=True, verdict=verdict,
            job=fault_report.ReportedJob("j", LABELS, "Job"),
            pods=(PodRef(f"j-{index}", f"u{index}"),),
        )  # fmt: skip
        raw = fault_report.object_of(replace(said, **more), "ns", f"r{index}")
        raw["metadata"] |= {"uid": f"report-{index}"}
        self.store.on_report(Event(Change.SET, raw))

    def renew(self, index: int, waits: float, places: str = "") -> None:
        """The agent of a node renews its Lease; its rank waits for so much of the time, and was there until now."""
        slot = slot_of(self.now_s)
        pace = RankPace(7, waits, 96, index, f"u{index}", places=places, slot=slot)
        lease = AgentLease(f"n{index}", self.now_s, 45, frozenset({1}), paces={1: (pace,)})
        self.store.on_lease(Event(Change.SET, agent_lease.object_of(lease)))

    def create(self, made_incident: Incident) -> dict[str, Any]:
        raw = incident.object_of(made_incident)
        raw["metadata"] |= {"uid": made_incident.name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        return raw

    def status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        return {**self.create(known_incident), "status": incident.status_of(status)}

    def guard(self, *_: object) -> None:
        """No finalizer is wanted."""

    @property
    def statuses(self) -> list[Status]:
        return [
            other_incident.status
            for other_incident in self.store.incidents.values()
            if other_incident.status is not None
        ]
