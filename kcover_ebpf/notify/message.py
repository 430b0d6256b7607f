"""The content of a message about an incident, independent of its format. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Incident, Phase, Status
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.verdict import FailureClass
from kcover_ebpf.notify.incident_trace import IncidentTrace, trace_of
from kcover_ebpf.output.formatting import culprit_text, printable, span

_WHERE = {
    FailureClass.HARDWARE: "infrastructure",
    FailureClass.NETWORK: "infrastructure",
    FailureClass.STORAGE: "infrastructure",
    FailureClass.PROGRAM: "program",
}
_BLAME = {
    "infrastructure": "The cause lies in the infrastructure ({kind}), not in the program.",
    "program": "The cause lies in the program, its input, or the memory that it was given.",
    "unknown": "Whether the infrastructure or the program caused it is not known.",
}
_OUTCOME = {
    Phase.OPEN: "a fault was detected",
    Phase.DECIDED: "a restart was decided",
    Phase.SHUTTING_DOWN: "is being shut down for a restart",
    Phase.RECOVERING: "is starting again",
    Phase.RECOVERED: "was restarted and makes progress again",
    Phase.OBSERVED: "has a fault, and nothing was done",
    Phase.REFUSED: "has a fault, and its restart was refused",
    Phase.FAILED: "could not be restarted",
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Every field is text for people and templates, empty if unknown."""

    id: str
    """Equal for the same phase of the same incident, whichever replica sends it."""
    incident: str
    namespace: str
    kind: str
    job: str
    phase: str
    verdict: str
    cause: str
    certainty: str
    acts_at: str
    """When an armed job is ended if nothing moves; empty if it is not."""
    where: str
    """Side with the cause: infrastructure, program or unknown."""
    blame: str
    """`where` as a sentence for the reader of the message."""
    culprit: str
    pod: str
    node: str
    rank: str
    device: str
    owner: str
    summary: str
    text: str
    """Main text: the verdict and what is done about it."""
    since: str
    time: str
    lost: str
    """Time lost so far, such as "12.1s"."""
    restarts: str
    explain: str
    """The command that shows the whole incident."""
    trace: IncidentTrace
    """The incident as a trace, for targets that are programs; not available to templates."""

    @property
    def is_resolved(self) -> bool:
        """True if the job is training again."""
        return self.phase == Phase.RECOVERED.value


WORDS = frozenset(field.name for field in fields(Message) if field.name != "trace")
"""Names of the fields that a template may contain."""
_ORDERED = tuple(field.name for field in fields(Message) if field.name in WORDS)


def message_of(incident: Incident, status: Status) -> Message:
    """The message about the current phase of an incident.

    Control characters are made visible, because names come from jobs.
    """
    culprit = status.culprit
    kind = (status.failure or FailureClass.UNKNOWN).value
    where = _WHERE.get(status.failure or FailureClass.UNKNOWN, "unknown")
    name = f"{incident.job.kind} {incident.namespace}/{incident.job.name}"
    said = " ".join(part.value for part in (status.kind, status.cause) if part is not None)
    summary = f"{name} {_OUTCOME[status.phase]}: {said}"
    if culprit is not None and (culprit.rank is not None or culprit.pod or culprit.node):
        summary += f", {culprit_text(culprit)}"
    return Message(
        id=f"{incident.uid or incident.name}/{status.phase.value}",
        incident=incident.name,
        namespace=incident.namespace,
        kind=incident.job.kind,
        job=incident.job.name,
        phase=status.phase.value,
        verdict=status.kind.value if status.kind is not None else "",
        cause=status.cause.value if status.cause is not None else "",
        certainty=status.certainty.value if status.certainty is not None else "",
        acts_at=_time(status.verdict.acts_at_s if status.verdict is not None else None),
        where=where,
        blame=_BLAME[where].format(kind=kind),
        culprit=printable(culprit_text(culprit)) if culprit is not None else "",
        pod=_text(culprit.pod if culprit is not None else None),
        node=_text(culprit.node if culprit is not None else None),
        rank=_text(culprit.rank if culprit is not None else None),
        device=_text(culprit.device if culprit is not None else None),
        owner=_text(status.owner),
        summary=printable(summary),
        text=printable(status.message),
        since=_time(status.since_s),
        time=_time(status.last_s),
        lost=span(status.lost.total_s) if status.lost is not None else "",
        restarts=str(len(status.restarts)),
        explain=f"kubectl kcover explain {incident.name} -n {incident.namespace}",
        trace=trace_of(incident, status),
    )


def fields_of(message: Message) -> Mapping[str, str]:
    """The text fields of the message, for a JSON object."""
    return {name: getattr(message, name) for name in _ORDERED}


def lines_of(message: Message) -> list[str]:
    """The lines of the message below its summary, for people."""
    is_open = message.phase == Phase.OPEN.value
    known = (
        ("Owner", message.owner),
        ("Culprit", message.culprit),
        ("Certainty", message.certainty),
        ("Ended, if nothing moves, at", message.acts_at if is_open else ""),
        ("Time lost", message.lost),
        ("Restarts", message.restarts),
        ("Since", message.since),
    )
    facts = [f"{title}: {text}" for title, text in known if text]
    return [message.blame, message.text, *facts, f"More: {message.explain}"]


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))


def _time(time_s: float | None) -> str:
    return "" if time_s is None else rfc3339.in_seconds(time_s)
