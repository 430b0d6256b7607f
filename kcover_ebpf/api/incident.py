"""One fault of one job in a cluster, from the first sign to recovery: the `Incident` resource.

The schema, with a sentence about each field, is in charts/kcover-ebpf/crds. Everything that a controller needs to
continue a restart begun by another one is in this object. Times are unix seconds by the controller's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import Codec, embedded, encode, wire
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident_parts import CrashRecord, JobSize, LoggedWork, StuckPod
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.order import Order
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    FailureClass,
    Verdict,
    VerdictKind,
)

FINALIZER = "kcover.io/resume-job"
"""Finalizer of an incident while its job is being restarted, so that a deletion leaves no job suspended."""
AVOID, AVOID_NODES, AVOID_UNTIL = (
    "kcover.io/avoid",
    "kcover.io/avoid-nodes",
    "kcover.io/avoid-until",
)
"""Label (Soft or Hard) and annotations: the nodes, separated by commas, that new pods of the job avoid, and until
when.

An admission policy of the chart reads the first two.
"""
NOTIFIED = "kcover.io/notified"
"""Annotation with the targets notified of the incident's end, as TARGET:PHASE; the next leader does not repeat them."""
_MOST_NOTIFIED = 4096
"""The most characters of it that are read: any account that may edit incidents may write it."""
_MOST_MOMENTS = 64
_MOST_RESTARTS = 64
_MOST_TEXT = 1024


class Phase(Enum):
    """The phase of an incident (docs/decisions/0005)."""

    OPEN = "Open"
    DECIDED = "Decided"
    SHUTTING_DOWN = "ShuttingDown"
    RECOVERING = "Recovering"
    RECOVERED = "Recovered"
    OBSERVED = "Observed"
    REFUSED = "Refused"
    FAILED = "Failed"

    @property
    def is_over(self) -> bool:
        """True if no further step follows."""
        return self in (Phase.RECOVERED, Phase.OBSERVED, Phase.REFUSED, Phase.FAILED)

    @property
    def is_acting(self) -> bool:
        """True while a restart is in progress."""
        return self in (Phase.SHUTTING_DOWN, Phase.RECOVERING)


class RestartMethod(Enum):
    """How the pods of a gang are restarted."""

    IN_PLACE = "InPlace"
    HYBRID = "Hybrid"
    """One pod is moved to another node, all others restart in place."""
    REPLACE = "Replace"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class JobRef:
    """The top-level owner of the gang."""

    kind: str
    name: str
    uid: str
    api_version: str = field(default="", metadata=wire("apiVersion"))


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline."""

    phase: str
    time_s: float = field(metadata=wire("time", time=True))
    text: str | None = None


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """One restart that was actually begun; budgets count these."""

    way: RestartMethod
    time_s: float = field(metadata=wire("time", time=True))


@dataclass(frozen=True, slots=True)
class RestartAction:
    """The restart in progress. `detail` belongs to the restart machine (`recovery.restart.machine`)."""

    way: RestartMethod
    step: str
    attempt: int
    started_s: float = field(metadata=wire("startedAt", time=True))
    """When this step began (unix seconds)."""
    reason: str | None = None
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lost:
    """Seconds lost, by phase; None while unknown."""

    detect_s: float | None = None
    decide_s: float | None = None
    shut_down_s: float | None = None
    reschedule_s: float | None = None
    first_progress_s: float | None = None

    @property
    def total_s(self) -> float:
        """Sum of the known phases; None if none is known."""
        parts = (self.detect_s, self.decide_s, self.shut_down_s)
        return sum(part or 0.0 for part in (*parts, self.reschedule_s, self.first_progress_s))


@dataclass(frozen=True, slots=True)
class Status:
    """Status of an incident, written by the controller."""

    phase: Phase
    message: str = ""
    verdict: Verdict | None = field(default=None, metadata=embedded())
    """Verdict on all nodes together; None before the incident is described."""
    failure: FailureClass | None = field(default=None, metadata=wire("class"))
    """Class of the cause; None before the incident is described."""
    nodes: tuple[str, ...] = ()
    action: RestartAction | None = None
    order: Order | None = None
    timeline: tuple[Moment, ...] = ()
    restarts: tuple[RestartRecord, ...] = ()
    crashes: tuple[CrashRecord, ...] = ()
    """Crashes with a known traceback, newest last."""
    lost: Lost | None = None
    work: LoggedWork | None = None
    """Lost training, from the logs; None if they show no step."""
    size: JobSize | None = None
    """Size of the job; None for incidents of an older controller."""
    owner: str | None = None
    """Owner of the job, from its label or annotation; None if neither is set."""
    bundles: tuple[str, ...] = ()
    stuck: tuple[StuckPod, ...] = ()
    """Old pods that are stuck in deletion, during or after the wait for them."""
    silences: SilenceSummary | None = None
    """What all nodes know of the job's silences, for agents that have not watched it yet; None from older ones."""
    closed_s: float | None = field(default=None, metadata=wire("closedAt", time=True))
    """When a fault that was reported without action was seen to be over; None while it may last."""

    @property
    def kind(self) -> VerdictKind | None:
        """Kind of the verdict; None before the incident is described."""
        return None if self.verdict is None else self.verdict.kind

    @property
    def cause(self) -> Cause | None:
        """Cause of the verdict; None before the incident is described."""
        return None if self.verdict is None else self.verdict.cause

    @property
    def certainty(self) -> Certainty | None:
        """Certainty of the verdict; None if it has none."""
        return None if self.verdict is None else self.verdict.certainty

    @property
    def since_s(self) -> float | None:
        """When the fault began (unix seconds); None before the incident is described."""
        return None if self.verdict is None else self.verdict.since_s

    @property
    def began_s(self) -> float:
        """Origin of its times (unix seconds): begin of the fault, or its first moment; 0 before there is one."""
        first_s = self.timeline[0].time_s if self.timeline else 0.0
        return self.since_s or first_s

    @property
    def culprit(self) -> Culprit | None:
        """Culprit named by the verdict; None if it names none."""
        return None if self.verdict is None else self.verdict.culprit

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of the verdict; empty without one."""
        return () if self.verdict is None else self.verdict.evidence

    @property
    def is_closed(self) -> bool:
        """True once there is nothing left to report."""
        return self.phase is Phase.RECOVERED or self.closed_s is not None

    def at(self, phase: Phase) -> float | None:
        """When a phase was first entered (unix seconds); None if it never was."""
        return next(
            (moment.time_s for moment in self.timeline if moment.phase == phase.value), None
        )

    @property
    def last_s(self) -> float:
        """When it last changed (unix seconds); 0 for a status without a timeline."""
        return self.timeline[-1].time_s if self.timeline else 0.0

    def enter(self, phase: Phase, now_s: float, message: str) -> Status:
        """A copy in another phase (or with another message), with a new line in the timeline."""
        text = message[:_MOST_TEXT]
        moment = Moment(phase.value, now_s, text)
        # the beginning of a timeline says more than its middle
        kept = self.timeline if len(self.timeline) < _MOST_MOMENTS else self.timeline[:-2]
        return replace(self, phase=phase, message=text, timeline=(*kept, moment))

    def begin(self, method: RestartMethod, now_s: float) -> Status:
        """A copy with one more restart counted."""
        return replace(
            self, restarts=(*self.restarts, RestartRecord(method, now_s))[-_MOST_RESTARTS:]
        )


_INCIDENT = Codec(
    {
        Verdict: {
            "kind": wire("verdict"),
            "since_s": wire("since", time=True),
            "deadline_s": wire("deadline", time=True),
            "acts_at_s": wire("actsAt", time=True),
            "evidence": wire("evidence", lenient=True),
        }
        | dict.fromkeys(("job", "incident", "time_s", "waits", "factor"), wire(None)),
    }
)
"""JSON form of an Incident, whose object names its job itself."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One Incident object; `status` is None before the controller wrote one."""

    namespace: str
    name: str
    job: JobRef
    selector: Mapping[str, str]
    policy: str | None = None
    approved: bool = False
    status: Status | None = None
    uid: str = ""
    resource_version: str = ""
    created_s: float = 0.0
    finalizers: tuple[str, ...] = ()
    avoids: tuple[str, ...] = ()
    """Nodes that new pods of the job avoid."""
    avoids_until_s: float = 0.0
    is_leaving: bool = False
    """True if it was deleted and exists only until its finalizers are removed."""
    notified: tuple[str, ...] = ()
    """Messages sent about its end, as TARGET:PHASE."""

    @property
    def is_guarded(self) -> bool:
        """True if our finalizer delays its deletion until we have resumed its job."""
        return FINALIZER in self.finalizers

    @property
    def gang(self) -> GangId:
        return GangId.of(self.namespace, self.selector)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name) of the object."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class _Spec:
    job: JobRef
    selector: Mapping[str, str] = field(default_factory=dict)
    policy: str | None = None
    approved: bool = False


def incident_of(api: Mapping[str, Any], created_s: float = 0.0) -> Incident:
    """The incident in an object of the API; raises `ObjectError`."""
    metadata = api.get("metadata")
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        raise ObjectError("Incident: metadata.name: missing")
    name, finalizers = str(metadata["name"]), metadata.get("finalizers")
    try:
        spec = _INCIDENT.decode(_Spec, api.get("spec"), "spec")
        raw = api.get("status")
        begun = isinstance(raw, Mapping) and raw.get("phase")
        status = _INCIDENT.decode(Status, raw, "status") if begun else None
    except ObjectError as error:
        raise ObjectError(f"Incident {name}: {error}") from error
    return Incident(
        namespace=str(metadata.get("namespace", "")),
        name=name,
        job=spec.job,
        selector=spec.selector,
        policy=spec.policy,
        approved=spec.approved,
        status=status,
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        created_s=created_s,
        finalizers=tuple(map(str, finalizers)) if isinstance(finalizers, list) else (),
        avoids=_avoided(metadata),
        avoids_until_s=_until_s(metadata),
        is_leaving="deletionTimestamp" in metadata,
        notified=_notified(metadata.get("annotations")),
    )


def _annotation(metadata: Mapping[str, Any], key: str) -> str:
    annotations = metadata.get("annotations")
    return str(annotations.get(key, "")) if isinstance(annotations, Mapping) else ""


def _avoided(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    labels = metadata.get("labels")
    if not isinstance(labels, Mapping) or AVOID not in labels:
        return ()
    return tuple(filter(None, _annotation(metadata, AVOID_NODES).split(",")))


def _until_s(metadata: Mapping[str, Any]) -> float:
    try:
        return rfc3339.from_text(_annotation(metadata, AVOID_UNTIL))
    except ValueError:
        return 0.0


def _notified(annotations: object) -> tuple[str, ...]:
    text = annotations.get(NOTIFIED) if isinstance(annotations, Mapping) else None
    return tuple(text[:_MOST_NOTIFIED].split()) if isinstance(text, str) else ()


def object_of(incident: Incident) -> dict[str, Any]:
    """The object that creates an incident; its status is written separately (`status_of`)."""
    spec = _Spec(incident.job, incident.selector, incident.policy, incident.approved)
    metadata: dict[str, Any] = {"name": incident.name, "namespace": incident.namespace}
    metadata["labels"] = {"kcover.io/job-uid": incident.job.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "Incident",
        "metadata": metadata,
        "spec": encode(spec),
    }


def kept_verdict(verdict: Verdict) -> Verdict:
    """The part of a verdict that an Incident has room for: the CRD limits it, and the object names its job itself."""
    return Verdict(
        verdict.kind,
        verdict.cause,
        since_s=verdict.since_s,
        culprit=verdict.culprit,
        evidence=tuple(
            replace(evidence, text=evidence.text[:_MOST_TEXT]) for evidence in verdict.evidence[:64]
        ),
        victims=verdict.victims[:4096],
        deadline_s=verdict.deadline_s,
        unobserved=tuple(text[:_MOST_TEXT] for text in verdict.unobserved[:64]),
        graph=tuple(line[:_MOST_TEXT] for line in verdict.graph[:16]),
        certainty=verdict.certainty,
        acts_at_s=verdict.acts_at_s,
        acts_why=verdict.acts_why[:_MOST_TEXT],
    )


def status_of(status: Status) -> dict[str, Any]:
    """The status as a JSON object."""
    return _INCIDENT.encode(status)
