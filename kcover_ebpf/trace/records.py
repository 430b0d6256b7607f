"""The records of one trace, and their JSON form (docs/json.md). Pure.

A trace is a stream of lines in the envelope of all our JSON: `threads` (the table, at once), `stacks`,
then `verdict`; `end` closes it. With `--live` the table and the verdict come again and again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.diagnosis.describe_call import WaitTarget
from kcover_ebpf.diagnosis.verdict import ThreadRow, VerdictKind
from kcover_ebpf.errors import CannotObserve, UsageError
from kcover_ebpf.output.formatting import SCHEMA

UNKNOWN_CODE = CannotObserve.exit_code
"""What was seen does not suffice: for a script that is neither healthy nor a fault."""
_EDGE_TEXTS = ("from", "local", "remote", "state")
_EDGE_COUNTS = ("unread_bytes", "unsent_bytes", "unacked_bytes", "backoff")
EVENTS = ("trace", "threads", "stacks", "verdict", "end")


@dataclass(frozen=True, slots=True)
class TracedThread(ThreadRow):
    """One thread as of one pass."""

    pod: str | None = None
    state: str = "?"
    """R, S, D, T, t, F (frozen), Z."""
    call: str = ""
    """The system call it sits in; empty outside any."""
    text: str = ""
    """The call decoded for people."""
    since_s: float | None = None
    """Seconds in it; None while it runs, or where it is unknown."""
    cpu_share: float | None = None
    """Share of one CPU since the trace began; None at first sight."""
    ends_in_s: float | None = None
    """When its timed wait ends by itself; None for an untimed one."""
    lead: bool = False
    """The thread that represents its process."""
    waits_for: tuple[WaitTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of one thread, innermost first; empty where they were not observable."""

    pid: int
    tid: int
    rank: int | None = None
    python: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The first record: what was observed, and where."""

    job: str
    host: str
    pods: tuple[str, ...] = ()
    node: str | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a verdict record carries beside the fields of every verdict event."""

    verdict: Mapping[str, Any]
    headline: str
    reasons: tuple[str, ...] = ()
    edges: tuple[dict[str, Any], ...] = ()
    doubt: tuple[str, ...] = ()
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One decoded line of a stream."""

    event: str
    time_s: float
    """Unix seconds."""
    header: TraceHeader | None = None
    rows: tuple[TracedThread, ...] = ()
    stacks: tuple[Stack, ...] = ()
    blind: tuple[str, ...] = field(default_factory=tuple)
    """What was not observable."""
    conclusion: Conclusion | None = None
    exit_code: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The whole object."""


def exit_code_of(verdict: str) -> int:
    """The exit code of a run with this verdict."""
    if verdict == VerdictKind.UNKNOWN.value:
        return UNKNOWN_CODE
    return int(any(each.is_fault and each.value == verdict for each in VerdictKind))


def plain(record: Any) -> dict[str, Any]:
    """A record as the fields of a JSON object."""
    return dataclasses.asdict(record)


def parse(text: str) -> Line:
    """One line of a stream; raises `UsageError` for anything that is not one."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError("not a trace: not a JSON line; record one with --save") from error
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        raise UsageError(f"not a trace: a line without schema {SCHEMA}")
    event, time_s = fields.get("event"), fields.get("time")
    if event not in EVENTS or not isinstance(time_s, int | float) or isinstance(time_s, bool):
        raise UsageError(f"not a trace: a line with event {str(event)[:40]!r}")
    try:
        if not rfc3339.has_year(time_s):
            raise ValueError("no such year")
        return _line(event, float(time_s), fields)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise UsageError(f"this trace is damaged in its {event!r} record") from error


def _line(event: str, time_s: float, fields: dict[str, Any]) -> Line:
    blank = Line(event, time_s, fields=fields)
    match event:
        case "trace":
            return replace(blank, header=_header(fields))
        case "threads":
            return replace(blank, rows=tuple(_row(each) for each in _list(fields["threads"])))
        case "stacks":
            stacks = tuple(_stack(each) for each in _list(fields["stacks"]))
            return replace(blank, stacks=stacks, blind=_texts(fields.get("unobserved", [])))
        case "verdict":
            return replace(blank, conclusion=_conclusion(fields))
        case _:
            return replace(blank, exit_code=_typed(fields["exit_code"], int))


def _header(fields: dict[str, Any]) -> TraceHeader:
    return TraceHeader(
        job=_typed(fields["job"], str),
        host=_typed(fields["host"], str),
        pods=_texts(fields.get("pods", [])),
        node=_maybe(fields.get("node"), str),
        version=_typed(fields.get("version", ""), str),
    )


def _row(fields: dict[str, Any]) -> TracedThread:
    return TracedThread(
        rank=_maybe(fields.get("rank"), int),
        pid=_typed(fields["pid"], int),
        tid=_typed(fields["tid"], int),
        comm=_typed(fields["comm"], str),
        role=_typed(fields.get("role", "helper"), str),
        pod=_maybe(fields.get("pod"), str),
        state=_typed(fields.get("state", "?"), str),
        call=_typed(fields.get("call", ""), str),
        text=_typed(fields.get("text", ""), str),
        since_s=_number(fields.get("since_s")),
        cpu_share=_number(fields.get("cpu_share")),
        ends_in_s=_number(fields.get("ends_in_s")),
        lead=bool(fields.get("lead", False)),
        waits_for=tuple(_target(each) for each in _list(fields.get("waits_for", []))),
    )


def _target(fields: dict[str, Any]) -> WaitTarget:
    return WaitTarget(
        kind=_typed(fields["kind"], str),
        text=_typed(fields["text"], str),
        pid=_maybe(fields.get("pid"), int),
        tid=_maybe(fields.get("tid"), int),
        rank=_maybe(fields.get("rank"), int),
        fd=_maybe(fields.get("fd"), int),
        address=_maybe(fields.get("address"), str),
    )


def _stack(fields: dict[str, Any]) -> Stack:
    return Stack(
        pid=_typed(fields["pid"], int),
        tid=_typed(fields["tid"], int),
        rank=_maybe(fields.get("rank"), int),
        python=_texts(fields.get("python", [])),
        native=_texts(fields.get("native", [])),
        kernel=_texts(fields.get("kernel", [])),
    )


def _conclusion(fields: dict[str, Any]) -> Conclusion:
    edges = map(_edge, _list(fields.get("edges", [])))
    return Conclusion(
        verdict=fields,
        headline=_typed(fields["headline"], str),
        reasons=_texts(fields.get("reasons", [])),
        edges=tuple(edges),
        doubt=_texts(fields.get("doubt", [])),
        next_step=_typed(fields.get("next_step", ""), str),
    )


def _edge(fields: dict[str, Any]) -> dict[str, Any]:
    """As `tcp_connections.edges` makes them; keys that it does not make are left out."""
    return {
        "to": _maybe(fields.get("to"), str),
        **{key: _typed(fields.get(key, ""), str) for key in _EDGE_TEXTS},
        **{key: _maybe(fields.get(key), int) for key in ("pid", "fd", "peer_pid")},
        **{key: _typed(fields.get(key, 0), int) for key in _EDGE_COUNTS},
        **{key: _number(fields.get(key)) for key in ("send_age_s", "receive_age_s")},
    }


def _list(value: Any) -> list[Any]:
    return list(_typed(value, list))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_typed(each, str) for each in _list(value))


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(kind.__name__)
    return value


def _maybe(value: Any, kind: type) -> Any:
    return None if value is None else _typed(value, kind)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("number")
    return float(value)
