"""The loop: record -> fact -> job -> verdict -> decision -> action.

Nothing here judges; it only moves facts from the kernel and the host to the job, and decisions to
whoever carries them out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from kcover_ebpf.decisions import Decision, decide
from kcover_ebpf.device_facts import (
    AerError,
    DeviceFault,
    DeviceNotice,
    MemoryFault,
    PortChange,
    XidReported,
)
from kcover_ebpf.facts import (
    Fact,
    OomKill,
    Pid,
    ProcessExit,
    SignalSent,
    Tick,
)
from kcover_ebpf.hardware.watch import DeviceWatch
from kcover_ebpf.host import procfs
from kcover_ebpf.host.inspect import Inspector
from kcover_ebpf.incidents.job import Job
from kcover_ebpf.incidents.ranks import RANK_ENVIRON
from kcover_ebpf.incidents.table import wait_rows
from kcover_ebpf.incidents.tracker import Tracker
from kcover_ebpf.incidents.verdict import Verdict, WaitRow
from kcover_ebpf.kernel.sampler import Kernel
from kcover_ebpf.settings import Act, Settings
from kcover_ebpf.syscalls import SyscallTable

if TYPE_CHECKING:
    from kcover_ebpf.hardware.ras.watch import RasWatch

_ANNOUNCED = (
    ProcessExit,
    OomKill,
    SignalSent,
    XidReported,
    DeviceNotice,
    AerError,
    MemoryFault,
    PortChange,
    DeviceFault,
)
_MEMBERS_NS = 3_000_000_000


class Target(Protocol):
    """The job under watch."""

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    def pids(self) -> set[int]:
        """Its members now; empty when it is gone."""
        ...

    def gone(self) -> bool:
        """True when it is gone; cheap enough to ask twice a pass."""
        ...


class Sink(Protocol):
    """Somebody who is told what the sensor sees."""

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


class Sensor:
    """Watches one job until told to stop."""

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        settings: Settings,
        sinks: Sequence[Sink] = (),
        carry_out: Callable[[Decision], None] | None = None,
        devices: DeviceWatch | None = None,
    ) -> None:
        machine = os.uname().machine
        self._kernel, self._target, self._settings = kernel, target, settings
        self._sinks, self._carry_out = sinks, carry_out
        self.job = Job(settings.policy, SyscallTable(machine))
        self.tracker = Tracker(target.name, os.uname().nodename)
        self._inspector = Inspector(machine)
        self._watched: set[Pid] = set()
        self._detailed: set[Pid] = set()
        self._next_members_ns = 0
        self._done: set[tuple[str, Act]] = set()
        self._devices = devices
        self._ras: RasWatch | None = None
        self._stragglers: object = ()
        self._watches_table = any(getattr(sink, "wants_waits", False) for sink in sinks)

    @property
    def made_progress(self) -> bool:
        """True once the job was seen training."""
        return self.job.pace.trained

    def run(self, until: Callable[[], bool]) -> None:
        """Sample, judge and decide until `until()` is true; it is asked at least once a pass."""
        while not until():
            self.step()
            if until():
                break
            self._listen()
        if self._ras is not None:
            self._ras.close()
        # the events that ended the loop, a last exit most of all, are not judged yet
        self._take(self._kernel.wait(0))
        self._judge()

    def step(self) -> None:
        """One pass of the sampler and one judgement."""
        self._join_new_members()
        for pid in self.job.nameless:
            self._introduce(pid)
        self._sample()
        self._poll_devices()
        self._look()
        self._ask_collectives()
        self._judge()
        if self._watches_table and self.tracker.current is not None:
            self._tell_table(self.tracker.current)

    def _listen(self) -> None:
        # events are judged as they come: an announced fault must not wait for the next pass
        policy = self._settings
        period_s = policy.suspicious_period_s if self.job.urgent else policy.period_s
        end_ns = procfs.boottime_ns() + int(period_s * 1e9)
        while (left_ns := end_ns - procfs.boottime_ns()) > 0:
            events = self._kernel.wait(left_ns / 1e9)
            if not events:
                return
            if self._take(events):
                return

    def _take(self, events: Iterable[Fact]) -> bool:
        """Feed events; True if one of them should be judged at once."""
        announced = False
        for fact in events:
            announced |= self._take_one(fact)
            if self._devices is not None:
                for further in self._devices.observe(fact, self._watched):
                    announced |= self._take_one(further)
        return announced

    def _take_one(self, fact: Fact) -> bool:
        self.job.observe(fact)
        if isinstance(fact, ProcessExit):
            self._watched.discard(fact.pid)
            # its number may be used again, by a process that must be looked for
            self._next_members_ns = 0
            self._inspector.forget(fact.pid)
        if not isinstance(fact, _ANNOUNCED):
            return False
        for sink in self._sinks:
            sink.on_fact(fact)
        return True

    def _poll_devices(self) -> None:
        if self._devices is not None:
            for fact in self._devices.tick(self._watched):
                self._take_one(fact)

    def _join_new_members(self) -> None:
        # forks are told by the kernel; only who joins from outside must be looked for, which costs more
        now_ns = procfs.boottime_ns()
        if self._watched and now_ns < self._next_members_ns:
            return
        self._next_members_ns = now_ns + _MEMBERS_NS
        members = {Pid(pid) for pid in self._target.pids()}
        for pid in members - self._watched:
            self._kernel.watch(pid)
            self._watched.add(pid)
            self._introduce(pid)

    def _introduce(self, pid: Pid) -> None:
        seen = procfs.read_process(pid, RANK_ENVIRON)
        if seen is not None:
            self.job.observe(seen)

    def _sample(self) -> None:
        detailed = self.job.detailed
        for pid in detailed ^ self._detailed:
            self._kernel.set_detail(pid, pid in detailed)
        self._detailed = detailed
        for fact in self._kernel.sample(self.job.members.ranks.keys()):
            self.job.observe(fact)
            if isinstance(fact, Tick) and (fact.late or fact.lost_count):
                self._tell_blind(fact)

    def _tell_blind(self, tick: Tick) -> None:
        reason = (
            f"{tick.lost_count} records were lost"
            if tick.lost_count
            else f"no pass for {tick.period_ns / 1e9:.1f} s"
        )
        for sink in self._sinks:
            sink.on_blind(reason)

    def _look(self) -> None:
        for inspection in self._inspector.look(self.job.wants()):
            self.job.observe(inspection)

    def _ask_collectives(self) -> None:
        suspicious = self.job.attention.suspicious
        if self._ras is None:
            if not suspicious:
                return
            # few jobs ever need it
            from kcover_ebpf.hardware.ras.watch import RasWatch

            self._ras = RasWatch()
        for fact in self._ras.tick(suspicious, self.job.members.ranks):
            self.job.observe(fact)
            named = fact.behind, fact.missing
            if any(named) and named != self._stragglers:
                self._stragglers = named
                for sink in self._sinks:
                    sink.on_fact(fact)

    def _judge(self) -> None:
        verdict = self.tracker.update(self.job, procfs.unix_offset_s())
        if verdict is not None:
            for sink in self._sinks:
                sink.on_verdict(verdict)
        self._decide(self.tracker.latest)

    def _decide(self, fault: Verdict | None) -> None:
        # asked at each pass while a fault lasts: evidence that was missing when it was told may come later
        if fault is None or self._carry_out is None:
            return
        policy = self._settings.policy
        decision = decide(fault, self._settings.act, policy.hard_limit_s, policy.link_patience_s)
        if decision.act is Act.OBSERVE or (fault.incident, decision.act) in self._done:
            return
        self._done.add((fault.incident, decision.act))
        self._carry_out(decision)

    def _tell_table(self, verdict: Verdict) -> None:
        finding = self.job.finding()
        if finding is None:
            return
        rows = wait_rows(self.job, finding)
        for sink in self._sinks:
            sink.on_waits(rows, f"{verdict.kind.value} {verdict.cause.value}")

    def examine(self) -> None:
        """One close pass over a job that may be stuck already, whether or not anything seems wrong."""
        self.job.examine()
        self.step()

    def rest(self) -> None:
        """The pause between two close passes."""
        self._kernel.wait(self._settings.suspicious_period_s)
