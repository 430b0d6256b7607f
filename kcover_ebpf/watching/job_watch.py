"""One job under watch: its members, its facts, its verdict, and who receives them.

A `Sensor` moves the facts of the kernel to one of these; the agent of a node to many. Nothing here
judges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from kcover_ebpf.diagnosis.decisions import Decision, decide
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.roles import RANK_ENVIRON
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.diagnosis.verdict import Verdict, WaitRow
from kcover_ebpf.diagnosis.wait_table import wait_rows
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
from kcover_ebpf.facts.kernel import Fact, OomKill, ProcessExec, ProcessExit, SignalSent, Tick
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import procfs
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Act, Settings

if TYPE_CHECKING:
    from kcover_ebpf.hardware.ras.watch import RasWatch

_SAY_AGAIN_NS = 20_000_000_000
"""How often a blindness that lasts is said, so that an alert on its count goes on while it does."""

ANNOUNCED = (
    ProcessExit,
    OomKill,
    SignalSent,
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


def listen(
    kernel: KernelSampler, settings: Settings, urgent: bool, take: Callable[[Iterable[Fact]], bool]
) -> None:
    """Wait for the next pass.

    What the kernel announces meanwhile goes to `take`, for an announced fault must not wait; true from it ends
    the waiting.
    """
    period_s = settings.suspicious_period_s if urgent else settings.period_s
    end_ns = procfs.boottime_ns() + int(period_s * 1e9)
    while (left_ns := end_ns - procfs.boottime_ns()) > 0:
        events = kernel.wait(left_ns / 1e9)
        if not events or take(events):
            return


class Sink(Protocol):
    """Receives what the sensor observes."""

    def on_fact(self, fact: Fact) -> None:
        """An announced fact."""
        ...

    def on_verdict(self, verdict: Verdict) -> None:
        """A verdict that differs from the one before."""
        ...

    def on_waits(self, rows: Sequence[WaitRow], summary: str) -> None:
        """Where the ranks stand, once a pass."""
        ...

    def on_blind(self, reason: str) -> None:
        """Something was lost; nothing is judged for a while."""
        ...

    def on_action(self, decision: Decision, text: str) -> None:
        """What is being done about a verdict."""
        ...


class JobWatch:
    """Everything about one job but the loop: the caller samples, and routes facts here."""

    def __init__(  # noqa: PLR0913 - one part of the watch each
        self,
        kernel: KernelSampler,
        tracker: Tracker,
        table: SyscallTable,
        settings: Settings,
        sinks: Sequence[Sink] = (),
        carry_out: Callable[[Decision], None] | None = None,
        *,
        whole: bool = True,
        environ: frozenset[str] = RANK_ENVIRON,
        identities: Identities | None = None,
    ) -> None:
        """`whole`: every rank of the job should be on this host; `environ`: variables that identify ranks.

        `identities`: shared by the jobs of a node; None: of its own.
        """
        self._kernel, self._settings, self._whole = kernel, settings, whole
        self._next_blind_ns = 0
        self._sinks, self._carry_out, self._environ = sinks, carry_out, environ
        self._identities = Identities() if identities is None else identities
        self.job = Job(settings.policy, table, whole=whole)
        self.tracker = tracker
        self.members: set[Pid] = set()
        """Watched processes that live."""
        self._detailed: set[Pid] = set()
        self._done: set[tuple[str, Act]] = set()
        self._ras: RasWatch | None = None
        self._stragglers: object = ()
        self._watches_table = any(getattr(sink, "wants_waits", False) for sink in sinks)

    def join(self, pids: Iterable[int]) -> None:
        """Watch those that are not watched yet."""
        fresh = {Pid(pid) for pid in pids} - self.members
        for pid in fresh:
            self._kernel.watch(pid)
            self.members.add(pid)
        self._introduce(fresh)

    def prepare(self) -> None:
        """Before a pass: learn who is new, and say which processes are to be sampled in detail."""
        self._introduce(self.job.nameless)
        detailed = self.job.detailed
        for pid in detailed ^ self._detailed:
            self._kernel.set_detail(pid, pid in detailed)
        self._detailed = detailed

    def _introduce(self, pids: Collection[Pid]) -> None:
        if pids:
            for fact in self._identities.learn(pids, self._environ):
                self.job.observe(fact)

    def take(self, fact: Fact) -> bool:
        """Feed one fact; True if it should be judged at once."""
        self.job.observe(fact)
        if isinstance(fact, Tick):
            self._report_blind(fact)
        if isinstance(fact, ProcessExit | ProcessExec):
            # what is being read of it is of the program before
            self._identities.forget(fact.pid)
        if isinstance(fact, ProcessExit):
            self.members.discard(fact.pid)
        if not isinstance(fact, ANNOUNCED):
            return False
        for sink in self._sinks:
            sink.on_fact(fact)
        return True

    def _report_blind(self, tick: Tick) -> None:
        sight, now_ns = self.job.sight, tick.boottime_ns
        if not sight.is_blind(now_ns):
            self._next_blind_ns = 0
        elif tick.late or now_ns >= self._next_blind_ns:
            self._next_blind_ns = now_ns + _SAY_AGAIN_NS
            self._on_blind(sight.reason)
            return
        if tick.lost_count and self._whole:
            # where one job is watched, whatever was lost is its own
            self._on_blind(f"{tick.lost_count} records were lost")

    def _on_blind(self, reason: str) -> None:
        for sink in self._sinks:
            sink.on_blind(reason)

    def ask_collectives(self) -> None:
        """While it has stalled, or a fault was found that NCCL may know to be over: take what its own NCCL said."""
        asks = self.job.attention.stalled or self.tracker.latest is not None
        if self._ras is None:
            if not asks:
                return
            # few jobs ever need it
            from kcover_ebpf.hardware.ras.watch import RasWatch

            self._ras = RasWatch()
        if not asks:
            # what was said of one trouble says nothing about the next
            self.job.attention.collectives = None
        for fact in self._ras.tick(asks, self.job.members.ranks):
            self.job.observe(fact)
            named = fact.behind, fact.missing, fact.failed, fact.sides
            if any(named) and named != self._stragglers:
                self._stragglers = named
                for sink in self._sinks:
                    sink.on_fact(fact)

    def judge(self) -> None:
        """Report a verdict that changed, and decide on the stable one."""
        verdict = self.tracker.update(self.job, procfs.unix_offset_s())
        if verdict is not None:
            for sink in self._sinks:
                sink.on_verdict(verdict)
        self._decide(self.tracker.latest)

    def _decide(self, fault: Verdict | None) -> None:
        # asked at each pass while a fault lasts: evidence that was missing when it was reported may arrive later
        if fault is None or self._carry_out is None:
            return
        policy = self._settings.policy
        decision = decide(fault, self._settings.act, policy.hard_limit_s, policy.link_patience_s)
        if decision.act is Act.OBSERVE or (fault.incident, decision.act) in self._done:
            return
        self._done.add((fault.incident, decision.act))
        self._carry_out(decision)

    def publish_table(self) -> None:
        """Publish which thread waits where, if anybody subscribed."""
        verdict = self.tracker.current
        finding = self.job.finding() if self._watches_table and verdict is not None else None
        if finding is None or verdict is None:
            return
        rows = wait_rows(self.job, finding)
        for sink in self._sinks:
            sink.on_waits(rows, f"{verdict.kind.value} {verdict.cause.value}")

    def close(self) -> None:
        """Ask nobody any more; the processes stay watched."""
        if self._ras is not None:
            self._ras.close()
