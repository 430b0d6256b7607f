"""The pure half of a job under watch: facts in; verdicts, announcements and decisions out.

It knows neither kernel nor host nor clock, so a recorded job is judged by the same code as a live one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kcover_ebpf.diagnosis.decisions import Decision, decide
from kcover_ebpf.diagnosis.evidence.odd_stack import EXPLAINED
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.devices import (
    AerError,
    BlockError,
    DeviceFault,
    DeviceNotice,
    DriverCall,
    MemoryFault,
    PortChange,
    XidReported,
)
from kcover_ebpf.facts.host import CollectivesSeen, ReadingRequest
from kcover_ebpf.facts.kernel import Fact, FatalSignal, OomKill, ProcessExit, SignalSent, Tick
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.model.verdict import Verdict, WaitRow
from kcover_ebpf.settings import Act, Settings
from kcover_ebpf.tunables.agent import BLINDNESS_AGAIN_NS

ANNOUNCED = (
    ProcessExit,
    OomKill,
    SignalSent,
    FatalSignal,
    XidReported,
    DeviceNotice,
    AerError,
    MemoryFault,
    PortChange,
    BlockError,
    DriverCall,
    DeviceFault,
)
"""Facts published and judged immediately rather than at the next pass."""


class ObservationSink(Protocol):
    """Receives what the sensor observes and decides."""

    def on_fact(self, fact: Fact) -> None:
        """Take an announced fact, such as an exit."""
        ...

    def on_verdict(self, verdict: Verdict) -> None:
        """Take a verdict that differs from the previous one."""
        ...

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """The state of the ranks, once a pass."""
        ...

    def on_blind(self, reason: str) -> None:
        """Records were lost; judging is suspended for a while."""
        ...

    def on_action(self, decision: Decision, text: str) -> None:
        """Take what is being done about a verdict."""
        ...


class InputRecorder(Protocol):
    """Records every input of a judgement, in order; everything that changes a `Job` passes here."""

    def on_fact(self, fact: Fact) -> None:
        """A fact that the job observed."""
        ...

    def on_reading(self) -> None:
        """The job was asked which threads are to be read, and remembers the question."""
        ...

    def on_ask(self) -> None:
        """The job was asked whether its collective library should be queried, and remembers the question."""
        ...

    def on_judge(self, unix_offset_s: float) -> None:
        """The job was judged; `unix_offset_s`: unix time minus boottime."""
        ...

    def on_hold(self) -> None:
        """The action of that judgement is postponed until the next one."""
        ...


class Judging:
    """One job from facts to decisions."""

    def __init__(  # noqa: PLR0913 - one part of the judgement each
        self,
        tracker: Tracker,
        table: SyscallTable,
        settings: Settings,
        sinks: Sequence[ObservationSink] = (),
        carry_out: Callable[[Decision], None] | None = None,
        *,
        whole: bool = True,
        recorder: InputRecorder | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`whole`: every rank of the job should be on this host; `recorder`: None: no record is kept.

        `is_ready`: true once the evidence was read again, so that the job may be ended; called at each pass.
        """
        self._settings, self._whole = settings, whole
        self._is_ready = is_ready
        self._sinks, self._carry_out, self._recorder = sinks, carry_out, recorder
        self.job = Job(settings.policy, table, whole=whole)
        self.tracker = tracker
        self._next_blind_ns = 0
        self._done: set[tuple[str, Act]] = set()
        self._stragglers: object = ()

    def take(self, fact: Fact) -> bool:
        """Feed one fact; True if the job should be judged at once."""
        if self._recorder is not None:
            self._recorder.on_fact(fact)
        self.job.observe(fact)
        if isinstance(fact, Tick):
            self._report_blind(fact)
        if isinstance(fact, CollectivesSeen):
            self._report_stragglers(fact)
        if not isinstance(fact, ANNOUNCED):
            return False
        self._publish(fact)
        return True

    def _publish(self, fact: Fact) -> None:
        for sink in self._sinks:
            sink.on_fact(fact)

    def _report_stragglers(self, collectives: CollectivesSeen) -> None:
        named = collectives.behind, collectives.missing, collectives.failed, collectives.sides
        if any(named) and named != self._stragglers:
            self._stragglers = named
            self._publish(collectives)

    def _report_blind(self, tick: Tick) -> None:
        sight, now_ns = self.job.sight, tick.boottime_ns
        if not sight.is_blind(now_ns):
            self._next_blind_ns = 0
        elif tick.late or now_ns >= self._next_blind_ns:
            self._next_blind_ns = now_ns + BLINDNESS_AGAIN_NS
            self._on_blind(sight.reason)
            return
        if tick.lost_count and self._whole:
            # if only one job is watched, lost records are its own
            self._on_blind(f"{tick.lost_count} records were lost")

    def _on_blind(self, reason: str) -> None:
        for sink in self._sinks:
            sink.on_blind(reason)

    def wants(self) -> list[ReadingRequest]:
        """Threads that should be read in this pass."""
        if self._recorder is not None:
            self._recorder.on_reading()
        return self.job.wants()

    def asks_collectives(self) -> bool:
        """True while the job's own NCCL should be asked: it has stalled, or a fault may be over."""
        if self._recorder is not None:
            self._recorder.on_ask()
        asks = self.job.attention.stalled or self.tracker.latest is not None
        if not asks:
            self.job.attention.forget_answers()
        return asks

    def wants_stacks(self) -> bool:
        """True while the Python stacks of the ranks here may explain a verdict that is near.

        In a part of a job they may explain a verdict that only all parts together show.
        """
        if not self.job.attention.stalled:
            return False
        return not self._whole or self.tracker.suspected in EXPLAINED

    def judge(self, unix_offset_s: float) -> None:
        """Report a changed verdict, and decide about a stable one."""
        if self._recorder is not None:
            self._recorder.on_judge(unix_offset_s)
        verdict = self.tracker.update(self.job, unix_offset_s)
        if verdict is not None:
            for sink in self._sinks:
                sink.on_verdict(verdict)
        self._decide(self.tracker.latest)

    def _decide(self, verdict: Verdict | None) -> None:
        # called at each pass while a fault lasts: evidence that was missing in the report may arrive later
        if verdict is None or self._carry_out is None:
            return
        decision = decide(verdict, self._settings.act)
        if decision.act is Act.OBSERVE or (verdict.incident, decision.act) in self._done:
            return
        if verdict.kind in EXPLAINED and not self._is_ready():
            if self._recorder is not None:
                self._recorder.on_hold()
            return
        self._done.add((verdict.incident, decision.act))
        self._carry_out(decision)
