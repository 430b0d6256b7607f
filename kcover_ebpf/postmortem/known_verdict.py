"""The verdict in an archive: that of the Incident, or of the node that observed most. Pure."""

from __future__ import annotations

from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from kcover_ebpf.output.formatting import CAUSE_TEXT, span
from kcover_ebpf.recovery.closing import recorded_verdict
from kcover_ebpf.views.rank_numbers import ranks_text

_MOST_RUNS = 4


def verdict_of(archive: Archive) -> Verdict:
    """The verdict; UNKNOWN if neither an Incident nor a report contains one."""
    incident = archive.incident
    if incident is not None and incident.status is not None and incident.status.verdict is not None:
        return recorded_verdict(incident.status, archive.job, archive.name)
    found = [
        part.report.verdict
        for part in archive.parts
        if part.report is not None and part.report.verdict is not None
    ]
    faults = [verdict for verdict in found if verdict.kind.is_fault]
    return min(
        faults or found,
        key=lambda verdict: verdict.since_s,
        default=Verdict(VerdictKind.UNKNOWN, Cause.UNKNOWN, job=archive.job),
    )


def sentence(verdict: Verdict, status: Status | None) -> str:
    """The incident in one sentence: culprit, cause, number of victims, and outcome."""
    who = _who(verdict.culprit)
    text = CAUSE_TEXT[verdict.cause]
    if verdict.cause is Cause.UNKNOWN:
        text = f"{verdict.kind.value} {text}"
    words = [
        f"{who} {text}"
        if who
        else f"{verdict.kind.value}: the job {text}, and no single rank is at fault"
    ]
    if verdict.factor is not None:
        words.append(f", {verdict.factor:.1f} times as slow as its peers")
    if verdict.victims:
        words.append(f", while {_waited(verdict.victims)}")
    if status is not None:
        words.append(f"; {_outcome(status)}")
    joined = "".join(words)
    return joined[:1].upper() + joined[1:] + "."


def _who(culprit: Culprit | None) -> str:
    if culprit is None:
        return ""
    if culprit.rank is not None:
        either = "" if culprit.or_rank is None else f" or rank {culprit.or_rank}"
        name = f"rank {culprit.rank}{either}"
    elif culprit.pid is not None:
        name = f"process {culprit.pid}"
    else:
        name = "a rank"
    places = {"pod": culprit.pod, "on node": culprit.node, "device": culprit.device}
    said = " ".join(f"{label} {place}" for label, place in places.items() if place)
    return f"{name} ({said})" if said else name


def _waited(victims: tuple[int, ...]) -> str:
    if len(victims) == 1:
        return f"rank {victims[0]} waited for it"
    return f"{len(victims)} ranks ({ranks_text(victims, _MOST_RUNS)}) waited"


_OUTCOMES = {
    Phase.OPEN: "nothing was done yet when this was written",
    Phase.DECIDED: "a restart was decided when this was written",
    Phase.SHUTTING_DOWN: "the job was being ended when this was written",
    Phase.RECOVERING: "the job was restarted, and had made no progress yet when this was written",
    Phase.OBSERVED: "it was reported only",
    Phase.REFUSED: "the job was not restarted",
    Phase.FAILED: "its restart failed",
}


def _outcome(status: Status) -> str:
    if status.phase is Phase.RECOVERED and status.timeline:
        took = span((status.at(Phase.RECOVERED) or status.last_s) - status.began_s)
        return f"the job was restarted and made progress again {took} after the fault"
    return _OUTCOMES.get(status.phase, "the job made progress again")
