"""One of several runs that watch one job: reports what it observes, and carries out what is decided for all.

The verdicts are those on the whole job. A verdict from this host alone is not announced and ends nothing: for a
part of a job it is often wrong. The run is over when the job has ended on all hosts, because its own ranks may wait
for others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kcover_ebpf import __version__
from kcover_ebpf.api.fault_report import FaultReport, PodRef
from kcover_ebpf.diagnosis.clock.progress import Stall
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.gang.rank_report import verdict_of, with_snapshots
from kcover_ebpf.model.verdict import WaitRow
from kcover_ebpf.run import outcome
from kcover_ebpf.run.join.member import Member
from kcover_ebpf.run.join.messages import CoordinatorMessage, EndOrder
from kcover_ebpf.run.outcome import Outcome, Reason
from kcover_ebpf.run.session import Session
from kcover_ebpf.run.sinks import Announcer, Sink
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.host import JOIN_BEAT_S, JOIN_ENDED_S
from kcover_ebpf.watching.judging import ObservationSink
from kcover_ebpf.watching.loop import Sensor


class _FactsOnly(Sink):
    """Forwards what is observed here, and no verdict on this part of the job."""

    def __init__(self, sinks: tuple[ObservationSink, ...], announcer: Announcer) -> None:
        """`announcer`: has the verdict on the whole job."""
        self._sinks, self._announcer = sinks, announcer
        self.wants_waits = any(getattr(sink, "wants_waits", False) for sink in sinks)

    def on_fact(self, fact: Fact) -> None:
        """Forward an announced fact to the sinks."""
        for sink in self._sinks:
            sink.on_fact(fact)

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:  # noqa: ARG002
        """Forward the waits of the ranks here, with a summary of the verdict on the whole job."""
        verdict = self._announcer.verdict
        whole = "" if verdict is None else f"{verdict.kind.value} {verdict.cause.value}"
        for sink in self._sinks:
            sink.on_waits(rows, whole)

    def on_blind(self, reason: str) -> None:
        """Forward that judging is suspended for a while."""
        for sink in self._sinks:
            sink.on_blind(reason)


class _PartSensor(Sensor):
    """A sensor of a part of a job, which calls back after each pass."""

    def __init__(self, after_pass: Callable[[], None], *parts: Any, **more: Any) -> None:
        super().__init__(*parts, whole=False, **more)
        self._after_pass = after_pass
        self.has_failed = False
        """True once it has failed: what it observed before says nothing about the present."""

    def run(self, until: Callable[[], bool]) -> None:
        """As `Sensor.run`, which may raise any error."""
        try:
            super().run(until)
        except Exception:
            self.has_failed = True
            raise

    def step(self) -> None:
        """Make one pass, then call back."""
        super().step()
        self._after_pass()


class JoinedSession(Session):
    """One run that is a member of a joined group."""

    _sensor: _PartSensor

    def __init__(self, member: Member, *parts: Any, **more: Any) -> None:
        """`parts`: the arguments of `Session`."""
        self._member = member
        self._is_gang_over = self._is_held = False
        """True after we ended the job; it is restarted once all hosts have ended it."""
        self._reported_code: int | None = None
        self._reported_s = 0.0
        self._lost_reason: str | None = None
        self._lost_s: float | None = None
        """Monotonic time at which the connection was found lost; None while there is one."""
        super().__init__(*parts, **more)

    def _new_sensor(self) -> _PartSensor:
        self._is_held, self._reported_code = False, None
        return _PartSensor(
            self._after_pass,
            self._kernel,
            self._target,
            self._plan.settings,
            (_FactsOnly(self._sinks, self._announcer),),
            None,
            self._devices,
            self._recorder,
            reads_stacks=True,
        )

    def _is_over(self) -> bool:
        # here and not after a pass: a run whose sensor has failed makes none
        self._take_orders()
        ended = super()._is_over()
        assert self._supervisor is not None
        code = self._supervisor.job_code
        if ended and (code is None or self._is_to_end):
            return True
        if code is not None and self._reported_code is None and not self._is_held:
            if not self._sensor.has_failed:
                self._after_pass()  # observations precede the end itself
            self._reported_code = code
            self._member.ended(code)
        if self._is_gang_over:
            return True
        return code is not None and not self._is_held and self._member.why_lost is not None

    def _start_again(self) -> bool:
        begun = super()._start_again()
        # effects of our own kill are not faults of the next start
        self._sensor.tracker = Tracker(self._plan.name, os.uname().nodename)
        return begun

    def _has_ended_by_itself(self) -> bool:
        """True if it ended before the order came.

        Hosts are not ended at the same moment, and ranks may die because others were ended.
        """
        return self._reported_code is not None

    def _time_over(self) -> Outcome:
        """The end of a run that has ended a running job; by the others' order if it is over for all of them."""
        if not self._is_gang_over:
            return super()._time_over()
        reason = Reason.RESTARTS if self._plan.settings.act is Act.RESTART else Reason.SHUTDOWN
        why = "the job was ended on the other hosts, and this one did not do so in time"
        return outcome.shut_down(reason, why)

    @property
    def _is_to_end(self) -> bool:
        """True if the user, the time or a decision ends the run; the end of the job here is not enough."""
        is_late = self._end_s is not None and time.monotonic() >= self._end_s
        return bool(self._signal or self._outcome or self._pause_s is not None or is_late)

    def _take_orders(self) -> None:
        self._say_whether_lost()
        for message in self._member.received():
            self._take(message)

    def _after_pass(self) -> None:
        """Report at most once a second, less often while all is well."""
        report = self._report()
        pause_s = 1.0 if report.is_urgent or report.ranks else JOIN_BEAT_S
        if not self._is_held and time.monotonic() - self._reported_s >= pause_s:
            self._reported_s = time.monotonic()
            self._member.report(report)

    def _report(self) -> FaultReport:
        job, tracker = self._sensor.job, self._sensor.tracker
        host, now_s = os.uname().nodename, time.time()
        pods = dict.fromkeys(job.snapshot().processes, host)
        latest = tracker.latest or tracker.current
        stall = job.attention.stall
        report = FaultReport(
            node=host,
            time_s=now_s,
            sequence=0,
            agent=__version__,
            pods=(PodRef(host, host),),
            suspicious=stall is Stall.CERTAIN,
            trained=job.pace.trained,
            verdict=latest and verdict_of(latest, host, now_s, pods, {host: host}),
        )
        if stall is Stall.NONE and not report.is_urgent:
            return report
        return with_snapshots(report, job, pods)

    def _say_whether_lost(self) -> None:
        reason, now_s = self._member.why_lost, time.monotonic()
        if reason is not None and reason != self._lost_reason:
            text = f"cannot reach the run on the other hosts: {reason}; no decision is made here"
            for sink in self._sinks:
                sink.on_blind(text)
        self._lost_reason = reason
        self._lost_s = None if reason is None else self._lost_s or now_s
        gives_up = (
            self._member.refused is not None or now_s - (self._lost_s or now_s) > JOIN_ENDED_S
        )
        if self._is_held and gives_up:
            why = f"not restarted: cannot reach the run on the other hosts: {reason}"
            self._outcome = outcome.shut_down(Reason.RESTARTS, why)

    # ---- decisions for all hosts

    def _take(self, message: CoordinatorMessage) -> None:
        if message.verdict is not None:
            for sink in self._sinks:
                sink.on_verdict(message.verdict)
        if message.end is not None:
            self._obey(message.end)
        # the order comes twice if the connection was lost meanwhile
        if message.start is not None and self._is_held and self._pause_s is None:
            self.restart_count += 1
            self._member.begin(self.restart_count)
            self._pause_s = message.start.pause_s
        if message.over:
            self._is_gang_over = True
            if self._is_held:
                why = "not restarted: another host did not end its part of the job"
                self._outcome = outcome.shut_down(Reason.RESTARTS, why)

    def _obey(self, order: EndOrder) -> None:
        """Save evidence, or end the job; if the user ends the run, the rest of an order is not carried out."""
        if self._signal is not None or self._outcome is not None or self._is_held:
            return
        decision = Decision(order.act, order.reason, order.verdict)
        if not self._sensor.has_failed:
            self._snapshot(decision)
        if order.act is Act.SNAPSHOT:
            return
        if order.act is Act.RESTART:
            self._is_held = self._kill(decision)
        elif order.refusal:
            text = f"not restarted: {order.refusal}"
            instead = replace(decision, reason=f"{order.reason}; {order.refusal}")
            self._shut_down(instead, Reason.RESTARTS, text)
        else:
            self._shut_down(decision, Reason.SHUTDOWN, "the job was shut down on all hosts")
        self._is_gang_over |= order.act is Act.SHUTDOWN
        # a part that did not die keeps the others from starting the job again
        if order.act is Act.SHUTDOWN or self._is_held:
            self._member.done(order.id)
