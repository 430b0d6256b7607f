"""What the API server reported, as far as we need it, by gang. Thread-safe; nothing here asks or writes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, NewType

from kcover_ebpf.api import agent_lease, fault_report, incident, node_health, rfc3339
from kcover_ebpf.api.agent_lease import AgentLease
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.node_health import ReceivedHealth
from kcover_ebpf.api.nodes import is_ready
from kcover_ebpf.controller.incident_bounds import IncidentBounds
from kcover_ebpf.controller.shared_policies import SharedPolicies
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, OverBound
from kcover_ebpf.gang.gang_input import NodeState
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.gang.report_delays import Delays, ServerClock
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.nodes.others import kept_of_node
from kcover_ebpf.recovery.restart.demand import Trigger

Uid = NewType("Uid", str)
_MOST_GONE = 4096
"""Uids of deleted incidents that are kept: a namespace has 600 at most, and an answer comes within seconds. Chosen."""


@dataclass(slots=True)
class ObjectCache:
    """The cache; `changed` receives the key of each gang with news."""

    changed: Callable[[GangId], None]
    node_changed: Callable[[str], None] = lambda _: None
    bad: Callable[[str], None] = lambda _: None
    """Called with a line about each object that cannot be read."""
    over: Callable[[OverBound], None] = lambda _: None
    """Called with each object that is not kept, because it or its namespace is too large."""
    wall: Callable[[], float] = time.time
    elapsed_s: Callable[[], float] = time.monotonic
    nodes: dict[str, NodeState] = field(default_factory=dict)
    raw_nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Node name -> the parts of metadata, spec, conditions and status that the node reconciler needs."""
    policies: SharedPolicies = field(init=False)
    incidents: dict[tuple[str, str], Incident] = field(default_factory=dict)
    healths: dict[str, ReceivedHealth] = field(default_factory=dict)
    """Node name -> its last NodeHealth and its time."""
    knows_healths: bool = False
    """True once all NodeHealths were listed; until then, a node without one may have one."""
    host_reports: dict[str, ReceivedReport] = field(default_factory=dict)
    """Node name -> the report about the node itself."""
    leases: dict[str, tuple[AgentLease, float]] = field(default_factory=dict)
    """Node name -> last Lease of its agent, and when it was written, by our clock."""
    unreadable: dict[tuple[str, str], GangId] = field(default_factory=dict)
    """Incidents written by another version, and their gangs: those jobs are left alone."""
    orphans: dict[GangId, Incident] = field(default_factory=dict)
    """Incidents that were deleted while their job was being restarted."""
    triggers: dict[GangId, Trigger] = field(default_factory=dict)
    """Gang -> restart requested by an Event."""
    _reported: dict[GangId, dict[tuple[str, str], Incident]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Gang -> its incidents, by namespace and name."""
    _gone: deque[Uid | None] = field(default_factory=lambda: deque(maxlen=_MOST_GONE))
    """Incidents deleted lately, by the watch: an answer to what we wrote before may arrive after that."""
    _reports: dict[GangId, dict[str, ReceivedReport]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _where: dict[Uid, tuple[GangId | None, str]] = field(default_factory=dict)
    _listed: dict[Uid, float] | None = field(default_factory=dict)
    """When each report of the first list was written, by the API server's clock; None once that is complete."""
    _bounds: IncidentBounds = field(default_factory=IncidentBounds)
    _clock: ServerClock = field(init=False)
    _delays: Delays = field(default_factory=Delays)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Connect the policies to the callbacks for bad and oversized objects."""
        self.policies = SharedPolicies(self._is_bad, self._is_over)
        self._clock = ServerClock(self.elapsed_s)

    def _is_bad(self, text: str) -> None:
        self.bad(text)

    def _is_over(self, bound: OverBound) -> None:
        self.over(bound)

    # ---- changes from the watches

    def on_report(self, event: Event) -> None:
        """Take a FaultReport that was written or deleted."""
        uid = _uid(event)
        if uid is None:
            self._date_listed()
            return
        if event.change is Change.GONE:
            self._forget_report(uid)
            return
        try:
            report = fault_report.report_of(event.object)
        except ObjectError as error:
            self.bad(str(error))
            return
        now_s = self.wall()
        metadata = event.object["metadata"]
        written_s = fault_report.written_s(metadata)
        job, namespace = report.job, str(metadata.get("namespace", ""))
        key = None if job is None else GangId.of(namespace, job.selector)
        with self._lock:
            if self._where.get(uid) != (key, report.node):
                # an agent may change what its report is about, and each former gang would be kept for ever
                self._forget_report(uid)
            self._where[uid] = key, report.node
            if self._listed is not None and written_s is not None:
                self._listed[uid] = written_s
            arrived_s = self._clock.arrived_s(written_s, now_s)
            delay_s = self._delays.delay_s(report.node, report.time_s, arrived_s)
            received = ReceivedReport(report, arrived_s, delay_s)
            if report.node in self.leases:
                received = confirmed(received, *self.leases[report.node])
            if key is None:
                self.host_reports[report.node] = received
            else:
                self._reports[key][report.node] = received
                self.changed(key)
        if report.devices or report.job is None:
            self.node_changed(report.node)

    def _forget_report(self, uid: Uid) -> None:
        with self._lock:
            key, node = self._where.pop(uid, (None, ""))
            if key is not None:
                self._reports[key].pop(node, None)
                if not self._reports[key]:
                    del self._reports[key]
            else:
                self.host_reports.pop(node, None)

    def _date_listed(self) -> None:
        """Date the reports of the first list again: the newest of them shows how old the others are."""
        now_s = self.wall()
        with self._lock:
            listed, self._listed = self._listed or {}, None
            for uid, written_s in listed.items():
                key, node = self._where.get(uid, (None, ""))
                kept = self.host_reports if key is None else self._reports[key]
                if node in kept:
                    arrived_s = self._clock.arrived_s(written_s, now_s)
                    kept[node] = replace(kept[node], arrived_s=arrived_s)

    def on_lease(self, event: Event) -> None:
        """Take a Lease, of an agent or of another program, that was written or deleted."""
        metadata = event.object.get("metadata") or {}
        if event.change is not Change.SET:
            with self._lock:
                self.leases.pop(agent_lease.node_of(metadata) or "", None)
            return
        try:
            lease = agent_lease.lease_of(event.object)
        except ObjectError as error:
            self.bad(str(error))
            return
        if lease is None:
            return
        now_s = self.wall()
        with self._lock:
            written_s = self._clock.arrived_s(fault_report.written_s(metadata), now_s)
            # the more objects arrive from a node, the better the delays of its reports are known
            self._delays.delay_s(lease.node, lease.renewed_s, written_s)
            before = self.leases.get(lease.node)
            self.leases[lease.node] = lease, written_s
            known_acks = before[0].acks if before is not None else ()
            touched = self._confirm(lease, written_s)
        for key in touched if lease.acks != known_acks else ():
            self.changed(key)

    def _confirm(self, lease: AgentLease, written_s: float) -> list[GangId]:
        """Date the reports of an agent; returns the gangs that they are about."""
        node = lease.node
        if node in self.host_reports:
            self.host_reports[node] = confirmed(self.host_reports[node], lease, written_s)
        touched = [key for key, seen in self._reports.items() if node in seen]
        for key in touched:
            self._reports[key][node] = confirmed(self._reports[key][node], lease, written_s)
        return touched

    def on_health(self, event: Event) -> None:
        """Take a NodeHealth that was written or deleted, or the end of their first list."""
        self.knows_healths |= event.change is Change.SYNCED
        name = str((event.object.get("metadata") or {}).get("name", ""))
        if not name:
            return
        if event.change is Change.GONE:
            self.healths.pop(name, None)
        else:
            try:
                self.healths[name] = node_health.health_of(event.object)
            except ObjectError as error:
                # an unreadable NodeHealth uncordons no node
                self.healths.pop(name, None)
                self.bad(str(error))
        self.node_changed(name)

    def on_incident(self, event: Event) -> None:
        """Take an Incident that was written or deleted."""
        if event.change is Change.SYNCED:
            return
        if event.change is Change.GONE:
            metadata = event.object.get("metadata") or {}
            key = (metadata.get("namespace", ""), metadata.get("name", ""))
            self._bounds.forget(str(metadata.get("uid", "")))
            with self._lock:
                self.unreadable.pop(key, None)
                gone = self.incidents.pop(key, None)
                self._gone.append(_uid(event))
                if gone is not None:
                    self._withdraw(gone)
                    self._orphan(gone)
            return
        if self._is_known(event.object.get("metadata") or {}):
            return  # we wrote it
        found_incident = self.read_incident(event.object)
        if found_incident is not None:
            with self._lock:
                # only the watch knows that it exists: a list of an API server that lagged may have lacked it
                while _uid(event) in self._gone:
                    self._gone.remove(_uid(event))
                self.put(found_incident)
            self.changed(found_incident.gang)

    def _is_known(self, metadata: Mapping[str, Any]) -> bool:
        known_incident = self.incidents.get(
            (metadata.get("namespace", ""), metadata.get("name", ""))
        )
        return known_incident is not None and (
            known_incident.uid,
            known_incident.resource_version,
        ) == (
            metadata.get("uid"),
            metadata.get("resourceVersion"),
        )

    def read_incident(self, raw: Mapping[str, Any]) -> Incident | None:
        """The incident in an object; None, and a call of `bad`, if it cannot be read."""
        created = (raw.get("metadata") or {}).get("creationTimestamp")
        try:
            self._bounds.check(raw)
            return incident.incident_of(raw, rfc3339.from_text(created) if created else self.wall())
        except OverBound as error:
            self.over(error)
        except (ObjectError, ValueError) as error:
            self.bad(str(error))
        self._block(raw)
        return None

    def _block(self, raw: Mapping[str, Any]) -> None:
        metadata = raw.get("metadata") or {}
        selector = (raw.get("spec") or {}).get("selector")
        if isinstance(selector, Mapping):
            namespace = str(metadata.get("namespace", ""))
            name = str(metadata.get("name", ""))
            self.unreadable[namespace, name] = GangId.of(namespace, selector)

    def put(self, found_incident: Incident) -> None:
        """Store an incident, unless a newer version is known, or it was deleted."""
        with self._lock:
            if found_incident.uid in self._gone:
                self._bounds.forget(found_incident.uid)
                self._orphan(found_incident)
                return
            self.unreadable.pop(found_incident.key, None)
            old = self.incidents.get(found_incident.key)
            if old is not None:
                same = old.uid == found_incident.uid
                if same and _number(found_incident.resource_version) < _number(
                    old.resource_version
                ):
                    return
                self._withdraw(old)
            self.incidents[found_incident.key] = found_incident
            self._reported[found_incident.gang][found_incident.key] = found_incident

    def _orphan(self, gone: Incident) -> None:
        """Note that the job of a deleted incident may have to be resumed."""
        if gone.status is not None and gone.status.phase.is_acting:
            self.orphans[gone.gang] = gone
            self.changed(gone.gang)

    def _withdraw(self, old_incident: Incident) -> None:
        key = old_incident.gang
        del self._reported[key][old_incident.key]
        if not self._reported[key]:
            del self._reported[key]

    def on_policy(self, event: Event) -> None:
        """Take a FaultPolicy that was written or deleted."""
        if event.change is Change.SYNCED:
            return
        take = self.policies.set if event.change is Change.SET else self.policies.remove
        take(event.object)

    def on_node(self, event: Event) -> None:
        """Take a node that was written or deleted."""
        metadata = event.object.get("metadata") or {}
        name = str(metadata.get("name", ""))
        if not name:
            return
        if event.change is Change.GONE:
            with self._lock:
                self.nodes.pop(name, None)
                self.raw_nodes.pop(name, None)
            self.node_changed(name)
            return
        state, fresh = NodeState(name, is_ready(event.object)), kept_of_node(event.object)
        with self._lock:
            before = self.nodes.get(name)
            self.nodes[name], self.raw_nodes[name] = state, fresh
            touched = [key for key, seen in self._reports.items() if name in seen]
        self.node_changed(name)
        if before is not None and before.ready and not state.ready:
            for key in touched:
                self.changed(key)

    def wrote_node(self, raw: Mapping[str, Any]) -> None:
        """Take the answer to a write of a node, unless the watch reported a newer state or its deletion before it."""
        metadata = raw.get("metadata") or {}
        with self._lock:
            known = (self.raw_nodes.get(str(metadata.get("name", ""))) or {}).get("metadata") or {}
            known_version, version = (
                _number(str(one.get("resourceVersion", ""))) for one in (known, metadata)
            )
            is_same = bool(known) and known.get("uid") == metadata.get("uid")
            if is_same and version >= known_version:
                self.on_node(Event(Change.SET, dict(raw)))

    # ---- queries

    def seen(self, gang_id: GangId) -> tuple[ReceivedReport, ...]:
        """The latest report of each node about a gang."""
        with self._lock:
            return tuple(self._reports.get(gang_id, {}).values())

    def is_ready(self, node: str) -> bool:
        """True if the kubelet of the node reports Ready."""
        state = self.nodes.get(node)
        return state is not None and state.ready

    @property
    def gangs(self) -> list[GangId]:
        """Gangs with a report, or with an incident that is not over or was deleted before it was."""
        with self._lock:
            reported = {*self._reports, *self.orphans}
            for other_incident in self.incidents.values():
                if (
                    other_incident.is_guarded
                    or other_incident.status is None
                    or not other_incident.status.phase.is_over
                ):
                    reported.add(other_incident.gang)
            return list(reported)

    def of_gang(self, gang_id: GangId) -> list[Incident]:
        """Incidents of a gang, oldest first."""
        with self._lock:
            ours = list(self._reported.get(gang_id, {}).values())
        return sorted(
            ours, key=lambda other_incident: (other_incident.created_s, other_incident.name)
        )

    def of_job(self, namespace: str, uid: str) -> list[Incident]:
        """Incidents of a job, of all its gangs, oldest first."""
        with self._lock:
            everyone = list(self.incidents.values())
        ours = (one for one in everyone if (one.namespace, one.job.uid) == (namespace, uid))
        return sorted(ours, key=lambda incident: (incident.created_s, incident.name))

    def trigger(self, gang_id: GangId) -> Trigger | None:
        """The restart that an Event requests; None if there is no such Event, or it is too old."""
        trigger = self.triggers.get(gang_id)
        if trigger is not None and trigger.is_over(self.wall(), self.of_gang(gang_id)):
            self.triggers.pop(gang_id, None)
            trigger = None
        return trigger


def _uid(event: Event) -> Uid | None:
    uid = (event.object.get("metadata") or {}).get("uid")
    return Uid(str(uid)) if uid else None


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
