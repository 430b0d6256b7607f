"""Where the sensor's words go: JSON lines, plain text lines, and a memory of recent facts.

The live table is in `run.terminal_table`, the metrics in `output.metrics`. A reader that goes away (a
closed pipe) silences a sink and does no other harm.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.facts.kernel import Fact, FatalSignal, ProcessExit
from kcover_ebpf.model.verdict import Verdict, VerdictKind, WaitRow
from kcover_ebpf.output import formatting

if TYPE_CHECKING:
    from kcover_ebpf.api.incident import Moment

_RECENT_FACTS = 200
_RECENT_MOMENTS = 64
_MOMENT_LENGTH = 512


class Out:
    """A file descriptor for whole lines; quiet after the first failed write."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._broken = False

    def write(self, text: str) -> None:
        """Write all of it in one call where the reader keeps up, so that lines never mix."""
        data = text.encode("utf-8", "backslashreplace")
        while data and not self._broken:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError:  # EPIPE, EIO: it is no longer read
                self._broken = True


class Sink:
    """What `Sensor` reports to its sinks, plus the start and end of a run; ignores all of it."""

    def on_start(self, fields: dict[str, Any]) -> None:
        """The sensor watches now (again, after a restart); `fields["text"]` says it to people."""

    def on_fact(self, fact: Fact) -> None:
        """An announced fact."""

    def on_verdict(self, verdict: Verdict) -> None:
        """A verdict that differs from the one before."""

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """Once a tick: who waits where."""

    def on_blind(self, reason: str) -> None:
        """For a while nothing can be said."""

    def on_action(self, decision: Decision, text: str) -> None:
        """Something was done about a verdict."""

    def on_end(self, fields: dict[str, Any]) -> None:
        """The run is over; `fields["text"]` says it to people."""


class JsonSink(Sink):
    """One JSON object a line (docs/json.md)."""

    def __init__(self, out: Out, clock: Callable[[], float] = time.time) -> None:
        """`clock`: unix seconds of what carries no time; a replay has another clock than ours."""
        self._out, self._clock = out, clock

    def _write(self, event: str, time_s: float, fields: dict[str, Any]) -> None:
        self._out.write(formatting.event_line(event, time_s, fields) + "\n")

    def on_start(self, fields: dict[str, Any]) -> None:
        """Event "start"."""
        self._write("start", self._clock(), fields)

    def on_fact(self, fact: Fact) -> None:
        """Event "fact"."""
        self._write("fact", self._clock(), formatting.fact_object(fact))

    def on_verdict(self, verdict: Verdict) -> None:
        """Event "verdict"; its `time` is the verdict's."""
        self._write("verdict", verdict.time_s, formatting.verdict_object(verdict))

    def on_blind(self, reason: str) -> None:
        """Event "blind"."""
        self._write("blind", self._clock(), {"reason": reason})

    def on_action(self, decision: Decision, text: str) -> None:
        """Event "action"."""
        fields = {
            "act": decision.act,
            "reason": decision.reason,
            "text": text,
            "job": decision.verdict.job,
            "incident": decision.verdict.incident,
        }
        self._write("action", self._clock(), fields)

    def on_end(self, fields: dict[str, Any]) -> None:
        """Event "end"."""
        self._write("end", self._clock(), fields)


class TextSink(Sink):
    """Plain lines, each opened by our name and the local time, for they are between the job's."""

    def __init__(self, out: Out, clock: Callable[[], float] = time.time) -> None:
        """`clock`: unix seconds, as of `JsonSink`."""
        self._out, self._clock = out, clock

    def _write(self, first: str, *more: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(self._clock()))
        lines = [
            f"[kcover {clock}] {formatting.printable(first)}",
            *(f"    {line}" for line in more),
        ]
        self._out.write("\n".join(lines) + "\n")

    def on_start(self, fields: dict[str, Any]) -> None:
        """Say what is watched."""
        self._write(fields["text"])

    def on_fact(self, fact: Fact) -> None:
        """Say what the kernel announced, but for the many processes that end as they should.

        The exit of who is dying follows.
        """
        if isinstance(fact, FatalSignal):
            return
        if not isinstance(fact, ProcessExit) or fact.signal or fact.exit_code or not fact.known:
            self._write(formatting.fact_text(fact))

    def on_verdict(self, verdict: Verdict) -> None:
        """The headline and, unless all is well, what supports it."""
        more = () if verdict.kind is VerdictKind.WORKING else formatting.details(verdict)
        self._write(formatting.headline(verdict), *more)

    def on_blind(self, reason: str) -> None:
        """Say why nothing can be said."""
        self._write(f"blind: {reason}")

    def on_action(self, decision: Decision, text: str) -> None:
        """Say what was done, and why."""
        self._write(f"{decision.act.value}: {text} ({decision.reason})")

    def on_end(self, fields: dict[str, Any]) -> None:
        """Say how it ended."""
        self._write(fields["text"])


class Recent(Sink):
    """Remembers the last facts, verdicts and actions, for the bundle of a snapshot."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: unix seconds, as of `JsonSink`."""
        self._clock = clock
        self.lines: deque[str] = deque(maxlen=_RECENT_FACTS)
        """As JSON lines."""
        self._notes: deque[tuple[str, float, str]] = deque(maxlen=_RECENT_MOMENTS)

    @property
    def moments(self) -> list[Moment]:
        """Since the run began: starts, verdicts, and what was done."""
        # only a snapshot asks, and many a run makes none
        from kcover_ebpf.api.incident import Moment

        return [Moment(phase, time_s, text) for phase, time_s, text in self._notes]

    def on_fact(self, fact: Fact) -> None:
        """Remember it."""
        fields = formatting.fact_object(fact)
        self.lines.append(formatting.event_line("fact", self._clock(), fields))

    def on_blind(self, reason: str) -> None:
        """Remember it."""
        self.lines.append(formatting.event_line("blind", self._clock(), {"reason": reason}))

    def on_start(self, fields: dict[str, Any]) -> None:
        """Remember when; the text may name arguments."""
        number = fields.get("restart", 0)
        self._note(
            "Started", self._clock(), f"restart {number}" if number else "the job is watched"
        )

    def on_verdict(self, verdict: Verdict) -> None:
        """Remember it."""
        self._note(verdict.kind.value, verdict.time_s, formatting.headline(verdict))

    def on_action(self, decision: Decision, text: str) -> None:
        """Remember it."""
        self._note(decision.act.value.capitalize(), self._clock(), text)

    def _note(self, phase: str, time_s: float, text: str) -> None:
        self._notes.append((phase, time_s, text[:_MOMENT_LENGTH]))


class Announcer(Sink):
    """Forwards to all sinks until hushed: what a job does while it is being shut down is not news."""

    def __init__(self, sinks: Sequence[Sink], *, wants_waits: bool) -> None:
        """`wants_waits`: one of them shows the wait table, which costs something to make."""
        self._sinks = sinks
        self.wants_waits = wants_waits
        self.hushed = False
        self.verdict: Verdict | None = None
        """The one reported last."""

    def on_start(self, fields: dict[str, Any]) -> None:
        """Report, and listen to the sensor (again)."""
        self.hushed = False
        for sink in self._sinks:
            sink.on_start(fields)

    def on_fact(self, fact: Fact) -> None:
        """Report unless hushed."""
        for sink in self._audience():
            sink.on_fact(fact)

    def on_verdict(self, verdict: Verdict) -> None:
        """Report unless hushed."""
        if not self.hushed:
            self.verdict = verdict
        for sink in self._audience():
            sink.on_verdict(verdict)

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """Report unless hushed."""
        for sink in self._audience():
            sink.on_waits(rows, summary)

    def on_blind(self, reason: str) -> None:
        """Report unless hushed."""
        for sink in self._audience():
            sink.on_blind(reason)

    def on_action(self, decision: Decision, text: str) -> None:
        """Always reported: an action is ours."""
        for sink in self._sinks:
            sink.on_action(decision, text)

    def on_end(self, fields: dict[str, Any]) -> None:
        """Always reported."""
        for sink in self._sinks:
            sink.on_end(fields)

    def _audience(self) -> Sequence[Sink]:
        return () if self.hushed else self._sinks
