"""What the controller publishes about incidents: Events on pod, job and node, and Prometheus metrics."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from threading import Thread
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from kcover_ebpf.api.incident import Incident, Phase, RestartMethod, Status
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.event_recorder import EventRecorder
from kcover_ebpf.controller.notices import Notices
from kcover_ebpf.errors import OverBound
from kcover_ebpf.facts.health import Result
from kcover_ebpf.model.verdict import Cause, FailureClass
from kcover_ebpf.output.metrics import DETECTION_BUCKETS_S, OverBounds
from kcover_ebpf.tunables.controller import OVER_SAID_S

_LOG = logging.getLogger(__name__)
_LOST = ("detect", "decide", "shut_down", "reschedule", "first_progress")
_REQUESTS = (
    ("watch", "objects"),
    ("read", "objects"),
    ("reconcile", "incidents"),
    ("reconcile", "nodes"),
    ("reconcile", "internal"),
)
_REASONS = {
    Phase.OPEN: "KcoverFaultSeen",
    Phase.DECIDED: "KcoverFaultDecided",
    Phase.SHUTTING_DOWN: "KcoverShuttingDown",
    Phase.RECOVERING: "KcoverRecovering",
    Phase.RECOVERED: "KcoverRecovered",
    Phase.OBSERVED: "KcoverObserved",
    Phase.REFUSED: "KcoverRefused",
    Phase.FAILED: "KcoverFailed",
}
_OVER = "KcoverOverBound"
_MOST_OVER = 1000
"""The most namespaces that such an Event is written about within its interval, counted for each bound."""
_WARNINGS = (Phase.OPEN, Phase.DECIDED, Phase.SHUTTING_DOWN, Phase.REFUSED, Phase.FAILED)


class ControllerTelemetry:
    """Publishes without blocking its caller, and without raising."""

    def __init__(self, cache: ObjectCache, writer: ApiWriter, wall: Callable[[], float]) -> None:
        self._store, self._wall = cache, wall
        self._events = EventRecorder(writer.event, wall)
        self.leads: Callable[[], bool] = lambda: False
        self.breakers: Callable[[], dict[str, bool]] = dict
        self.cordoned: Callable[[], int] = lambda: 0
        self.job_kinds: Callable[[], Mapping[str, int]] = dict
        self._notify: Callable[[Incident, Status], None] = lambda *_: None
        self._said_over_s: dict[tuple[str, str], float] = {}
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        self.registry.register(OverBounds())
        self._detection = self._histogram(
            "kcover_detection_seconds", "Time from fault onset to verdict."
        )
        text = "Time from the verdict until all ranks make progress again."
        self._recovery = self._histogram("kcover_recovery_seconds", text, "way")
        for method in (RestartMethod.IN_PLACE, RestartMethod.HYBRID, RestartMethod.REPLACE):
            self._recovery.labels(method.value)
        self._count_losses()
        text = (
            "Failed reconciles of gangs (incidents) or nodes, interrupted watches, and unreadable "
            "objects."
        )
        self._errors = Counter(
            "kcover_api_errors", text, ["verb", "resource"], registry=self.registry
        )
        for request in _REQUESTS:
            self._errors.labels(*request)

    def _count_losses(self) -> None:
        text = f"Training time lost in incidents, in seconds, by phase: {', '.join(_LOST)}."
        self._lost = Counter("kcover_time_lost_seconds", text, ["phase"], registry=self.registry)
        for phase in _LOST:
            self._lost.labels(phase)
        text = "Steps repeated after restarts, or lost since the last checkpoint, by the logs of the jobs."
        self._steps = Counter("kcover_lost_steps", text, registry=self.registry)
        text = "Seconds of training spent on the steps in kcover_lost_steps_total."
        self._work = Counter("kcover_lost_work_seconds", text, registry=self.registry)
        text = "GPU hours lost in incidents, by GPU model; other: no node label states it."
        self._gpu_hours = Counter(
            "kcover_gpu_hours_lost", text, ["product"], registry=self.registry
        )

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=DETECTION_BUCKETS_S, registry=self.registry)

    def notify(self, notices: Notices) -> None:
        """Pass each phase that an incident enters to these notices, and serve their metrics."""
        self._notify = notices.publish
        self.registry.register(notices.notifier)

    @property
    def thread(self) -> Thread:
        """The thread that sends Events, for liveness checks."""
        return self._events.thread

    def start(self) -> None:
        """Start the thread that sends Events."""
        self._events.start()

    def close(self, within_s: float) -> None:
        """Send the Events that wait, and end."""
        self._events.close(within_s)

    def failed(self, verb: str, resource: str) -> None:
        """Count a failed request by verb and resource."""
        self._errors.labels(verb, resource).inc()

    def publish(self, incident: Incident, previous_status: Status | None, status: Status) -> None:
        """Publish a status of an incident that was written."""
        if previous_status is not None and previous_status.phase is status.phase:
            return
        self._count(previous_status, status)
        self._notify(incident, status)
        reason, warning = _REASONS[status.phase], status.phase in _WARNINGS
        job = {
            "apiVersion": incident.job.api_version,
            "kind": incident.job.kind,
            "name": incident.job.name,
            "uid": incident.job.uid,
            "namespace": incident.namespace,
        }
        text = _text_of(status)
        self._events.publish(incident.name, job, reason, f"{incident.name}: {text}", warning)
        culprit = status.culprit
        if culprit is None or status.phase not in (
            Phase.SHUTTING_DOWN,
            Phase.OBSERVED,
            Phase.REFUSED,
        ):
            return
        if culprit.pod and culprit.pod_uid:
            pod = {"apiVersion": "v1", "kind": "Pod", "name": culprit.pod, "uid": culprit.pod_uid}
            pod["namespace"] = incident.namespace
            self._events.publish(incident.name, pod, reason, text, warning)

    def event(self, about: dict[str, str], reason: str, text: str, warning: bool) -> None:
        """Publish about an object that is in no incident; each reason is its own series."""
        self._events.publish(reason, about, reason, text, warning)

    def over(self, error: OverBound) -> None:
        """Publish that a tenant's object is not kept: at intervals per namespace, for the first such object."""
        key, now_s = (error.what, error.about["namespace"]), self._wall()
        self._said_over_s = {
            known: at_s
            for known, at_s in list(self._said_over_s.items())
            if 0.0 <= now_s - at_s < OVER_SAID_S
        }
        if key in self._said_over_s or len(self._said_over_s) >= _MOST_OVER:
            return
        self._said_over_s[key] = now_s
        _LOG.warning("%s", error)
        if self.leads():
            # a Warning about a pod would be taken as a request for a restart by readers of kcover's Events
            warning = error.about["kind"] != "Pod"
            self._events.publish(f"over {error.what}", error.about, _OVER, error.detail, warning)

    def _count(self, previous_status: Status | None, status: Status) -> None:
        demanded = status.cause is Cause.REQUESTED
        if previous_status is None and status.since_s is not None and not demanded:
            self._detection.observe(max(self._wall() - status.since_s, 0.0))
        if status.phase is Phase.RECOVERED and status.action is not None:
            opened_s = status.at(Phase.OPEN) or status.at(Phase.SHUTTING_DOWN) or self._wall()
            self._recovery.labels(status.action.way.value).observe(self._wall() - opened_s)
        if status.phase in (Phase.RECOVERED, Phase.FAILED) and status.lost is not None:
            for phase in _LOST:
                self._lost.labels(phase).inc(max(getattr(status.lost, f"{phase}_s") or 0.0, 0.0))
            if status.work is not None and status.restarts:
                self._steps.inc(status.work.lost_steps or 0)
                self._work.inc(status.work.lost_s or 0.0)
            if status.size is not None and status.size.gpus:
                hours = status.size.gpu_hours(max(status.lost.total_s, 0.0))
                self._gpu_hours.labels(status.size.product or "other").inc(hours)

    # ---- metrics that are computed from the cache when they are scraped

    def collect(self) -> Iterator[Any]:
        """All metrics, for prometheus_client."""
        leads = self.leads()
        yield _gauge("kcover_leader", "1 if this replica is the leader.", {(): float(leads)})
        yield self._phases(leads)
        yield self._infos(leads)
        yield self._acts_at(leads)
        yield self._ettr(leads)
        names = ("jobs", "nodes")
        opened = self.breakers()
        yield _gauge(
            "kcover_breaker_open",
            "1 while the circuit breaker is open: too many jobs were restarted, or nodes cordoned, within its window.",
            {(name,): float(leads and opened.get(name, False)) for name in names},
            "breaker",
        )
        cordoned = float(self.cordoned()) if leads else 0.0
        yield _gauge(
            "kcover_nodes_kept_out", "Nodes cordoned or tainted by this controller.", {(): cordoned}
        )
        yield _gauge(
            "kcover_job_kinds",
            "JobKind objects, by the reason of their condition Ready: Permitted, or why jobs of the kind are refused.",
            {(reason,): float(leads and count) for reason, count in self.job_kinds().items()},
            "reason",
        )
        yield self._healths(leads)
        lost = CounterMetricFamily(
            "kcover_events_lost",
            "Events never written: rejected by the API server, or over the rate limit.",
        )
        lost.add_metric([], self._events.lost_count)
        yield lost

    def _healths(self, leads: bool) -> Any:
        now_s = self._wall()
        known = list(self._store.healths.values()) if leads else []
        tally = Tally(
            (Result.UNKNOWN if received.is_stale(now_s) else received.health.result).value
            for received in known
        )
        values = {(result.value,): float(tally[result.value]) for result in Result}
        text = "Nodes by the result of their last inspection; unknown includes nodes whose agent no longer reports."
        return _gauge("kcover_nodes_by_health", text, values, "result")

    def _incidents(self, leads: bool) -> list[tuple[Incident, Status]]:
        known = list(self._store.incidents.values()) if leads else []
        return [(incident, incident.status) for incident in known if incident.status is not None]

    def _phases(self, leads: bool) -> Any:
        tally = Tally(status.phase.value for _, status in self._incidents(leads))
        values = {(phase.value,): float(tally[phase.value]) for phase in Phase}
        return _gauge("kcover_incidents", "Number of Incident objects, by phase.", values, "phase")

    def _infos(self, leads: bool) -> Any:
        values = {}
        for incident, status in self._incidents(leads):
            if status.is_closed:
                continue
            culprit = status.culprit
            where = (culprit.pod or "", culprit.node or "") if culprit is not None else ("", "")
            said = (
                status.kind.value if status.kind else "",
                status.cause.value if status.cause else "",
                status.certainty.value if status.certainty else "",
                status.phase.value,
            )
            values[
                incident.namespace,
                incident.job.name,
                incident.job.kind,
                incident.name,
                *said,
                *where,
                status.owner or "",
            ] = 1.0
        labels = (
            *("namespace", "training_job", "kind", "incident"),
            *("verdict", "cause", "certainty", "phase", "pod", "node", "owner"),
        )
        text = (
            "1 for each open incident: neither recovered nor, where no action was taken, resolved on its "
            "own; certainty: announced, proven, inferred or suspected; pod and node are the culprit's, empty "
            "if no culprit was identified; owner as the job names it."
        )
        return _gauge("kcover_incident_info", text, values, *labels)

    def _acts_at(self, leads: bool) -> Any:
        values = {
            (incident.namespace, incident.job.name, incident.name): verdict.acts_at_s
            for incident, status in self._incidents(leads)
            if (verdict := status.verdict) is not None
            and verdict.acts_at_s is not None
            and not status.is_closed
        }
        text = (
            "When an armed job is ended for an open incident if nothing moves, in unix seconds; absent "
            "for an incident that ends no job."
        )
        labels = ("namespace", "training_job", "incident")
        return _gauge("kcover_incident_acts_at_seconds", text, values, *labels)

    def _ettr(self, leads: bool) -> Any:
        lost: Tally[str] = Tally()
        jobs: dict[str, tuple[float, tuple[str, str]]] = {}
        for incident, status in self._incidents(leads):
            uid, size = incident.job.uid, status.size
            if status.lost is not None:
                lost[uid] += status.lost.total_s  # type: ignore[assignment]
            if size is not None and size.created_s is not None:
                jobs[uid] = size.created_s, (incident.namespace, incident.job.name)
        values: dict[tuple[str, str], float] = {}
        for uid, (created_s, name) in sorted(jobs.items(), key=lambda item: item[1]):
            # of several jobs of one name, the newest counts
            values.pop(name, None)
            if uid in lost and (age_s := self._wall() - created_s) > 0:
                values[name] = max(0.0, 1.0 - lost[uid] / age_s)
        text = "Effective training time ratio: 1 - time lost in incidents / age of the job."
        return _gauge("kcover_job_ettr_ratio", text, values, "namespace", "training_job")


def _text_of(status: Status) -> str:
    """Text of an Event; begins with the location of the fault, because a long text is truncated."""
    if status.failure in (None, FailureClass.UNKNOWN):
        return status.message
    return f"[{status.failure.value}] {status.message}"


def _gauge(name: str, text: str, values: dict[Any, float], *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
