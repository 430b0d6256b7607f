"""Sinks for what the sensor observes: JSON lines, plain text lines, and a memory of recent facts.

The live table is in `run.terminal_table`, the metrics in `output.metrics`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.facts.kernel import Fact, FatalSignal, ProcessExit
from kcover_ebpf.model.verdict import Verdict, VerdictKind, WaitRow
from kcover_ebpf.output import formatting
from kcover_ebpf.run.out import Out

if TYPE_CHECKING:
    from kcover_ebpf.api.incident import Moment

_RECENT_FACTS = 200
_RECENT_MOMENTS = 64
_MOMENT_LENGTH = 512


class Sink:
    """Base class: receives what `Sensor` observes, plus the start and end of a run, and ignores all of it."""

    def on_start(self, fields: dict[str, Any]) -> None:
        """The sensor starts watching (again, after a restart); `fields["text"]` describes it."""

    def on_fact(self, fact: Fact) -> None:
        """Take an announced fact, such as an exit."""

    def on_verdict(self, verdict: Verdict) -> None:
        """Take a verdict that differs from the previous one."""

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """Take the waits of all ranks, once a pass."""

    def on_blind(self, reason: str) -> None:
        """Judging is suspended for a while, because records were lost."""

    def on_action(self, decision: Decision, text: str) -> None:
        """Take a decision and its result in `text`."""

    def on_end(self, fields: dict[str, Any]) -> None:
        """The run is over; `fields["text"]` describes it."""


class JsonSink(Sink):
    """One JSON object per line (docs/json.md)."""

    def __init__(self, out: Out, clock: Callable[[], float] = time.time) -> None:
        """`clock`: unix seconds for events without a time of their own; a replay has another clock than ours."""
        self._out, self._clock = out, clock
        out.notice = self._notice

    def _notice(self, count: int) -> str:
        return formatting.event_line("dropped", self._clock(), {"count": count}) + "\n"

    def _write(self, event: str, time_s: float, fields: dict[str, Any]) -> None:
        self._out.write(formatting.event_line(event, time_s, fields) + "\n")

    def on_start(self, fields: dict[str, Any]) -> None:
        """Write the event "start" (docs/json.md)."""
        self._write("start", self._clock(), fields)

    def on_fact(self, fact: Fact) -> None:
        """Write the event "fact" (docs/json.md)."""
        self._write("fact", self._clock(), formatting.fact_object(fact))

    def on_verdict(self, verdict: Verdict) -> None:
        """Write the event "verdict"; its `time` is the verdict's."""
        self._write("verdict", verdict.time_s, formatting.verdict_object(verdict))

    def on_blind(self, reason: str) -> None:
        """Write the event "blind" (docs/json.md)."""
        self._write("blind", self._clock(), {"reason": reason})

    def on_action(self, decision: Decision, text: str) -> None:
        """Write the event "action" (docs/json.md)."""
        fields = {
            "act": decision.act,
            "reason": decision.reason,
            "text": text,
            "job": decision.verdict.job,
            "incident": decision.verdict.incident,
        }
        self._write("action", self._clock(), fields)

    def on_end(self, fields: dict[str, Any]) -> None:
        """Write the event "end" (docs/json.md)."""
        self._write("end", self._clock(), fields)


class TextSink(Sink):
    """Plain lines, each with our name and the local time, since they appear between the job's lines."""

    def __init__(self, out: Out, clock: Callable[[], float] = time.time) -> None:
        """`clock`: unix seconds, as for `JsonSink`."""
        self._out, self._clock = out, clock
        out.notice = self._notice

    def _notice(self, count: int) -> str:
        return self._text(
            f"{count} messages before this one are missing: they could not be written"
        )

    def _write(self, first: str, *more: str) -> None:
        self._out.write(self._text(first, *more))

    def _text(self, first: str, *more: str) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self._clock()))
        lines = [
            f"[kcover {clock}] {formatting.printable(first)}",
            *(f"    {line}" for line in more),
        ]
        return "\n".join(lines) + "\n"

    def on_start(self, fields: dict[str, Any]) -> None:
        """Print what is watched, and how."""
        self._write(fields["text"])

    def on_fact(self, fact: Fact) -> None:
        """Print what the kernel announced, except the many processes that end normally.

        The exit of a dying process follows.
        """
        if isinstance(fact, FatalSignal):
            return
        if not isinstance(fact, ProcessExit) or fact.signal or fact.exit_code or not fact.known:
            self._write(formatting.fact_text(fact))

    def on_verdict(self, verdict: Verdict) -> None:
        """Print the headline and, unless all is well, the evidence."""
        more = () if verdict.kind is VerdictKind.WORKING else formatting.details(verdict)
        self._write(formatting.headline(verdict), *more)

    def on_blind(self, reason: str) -> None:
        """Print why nothing can be judged for a while."""
        self._write(f"blind: {reason}")

    def on_action(self, decision: Decision, text: str) -> None:
        """Print what was done, and why."""
        self._write(f"{decision.act.value}: {text} ({decision.reason})")

    def on_end(self, fields: dict[str, Any]) -> None:
        """Print how the run ended."""
        self._write(fields["text"])


class Recent(Sink):
    """Remembers the last facts, verdicts and actions, for a bundle."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: unix seconds, as for `JsonSink`."""
        self._clock = clock
        self.lines: deque[str] = deque(maxlen=_RECENT_FACTS)
        """The last facts, verdicts and actions, as JSON lines."""
        self._notes: deque[tuple[str, float, str]] = deque(maxlen=_RECENT_MOMENTS)

    @property
    def moments(self) -> list[Moment]:
        """Moments since the run began: starts, verdicts and actions."""
        # only a bundle needs them, and many runs write none
        from kcover_ebpf.api.incident import Moment

        return [Moment(phase, time_s, text) for phase, time_s, text in self._notes]

    def on_fact(self, fact: Fact) -> None:
        """Remember the fact as a JSON line."""
        fields = formatting.fact_object(fact)
        self.lines.append(formatting.event_line("fact", self._clock(), fields))

    def on_blind(self, reason: str) -> None:
        """Remember the lost records as a JSON line."""
        self.lines.append(formatting.event_line("blind", self._clock(), {"reason": reason}))

    def on_start(self, fields: dict[str, Any]) -> None:
        """Remember the time only; the text may contain arguments."""
        number = fields.get("restart", 0)
        self._note(
            "Started", self._clock(), f"restart {number}" if number else "the job is watched"
        )

    def on_verdict(self, verdict: Verdict) -> None:
        """Remember the verdict as a JSON line."""
        self._note(verdict.kind.value, verdict.time_s, formatting.headline(verdict))

    def on_action(self, decision: Decision, text: str) -> None:
        """Remember the action as a JSON line."""
        self._note(decision.act.value.capitalize(), self._clock(), text)

    def _note(self, phase: str, time_s: float, text: str) -> None:
        self._notes.append((phase, time_s, text[:_MOMENT_LENGTH]))


class Announcer(Sink):
    """Forwards to all sinks until hushed: what a job does while it is being shut down is not news."""

    def __init__(self, sinks: Sequence[Sink], *, wants_waits: bool) -> None:
        """`wants_waits`: true if a sink shows the wait table, which takes time to compute."""
        self._sinks = sinks
        self.wants_waits = wants_waits
        self.hushed = False
        self.verdict: Verdict | None = None
        """The last reported verdict; None before the first."""

    def on_start(self, fields: dict[str, Any]) -> None:
        """Forward, and stop hushing: the sensor watches (again)."""
        self.hushed = False
        for sink in self._sinks:
            sink.on_start(fields)

    def on_fact(self, fact: Fact) -> None:
        """Forward to all sinks unless hushed."""
        for sink in self._audience():
            sink.on_fact(fact)

    def on_verdict(self, verdict: Verdict) -> None:
        """Forward to all sinks unless hushed."""
        if not self.hushed:
            self.verdict = verdict
        for sink in self._audience():
            sink.on_verdict(verdict)

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """Forward to all sinks unless hushed."""
        for sink in self._audience():
            sink.on_waits(rows, summary)

    def on_blind(self, reason: str) -> None:
        """Forward to all sinks unless hushed."""
        for sink in self._audience():
            sink.on_blind(reason)

    def on_action(self, decision: Decision, text: str) -> None:
        """Always forward: an action is ours."""
        for sink in self._sinks:
            sink.on_action(decision, text)

    def on_end(self, fields: dict[str, Any]) -> None:
        """Always forward the end of the run."""
        for sink in self._sinks:
            sink.on_end(fields)

    def _audience(self) -> Sequence[Sink]:
        return () if self.hushed else self._sinks
