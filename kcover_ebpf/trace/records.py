"""The records of one trace, and their JSON form (docs/json.md). Pure.

A trace is a stream of lines in the envelope of all our JSON: `threads` (the table, at once), `stacks`, then
`verdict`; `end` closes it. With `--live` the table and the verdict are repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import Codec, Omit, wire
from kcover_ebpf.api.json_values import WrongValue
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve, UsageError
from kcover_ebpf.model.traced import Stack
from kcover_ebpf.model.verdict import ThreadRow, VerdictKind
from kcover_ebpf.output.formatting import SCHEMA
from kcover_ebpf.trace.describe_call import WaitTarget

UNKNOWN_CODE = CannotObserve.exit_code
"""Exit code if the evidence is insufficient, for scripts: neither healthy nor a fault."""
EVENTS = ("trace", "threads", "stacks", "verdict", "end")
TRACE = Codec(key=str, omit=Omit.NOTHING)
"""JSON form of a record: all fields, under their own names."""


@dataclass(frozen=True, slots=True)
class TracedThread(ThreadRow):
    """One thread as of one pass."""

    pod: str | None = None
    state: str = "?"
    """One of R, S, D, T, t, F (frozen), Z."""
    call: str = ""
    """Name of the system call it is in; empty outside any."""
    text: str = ""
    """The decoded call as text."""
    since_s: float | None = None
    """Seconds in the call; None while it runs, or if unknown."""
    cpu_share: float | None = None
    """Share of one CPU since the trace began; None in its first pass."""
    ends_in_s: float | None = None
    """Seconds until its timed wait ends by itself; None for an untimed one."""
    lead: bool = False
    """True for the thread that represents its process."""
    waits_for: tuple[WaitTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The first record: what was observed, and where."""

    job: str
    host: str
    pods: tuple[str, ...] = ()
    node: str | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class TracedConnection:
    """One connected socket of the job; ages in seconds, None for never."""

    owner: str = field(default="", metadata=wire("from"))
    """Name of the process that has it open."""
    peer: str | None = field(default=None, metadata=wire("to"))
    """Name of the process at the other end; None if it is not part of the job."""
    pid: int | None = None
    fd: int | None = None
    peer_pid: int | None = None
    local: str = ""
    remote: str = ""
    state: str = ""
    unread_bytes: int = 0
    unsent_bytes: int = 0
    unacked_bytes: int = 0
    backoff: int = 0
    send_age_s: float | None = None
    receive_age_s: float | None = None

    @property
    def is_queued(self) -> bool:
        """True if data is queued on it."""
        return any((self.unread_bytes, self.unsent_bytes, self.unacked_bytes, self.backoff))


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Fields of a verdict record in addition to those of every verdict event."""

    headline: str
    reasons: tuple[str, ...] = ()
    edges: tuple[TracedConnection, ...] = ()
    doubt: tuple[str, ...] = ()
    next_step: str = ""
    verdict: Mapping[str, Any] = field(default_factory=dict, metadata=wire(None))
    """All fields of the record, by name."""


@dataclass(frozen=True, slots=True)
class ThreadTable:
    """Content of the record `threads`."""

    threads: tuple[TracedThread, ...]


@dataclass(frozen=True, slots=True)
class StackTable:
    """Content of the record `stacks`."""

    stacks: tuple[Stack, ...]
    unobserved: tuple[str, ...] = ()
    """What could not be observed, as sentences."""


@dataclass(frozen=True, slots=True)
class _End:
    exit_code: int


@dataclass(frozen=True, slots=True)
class Line:
    """One decoded line of a trace."""

    event: str
    time_s: float
    """Time of the record (unix seconds)."""
    header: TraceHeader | None = None
    rows: tuple[TracedThread, ...] = ()
    stacks: tuple[Stack, ...] = ()
    blind: tuple[str, ...] = field(default_factory=tuple)
    """What could not be observed, as sentences."""
    conclusion: Conclusion | None = None
    exit_code: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The whole JSON object of the line."""


def exit_code_of(verdict: str) -> int:
    """The exit code of a run with this verdict."""
    if verdict == VerdictKind.UNKNOWN.value:
        return UNKNOWN_CODE
    return int(any(kind.is_fault and kind.value == verdict for kind in VerdictKind))


def parse(text: str) -> Line:
    """One line of a stream; raises `UsageError` for anything else."""
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
    except (WrongValue, ValueError, OverflowError) as error:
        raise UsageError(f"this trace is damaged in its {event!r} record: {error}") from error


def _line(event: str, time_s: float, fields: dict[str, Any]) -> Line:
    blank = Line(event, time_s, fields=fields)
    match event:
        case "trace":
            return replace(blank, header=TRACE.read(TraceHeader, fields))
        case "threads":
            return replace(blank, rows=TRACE.read(ThreadTable, fields).threads)
        case "stacks":
            table = TRACE.read(StackTable, fields)
            return replace(blank, stacks=table.stacks, blind=table.unobserved)
        case "verdict":
            conclusion = TRACE.read(Conclusion, fields)
            return replace(blank, conclusion=replace(conclusion, verdict=fields))
        case _:
            return replace(blank, exit_code=TRACE.read(_End, fields).exit_code)
