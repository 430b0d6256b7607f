"""More faulty gangs of a namespace than incidents may be open: those that were closed for room stay closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.api import fault_report
from kcover_ebpf.api.fault_report import FaultReport, PodRef
from kcover_ebpf.api.incident import Incident, JobRef, Status, object_of, status_of
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.controller.breaker import Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.recovery.restart.context import GangPod, TopOwner

START_S = 1_767_225_600.0
GANGS, MOST = 5, 3


def labels(index: int) -> dict[str, str]:
    return {"batch.kubernetes.io/job-name": f"j{index}"}


def crash(index: int) -> dict[str, Any]:
    """The report of a gang of one pod whose rank died at START_S."""
    uid, pod = f"u{index}", f"j{index}-0"
    said = FaultReport(
        node="n0", time_s=START_S, sequence=1, agent="x",
        job=fault_report.ReportedJob(f"j{index}", labels(index), "Job"),
        pods=(PodRef(pod, uid),), trained=True,
        verdict=Verdict(
            VerdictKind.CRASHED, Cause.SEGFAULT, since_s=START_S - 0.1,
            evidence=(Evidence(EvidenceKind.EVENT, "rank 0 died by SIGSEGV"),),
            culprit=Culprit(rank=0, pod=pod, pod_uid=uid, node="n0"),
        ),
    )  # fmt: skip
    raw = fault_report.object_of(said, "ns", f"r{index}")
    raw["metadata"] |= {"uid": f"report-{index}"}
    return raw


class World:
    """Unarmed jobs that all crashed, and an API server that keeps what is written."""

    def __init__(self) -> None:
        self.store = ObjectCache(lambda _: None, wall=lambda: START_S + 1.0)
        self.writes = 0
        owners: Any = SimpleNamespace(of_pods=self._owner)
        gangs: Any = SimpleNamespace(pods=self._pods, shown=self._pods, forget=lambda _: None)
        story: Any = SimpleNamespace(publish=lambda *_: None)
        limits = Limits(incidents=MOST)
        self.jobs = GangReconciler(self.store, gangs, owners, self, story, limits)  # type: ignore[arg-type]
        self.jobs.wall = self.store.wall
        for index in range(GANGS):
            self.store.on_report(Event(Change.SET, crash(index)))

    def _pods(self, gang_id: GangId) -> tuple[GangPod, ...]:
        (name,) = gang_id.labels.values()
        pod = Pod(
            "ns",
            f"{name}-0",
            f"u{name[1:]}",
            "n0",
            "Running",
            1.0,
            None,
            gang_id.labels,
            {},
            (),
            (),
        )
        return (GangPod(pod),)

    def _owner(self, namespace: str, pods: tuple[GangPod, ...], job: object) -> FoundOwner:
        (name,) = pods[0].pod.labels.values()
        return FoundOwner(
            TopOwner(JobRef("Job", name, f"{name}-uid", "batch/v1"), None, None, False)
        )

    def create(self, made_incident: Incident) -> dict[str, Any]:
        raw = object_of(made_incident)
        raw["metadata"] |= {"uid": made_incident.name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        return raw

    def status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        self.writes += 1
        return {**self.create(known_incident), "status": status_of(status)}

    def guard(self, known_incident: Incident, wanted: bool) -> None:
        assert not wanted

    def reconcile_all(self) -> int:
        """How many statuses were written."""
        before = self.writes
        for index in range(GANGS):
            self.jobs.reconcile(GangId.of("ns", labels(index)))
        return self.writes - before

    def opened(self) -> list[str]:
        found = [
            incident for incident in self.store.incidents.values() if incident.status is not None
        ]
        return sorted(
            incident.job.name
            for incident in found
            if incident.status and not incident.status.is_closed
        )


def test_incident_quota__what_was_closed_for_room_is_not_opened_again_while_it_is_still_reported() -> (
    None
):
    world = World()
    assert world.reconcile_all() > 0
    assert world.opened() == ["j2", "j3", "j4"], "the oldest made room"
    assert world.reconcile_all() == 0, (
        "and nothing more is written, however often they are reconciled"
    )
    assert world.opened() == ["j2", "j3", "j4"]


@pytest.mark.parametrize("free", [1, 2])
def test_object_of__it_is_opened_again_once_there_is_room(free: int) -> None:
    world = World()
    world.reconcile_all()
    for incident in list(world.store.incidents.values()):
        if incident.job.name in ("j3", "j4")[:free]:
            index = int(incident.job.name[1:])
            world.store.on_incident(Event(Change.GONE, world.create(incident)))
            world.store.on_report(Event(Change.GONE, crash(index)))
    assert len(world.opened()) == MOST - free
    world.reconcile_all()
    assert len(world.opened()) == MOST
