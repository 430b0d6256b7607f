"""The loop: record -> fact -> job -> verdict -> decision -> action.

Nothing here judges; it only moves facts from the kernel and the host to the job, and decisions to
whoever carries them out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.facts.kernel import Fact, ProcessExit
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.hardware.watch import DeviceWatch
from kcover_ebpf.host import procfs
from kcover_ebpf.host.thread_inspector import ThreadInspector
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.watching.job_watch import JobWatch, listen
from kcover_ebpf.watching.judging import InputRecorder, ObservationSink
from kcover_ebpf.watching.member_search import MemberSearch


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


class Sensor:
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
        reads_stacks: bool = False,
    ) -> None:
        """`reads_stacks`: the Python stacks of the ranks are read for a verdict."""
        machine = os.uname().machine
        self._kernel, self._target, self._settings = kernel, target, settings
        tracker = Tracker(target.name, os.uname().nodename)
        table = SyscallTable(machine)
        self._watch = JobWatch(
            kernel,
            tracker,
            table,
            settings,
            sinks,
            carry_out,
            recorder=recorder,
            nccl=None if devices is None else devices.nccl,
            reads_stacks=reads_stacks,
        )
        self._inspector = ThreadInspector(machine)
        self._search = MemberSearch()
        self._devices = devices

    @property
    def job(self) -> Job:
        """What is known about the job."""
        return self._watch.job

    @property
    def tracker(self) -> Tracker:
        """Its verdict over time; a sensor that continues after a restart takes over the one before."""
        return self._watch.tracker

    @tracker.setter
    def tracker(self, tracker: Tracker) -> None:
        self._watch.tracker = tracker

    @property
    def made_progress(self) -> bool:
        """True once the job was seen training."""
        return self.job.pace.trained

    @property
    def _period_s(self) -> float:
        if self.job.urgent:
            return self._settings.suspicious_period_s
        return self._settings.period_s * self._watch.ease

    def run(self, until: Callable[[], bool]) -> None:
        """Sample, judge and decide until `until()` is true; it is asked at least once a pass."""
        while not until():
            self.step()
            if until():
                break
            listen(self._kernel, self._period_s, self._take)
        self._watch.close()
        # the events that ended the loop, a last exit most of all, are not judged yet
        self._take(self._kernel.wait(0))
        self._watch.judge()

    def step(self) -> None:
        """One pass of the sampler, and one judgement unless the job may rest."""
        self._join_new_members()
        self._watch.prepare()
        for fact in self._kernel.sample(self.job.connected):
            self._watch.take(fact)
        self._poll_devices()
        if not self._watch.attend():
            return
        self._take(self._inspector.inspect(self._watch.wants()))
        self._watch.ask_collectives()
        self._watch.read_stacks()
        self._watch.judge()
        self._watch.publish_table()

    def _take(self, events: Iterable[Fact]) -> bool:
        """Feed events; True if one of them should be judged at once."""
        announced = False
        for fact in events:
            announced |= self._take_one(fact)
            if self._devices is not None:
                for further in self._devices.observe(fact, self._watch.members):
                    announced |= self._take_one(further)
        return announced

    def _take_one(self, fact: Fact) -> bool:
        announced = self._watch.take(fact)
        if isinstance(fact, ProcessExit):
            # its number may be used again, by a process that a search must find
            self._search.hurry()
            self._inspector.forget(fact.pid)
        return announced

    def _poll_devices(self) -> None:
        if self._devices is not None:
            for fact in self._devices.tick(self._watch.members):
                self._take_one(fact)

    def _join_new_members(self) -> None:
        # the kernel announces forks; only processes that join from outside need a search, which costs more
        now_ns, known = procfs.boottime_ns(), self._watch.members
        if known and not self._search.is_due(now_ns, self._kernel.strangers):
            return
        found = self._target.pids()
        self._search.listed(now_ns, found=not known.issuperset(found))
        self._watch.join(found)

    def examine(self) -> None:
        """One close pass over a job that may be stuck already, whether or not anything seems wrong."""
        self.job.examine()
        self.step()

    def rest(self) -> None:
        """The pause between two close passes."""
        self._kernel.wait(self._settings.suspicious_period_s)
