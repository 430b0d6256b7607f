"""Converts an incident to a trace: a span for each phase from the first sign to the first step, facts as events.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import pairwise

from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.output.formatting import printable

Attributes = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A fact or an action at one moment of an incident."""

    name: str
    time_s: float
    """Unix seconds at which it happened."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One phase of an incident; begin and end are unix seconds."""

    name: str
    begin_s: float
    end_s: float
    span_id: int
    attributes: Attributes = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class IncidentTrace:
    """The whole incident, and its phases in order.

    The ids are derived from the incident's uid, so that sending it twice gives one trace.
    """

    trace_id: int
    root_span: TraceSpan
    """Span of the whole incident, parent of the others."""
    phases: tuple[TraceSpan, ...]
    failed: str = ""
    """Why the restart failed; empty if it did not."""


def trace_of(incident: Incident, status: Status) -> IncidentTrace:
    """The trace of an incident as known in this phase. An unfinished phase ends at the end of the trace."""
    identity = incident.uid or f"{incident.namespace}/{incident.name}"
    begins = list(_begins(status))
    end_s = max([status.last_s, *(begin_s for _, begin_s in begins)])
    # if a clock was set back, no span may get a negative length
    edges = [*begins, ("", end_s)]
    phases = tuple(
        TraceSpan(
            name,
            begin_s,
            max(begin_s, next_s),
            _number(f"{identity}/{name}", 8),
            events=tuple(_facts(status, end_s=next_s)) if name == "detect" else (),
        )
        for (name, begin_s), (_, next_s) in pairwise(edges)
    )
    root_span = TraceSpan(
        f"incident {_words(status)}".rstrip(),
        begins[0][1] if begins else end_s,
        end_s,
        _number(f"{identity}/", 8),
        _attributes(incident, status),
        tuple(_moments(status)),
    )
    is_failed = status.phase in (Phase.FAILED, Phase.REFUSED)
    failed = printable(status.message) if is_failed else ""
    return IncidentTrace(_number(identity, 16), root_span, phases, failed)


def _number(text: str, size: int) -> int:
    """An id of `size` bytes derived from the text, never 0."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


def _words(status: Status) -> str:
    return " ".join(part.value for part in (status.kind, status.cause) if part is not None)


def _begins(status: Status) -> Iterator[tuple[str, float]]:
    """Phases that began, and when: in order, none before the previous one."""
    first_s = status.timeline[0].time_s if status.timeline else None
    named_s = status.at(Phase.OPEN) or status.at(Phase.DECIDED) or first_s
    down_s, back_s = status.at(Phase.SHUTTING_DOWN), status.at(Phase.RECOVERING)
    shut_down_s = status.lost.shut_down_s if status.lost is not None else None
    gone_s = down_s + shut_down_s if down_s is not None and shut_down_s is not None else None
    known = (
        ("detect", status.since_s if status.since_s is not None else named_s),
        ("decide", named_s),
        ("shut down", down_s),
        ("reschedule", gone_s),
        ("first progress", back_s),
    )
    last_s = float("-inf")
    for name, begin_s in known:
        if begin_s is not None:
            last_s = max(begin_s, last_s)
            yield name, last_s


def _facts(status: Status, end_s: float) -> Iterator[SpanEvent]:
    """The evidence of the verdict, at the time when the fault was diagnosed."""
    for evidence in status.evidence:
        about = {"kcover.evidence.kind": evidence.kind.value, "text": printable(evidence.text)}
        yield SpanEvent("evidence", end_s, about)
    for edge in status.verdict.graph if status.verdict is not None else ():
        yield SpanEvent("wait", end_s, {"text": printable(edge)})


def _moments(status: Status) -> Iterator[SpanEvent]:
    for moment in status.timeline:
        yield SpanEvent(moment.phase, moment.time_s, {"text": printable(moment.text or "")})
    for restart in status.restarts:
        yield SpanEvent("restart", restart.time_s, {"kcover.way": restart.way.value})
    for crash in status.crashes:
        about = {"kcover.fingerprint": crash.fingerprint, "k8s.node.name": crash.node or ""}
        yield SpanEvent("crash", crash.time_s, about)


def _attributes(incident: Incident, status: Status) -> dict[str, str | int | float]:
    """Attributes by the semantic conventions for Kubernetes, and our own; unknown ones are left out."""
    culprit = status.culprit
    texts = {
        "k8s.namespace.name": incident.namespace,
        "kcover.incident": incident.name,
        "kcover.job.kind": incident.job.kind,
        "kcover.job.name": incident.job.name,
        "kcover.job.uid": incident.job.uid,
        "kcover.phase": status.phase.value,
        "kcover.verdict": status.kind.value if status.kind else "",
        "kcover.cause": status.cause.value if status.cause else "",
        "kcover.certainty": status.certainty.value if status.certainty else "",
        "kcover.class": status.failure.value if status.failure else "",
        "kcover.owner": status.owner or "",
        "k8s.pod.name": (culprit.pod if culprit is not None else None) or "",
        "k8s.node.name": (culprit.node if culprit is not None else None) or "",
        "kcover.device": (culprit.device if culprit is not None else None) or "",
    }
    found: dict[str, str | int | float] = {
        name: printable(text) for name, text in texts.items() if text
    }
    if culprit is not None and culprit.rank is not None:
        found["kcover.rank"] = culprit.rank
    if status.lost is not None:
        found["kcover.lost_seconds"] = status.lost.total_s
    return found
