"""The loop: record -> fact -> job -> verdict -> decision -> action.

Nothing here judges; it only moves facts from the kernel and the host to the jobs, and decisions to those that carry
them out. `run` and `trace` watch one job with it, the agent of a node all of its gangs.
"""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from kcover_ebpf.devices.watch import DeviceWatch
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.devices import AnnouncedFault, DeviceFact
from kcover_ebpf.facts.kernel import Fact, ProcessExit
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import procfs
from kcover_ebpf.host.thread_reader import ThreadReader
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.watching.job_watch import JobWatch, RankSources
from kcover_ebpf.watching.judging import InputRecorder, ObservationSink
from kcover_ebpf.watching.member_search import MemberSearch
from kcover_ebpf.watching.pacing import pause_s


class Target(Protocol):
    """What is watched: a process tree, a control group or pods."""

    @property
    def name(self) -> str:
        """Name of the target in messages."""
        ...

    def pids(self) -> set[int]:
        """Pids of its members now; empty when it is gone."""
        ...

    def gone(self) -> bool:
        """True when it is gone; cheap enough to call twice a pass."""
        ...


class SamplingLoop(ABC):
    """Passes over any number of jobs that share one sampler; a subclass knows the jobs."""

    def __init__(
        self,
        kernel: KernelSampler,
        devices: DeviceWatch | None,
        settings: Settings,
        sources: RankSources | None = None,
    ) -> None:
        """`sources`: readers of what ranks wrote; None: this process."""
        self._kernel, self._devices, self._settings = kernel, devices, settings
        self._sources = sources or RankSources()
        self._table = SyscallTable(os.uname().machine)
        self._reader = ThreadReader(self._sources.threads)
        self._search = MemberSearch()
        self._dice = random.Random()
        self._due_ns: int | None = None
        """When the last pass was due (boottime ns); None before the first."""
        self._on_lag: Callable[[float], None] = lambda _: None
        """Called with the seconds from when a pass was due until it was over: the longest delay of a fault in it."""

    @property
    @abstractmethod
    def _watches(self) -> Sequence[JobWatch]:
        """The jobs that are watched now."""

    @property
    @abstractmethod
    def _members(self) -> Collection[Pid]:
        """Live processes of the watched jobs."""

    @property
    @abstractmethod
    def _ease(self) -> float:
        """Factor by which the pause before the next pass may be longer than usual; 1 if it is urgent."""

    @abstractmethod
    def _join_new_members(self) -> None:
        """Search at intervals for processes that joined from outside: the kernel announces only forks."""

    @abstractmethod
    def _route(self, fact: Fact) -> bool:
        """Pass a fact to the job that it is about; True if that job should be judged at once."""

    @abstractmethod
    def _on_announced(self, fault: AnnouncedFault) -> None:
        """A device of this node is broken, whichever process uses it; jobs get a fact of their own."""

    @abstractmethod
    def _judge(self, due: Sequence[JobWatch]) -> None:
        """Judge these jobs; called once a pass, also if no job needs it."""

    def run(self, until: Callable[[], bool]) -> None:
        """Sample, judge and decide until `until()` is true; it is called at least once a pass."""
        while not until():
            self.step()
            if until():
                break
            self._listen()
        for watch in self._watches:
            watch.close()

    def step(self) -> None:
        """One pass of the sampler, and one judgement of every job that needs it."""
        self._join_new_members()
        watches = self._watches
        for watch in watches:
            watch.prepare()
        connected = [pid for watch in watches for pid in watch.job.connected]
        self._take(self._kernel.sample(connected))
        if self._devices is not None:
            for fact in self._devices.tick(self._members):
                self._follow(fact)
        due = [watch for watch in watches if watch.attend()]
        if due:
            self._read_threads(due)
        self._judge(due)

    def _read_threads(self, due: Sequence[JobWatch]) -> None:
        self._take(self._reader.read([want for watch in due for want in watch.wants()]))
        for watch in due:
            watch.ask_collectives()
            watch.read_stacks()
            watch.probe_file_systems()

    def _listen(self) -> None:
        """Wait for the next pass. Announced facts are taken meanwhile, because a fault must not wait."""
        period_s = self._period_s
        self._kernel.expect_pass(period_s)
        now_ns = procfs.boottime_ns()
        if self._due_ns is not None:
            self._on_lag((now_ns - self._due_ns) / NS)
        end_ns = self._due_ns = now_ns + int(period_s * NS)
        while (left_ns := end_ns - procfs.boottime_ns()) > 0:
            events = self._kernel.wait(left_ns / NS)
            if not events or self._hear(events):
                self._due_ns = min(end_ns, procfs.boottime_ns())
                return

    @property
    def _period_s(self) -> float:
        urgent = any(watch.job.urgent for watch in self._watches)
        return pause_s(self._settings, self._ease, self._dice, time.time(), urgent=urgent)

    def _hear(self, events: Iterable[Fact]) -> bool:
        """Take facts that arrived between two passes; True if the next pass should begin now."""
        return self._take(events)

    def _take(self, facts: Iterable[Fact]) -> bool:
        """Feed facts, and what follows from them about devices; True if a job should be judged at once."""
        announced = False
        for fact in facts:
            announced |= self._route(fact)
            if self._devices is not None:
                for further in self._devices.observe(fact, self._members):
                    announced |= self._follow(further)
        return announced

    def _follow(self, fault: DeviceFact | AnnouncedFault) -> bool:
        """Route what the devices reported; True if a job should be judged at once."""
        if isinstance(fault, AnnouncedFault):
            self._on_announced(fault)
            return False
        return self._route(fault)

    def _forget_process(self, process_exit: ProcessExit) -> None:
        """Forget an ended process: its pid may be reused by a process that a search must find."""
        self._search.hurry()
        if process_exit.known:
            self._search.ended(process_exit.pid, process_exit.boottime_ns)
        self._reader.forget(process_exit.pid)


class Sensor(SamplingLoop):
    """Watches one job until it is asked to stop."""

    def __init__(  # noqa: PLR0913, PLR0917 - one part of the watch each
        self,
        kernel: KernelSampler,
        target: Target,
        settings: Settings,
        sinks: Sequence[ObservationSink] = (),
        carry_out: Callable[[Decision], None] | None = None,
        devices: DeviceWatch | None = None,
        recorder: InputRecorder | None = None,
        *,
        whole: bool = True,
        reads_stacks: bool = False,
        read_log: Callable[[], LogSeen | None] = lambda: None,
    ) -> None:
        """`whole`: every rank of the job should be on this host.

        `reads_stacks`: the Python stacks of the ranks are read for a verdict.

        `read_log`: returns news in the job's log; called once a pass, except while the job is suspended.
        """
        super().__init__(kernel, devices, settings)
        self._target, self._read_log = target, read_log
        self._watch = JobWatch(
            kernel,
            Tracker(target.name, os.uname().nodename),
            self._table,
            settings,
            sinks,
            carry_out,
            whole=whole,
            recorder=recorder,
            nccl=None if devices is None else devices.nccl,
            reads_stacks=reads_stacks,
        )

    @property
    def job(self) -> Job:
        """The state of the job, from all facts so far."""
        return self._watch.job

    @property
    def tracker(self) -> Tracker:
        """Its verdict over time; a sensor after a restart takes it over from the one before."""
        return self._watch.tracker

    @tracker.setter
    def tracker(self, tracker: Tracker) -> None:
        self._watch.tracker = tracker

    @property
    def made_progress(self) -> bool:
        """True once the job was observed to make progress."""
        return self.job.pace.trained

    @property
    def _watches(self) -> Sequence[JobWatch]:
        return (self._watch,)

    @property
    def _members(self) -> Collection[Pid]:
        return self._watch.members

    @property
    def _ease(self) -> float:
        return self._watch.ease

    def run(self, until: Callable[[], bool]) -> None:
        """As `SamplingLoop.run`; facts about the end of the job are judged as well."""
        super().run(until)
        # the last events, above all a final exit, are not judged yet
        self._take(self._kernel.wait(0))
        self._watch.judge()

    def _judge(self, due: Sequence[JobWatch]) -> None:
        # time in which the log is not read is no silence, and a suspended job prints nothing
        if not self.job.is_suspended and (logged := self._read_log()) is not None:
            self._watch.take(logged)
        for watch in due:
            watch.judge()
            watch.publish_table()

    def _route(self, fact: Fact) -> bool:
        announced = self._watch.take(fact)
        if isinstance(fact, ProcessExit):
            self._forget_process(fact)
        return announced

    def _on_announced(self, fault: AnnouncedFault) -> None:
        """Nothing: one job is watched here, not the node."""

    def _join_new_members(self) -> None:
        # a search costs more than receiving forks
        now_ns, known = procfs.boottime_ns(), self._watch.members
        if known and not self._search.is_due(now_ns, self._kernel.strangers):
            return
        found = self._search.living(self._target.pids())
        self._search.listed(now_ns, found=not known.issuperset(found))
        self._watch.join(found)

    def examine(self) -> None:
        """One close pass over a job that may be stuck already, whether or not anything seems wrong."""
        self.job.examine()
        self.step()

    def rest(self) -> None:
        """Wait between two close passes."""
        self._kernel.wait(self._settings.suspicious_period_s)
