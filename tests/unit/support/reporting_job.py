"""A job of four pods on two nodes, its reports, and a controller of its gang whose writes are kept."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcover_ebpf.api.fault_report import FaultReport, object_of
from kcover_ebpf.api.incident import Incident, JobRef, Status, status_of
from kcover_ebpf.api.incident import object_of as incident_object
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.breaker import Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.gang_reconciler import GangReconciler
from kcover_ebpf.controller.owners import FoundOwner
from kcover_ebpf.ids import Endpoint
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.process_state import State
from kcover_ebpf.recovery.restart.context import GangPod, SuspendSwitch, TopOwner
from kcover_ebpf.recovery.restart.methods import restarts
from tests.unit.support.report_builders import NOW_S, SELECTOR, pod, rank, report

KEY = GangId.of("ns", SELECTOR)
REF = JobRef("Job", "j", "ju", "batch/v1")


class Cluster:
    """A job of four pods on two nodes, its reports, and a controller whose writes are kept."""

    def __init__(self, *, armed: bool) -> None:
        self.now_s = NOW_S
        self.store = ObjectCache(
            lambda _: None, wall=lambda: self.now_s, elapsed_s=lambda: self.now_s
        )
        self.store.bad = pytest.fail
        self.written: list[Status] = []
        self.gang = KEY
        """Gang of the present run."""
        pods = tuple(GangPod(pod(number)) for number in range(4))
        switch = SuspendSwitch("batch/v1", "jobs", "j", ("spec", "suspend"), False, "1", True, None)
        top = TopOwner(REF, restarts().find("batch/v1", "Job"), switch, armed=armed)
        self.found = FoundOwner(top)
        owners: Any = SimpleNamespace(
            of_pods=lambda *_: self.found, of_ref=lambda *_: self.found, published=lambda _: {}
        )
        gangs: Any = SimpleNamespace(
            pods=lambda gang_id: pods if gang_id == self.gang else (),
            shown=lambda gang_id: pods if gang_id == self.gang else (),
            forget=lambda _: None,
        )
        writer: Any = SimpleNamespace(
            create=self._create, status=self._status, guard=lambda *_: None, perform=pytest.fail
        )
        story: Any = SimpleNamespace(publish=lambda *_: None)
        self.jobs = GangReconciler(self.store, gangs, owners, writer, story, Limits())
        self.jobs.wall = lambda: self.now_s

    def _create(self, incident: Incident) -> dict[str, Any]:
        raw = incident_object(incident)
        raw["metadata"] |= {"uid": f"uid-{incident.name}", "resourceVersion": "1"}
        return raw

    def _status(self, incident: Incident, status: Status) -> dict[str, Any]:
        self.written.append(status)
        raw = self._create(incident) | {"status": status_of(status)}
        raw["metadata"]["resourceVersion"] = str(1 + len(self.written))
        return raw

    def reports(self, *reports: FaultReport) -> None:
        for reported in reports:
            raw = object_of(replace(reported, time_s=self.now_s), "ns", f"j.{reported.node}")
            raw["metadata"]["uid"] = f"r-{reported.node}"
            self.store.on_report(Event(Change.SET, raw))

    def run(self, seconds: int, *reports: FaultReport) -> Incident | None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.reports(*reports)
            self.jobs.reconcile(KEY)
        return next(iter(self.store.of_gang(KEY)), None)


SERVICE = rank(1, State.OUTSIDE, 100.0, awaits=Endpoint("198.51.100.7", 443))
SUSPECTED = (
    report("a", rank(0, age_s=99.0), rank(2, age_s=99.0)).report,
    report("b", SERVICE, rank(3, age_s=99.0)).report,
)
MOVES = tuple(replace(said, ranks=(), suspicious=False, trained=True) for said in SUSPECTED)
