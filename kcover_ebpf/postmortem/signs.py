"""Events that the nodes observed other than rank states, by time: devices, links, logs, kernel. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.api.incident import Moment, Status
from kcover_ebpf.api.json_values import WrongValue, map_of, number, text_of
from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.archive.node_part import NodePart
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.tunables.cli import MOMENTS_BEFORE_S, SIGNS_EARLIEST_S
from kcover_ebpf.views.timeline import TimelineEvent, in_order

FRAMEWORK = "framework"
"""Source of the only event that did not happen: the framework's own time-out."""
_MOST_EVENTS = 200
_MOST_LINKS = 20
_NOTED = ("fatal", "error", "warning")


def events_of(archive: Archive, verdict: Verdict) -> tuple[TimelineEvent, ...]:
    """All events with a time, from the first sign to the first training step afterwards."""
    status = archive.incident.status if archive.incident is not None else None
    found = list(_of_incident(status, verdict))
    signs = [event for part in archive.parts for event in _of_part(part)]
    since_s = verdict.since_s
    if since_s:
        signs = [event for event in signs if event.time_s > since_s - SIGNS_EARLIEST_S]
    ordered = in_order(signs)
    # events after the report of the fault are consequences of it
    reported = (event.time_s for event in found if event.source == "incident")
    decided_s = min((time_s for time_s in reported if time_s >= since_s), default=None)
    first = next(
        (event for event in ordered if decided_s is None or event.time_s <= decided_s), None
    )
    marked = [replace(event, is_first=event == first) for event in ordered]
    return in_order([*found, *_fewer(marked)])


def that_happened(events: Sequence[TimelineEvent]) -> Sequence[TimelineEvent]:
    """Without a deadline in the future, because half an hour without events would take the space of the others."""
    return [event for event in events if event.source != FRAMEWORK]


def _fewer(events: Sequence[TimelineEvent]) -> Sequence[TimelineEvent]:
    return events if len(events) <= _MOST_EVENTS else events[:_MOST_EVENTS]


def _of_incident(status: Status | None, verdict: Verdict) -> Iterator[TimelineEvent]:
    if verdict.since_s:
        yield TimelineEvent(verdict.since_s, "rank", "the fault began, as far as that was seen")
    if verdict.deadline_s is not None:
        text = "the framework's own time-out"
        yield TimelineEvent(verdict.deadline_s, FRAMEWORK, text)
    for moment in status.timeline if status is not None else ():
        # in a run of days, long healthy times would leave no space for the fault
        if moment.time_s >= verdict.since_s - MOMENTS_BEFORE_S:
            yield TimelineEvent(moment.time_s, "incident", _said(moment))


def _said(moment: Moment) -> str:
    text = moment.text or ""
    return text if text.startswith(moment.phase) else f"{moment.phase}: {text}".removesuffix(": ")


def _of_part(part: NodePart) -> Iterator[TimelineEvent]:
    if part.report is not None:
        yield from _of_devices(part.report)
        yield from _of_links(part.report)
        yield from _of_logs(part.report)
    for line in part.facts:
        event = _of_fact(line, part.node)
        if event is not None:
            yield event


def _of_devices(report: FaultReport) -> Iterator[TimelineEvent]:
    for fault in report.devices:
        if fault.age_s is not None:
            where = f"{fault.device} on {report.node}"
            text = f"{fault.fault}: {fault.text}"
            yield TimelineEvent(report.time_s - fault.age_s, "device", text, where)


def _of_links(report: FaultReport) -> Iterator[TimelineEvent]:
    found = [
        (socket.broken_age_s, socket, rank)
        for rank in report.ranks
        for socket in rank.sockets
        if socket.broken_age_s is not None
    ]
    for age_s, socket, rank in sorted(found, key=lambda entry: -entry[0])[:_MOST_LINKS]:
        who = f"rank {rank.rank}" if rank.rank is not None else f"process {rank.pid}"
        text = f"{who}: data to {socket.remote} is sent again and not acknowledged"
        yield TimelineEvent(report.time_s - age_s, "network", text, report.node)


def _of_logs(report: FaultReport) -> Iterator[TimelineEvent]:
    names = {pod.uid: pod.name for pod in report.pods}
    for log in report.logs:
        where = f"{names.get(log.pod_uid, log.pod_uid)}/{log.container}"
        for finding in log.findings:
            if finding.severity in _NOTED:
                age_s = finding.first_age_s if finding.first_age_s is not None else finding.age_s
                times = f" ({finding.count} lines)" if finding.count > 1 else ""
                text = f"{finding.rule}: {finding.meaning}{times}"
                yield TimelineEvent(report.time_s - age_s, "log", text, where)
        for traceback in log.tracebacks:
            place = f" in {traceback.place}" if traceback.place else ""
            text = f"Python traceback{place} ({traceback.rule})"
            yield TimelineEvent(report.time_s - traceback.age_s, "log", text, where)


_DETAILS = ("comm", "pid", "signal", "exit_code", "device", "number", "text", "disk", "port")


def _of_fact(line: str, node: str) -> TimelineEvent | None:
    """The event in one line of facts.jsonl; None for other lines, and for a process that ended normally."""
    try:
        fields = map_of(json.loads(line))
        time_s = number(fields.get("time"))
    except (ValueError, RecursionError, WrongValue):
        return None
    name = text_of(fields.get("fact")) or text_of(fields.get("event"))
    is_normal = not fields.get("signal") and not fields.get("exit_code")
    if not name or (name == "process_exit" and is_normal):
        return None
    plain = {key: value for key, value in fields.items() if isinstance(value, str | int | float)}
    said = [f"{key} {plain[key]}" for key in _DETAILS if plain.get(key) not in (None, "", 0)]
    parts = [name.replace("_", " "), *said, text_of(fields.get("reason"))]
    return TimelineEvent(time_s, "kernel", ", ".join(filter(None, parts)), node)
