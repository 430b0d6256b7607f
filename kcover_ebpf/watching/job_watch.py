"""One job under watch: its members, its facts, its verdict, and the sinks of all these.

A `loop.SamplingLoop` moves the facts of the kernel to one or more of these. Nothing here judges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.membership.rank_numbers import (
    INSPECTOR_FOLDER,
    RANK_ENVIRON,
    RECORDER_PIPE,
)
from kcover_ebpf.diagnosis.tracker import Tracker
from kcover_ebpf.diagnosis.wait_table import wait_rows
from kcover_ebpf.facts.host import ReadingRequest
from kcover_ebpf.facts.kernel import Fact, ProcessExec, ProcessExit
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import procfs
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.host.thread_reader import ThreadReadings, ThreadSource
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.model.verdict import VerdictKind
from kcover_ebpf.settings import Settings
from kcover_ebpf.watching import py_spy
from kcover_ebpf.watching.file_system_probes import FileSystemProbes
from kcover_ebpf.watching.judging import InputRecorder, Judging, ObservationSink
from kcover_ebpf.watching.pacing import Pacing
from kcover_ebpf.watching.stack_watch import StackWatch

if TYPE_CHECKING:
    from kcover_ebpf.collectives.inspector.ranks import InspectorSource
    from kcover_ebpf.collectives.inspector.watch import InspectorWatch
    from kcover_ebpf.collectives.nccl.probes import NcclProbes
    from kcover_ebpf.collectives.nccl.watch import NcclWatch
    from kcover_ebpf.collectives.ras.client import RasSource
    from kcover_ebpf.collectives.ras.watch import RasWatch
    from kcover_ebpf.collectives.recorder.dump_request import RecorderSource
    from kcover_ebpf.collectives.recorder.watch import RecorderWatch


def _here() -> ThreadSource:
    return ThreadReadings(os.uname().machine)


@dataclass(frozen=True, slots=True)
class RankSources:
    """Readers of what the ranks have written: this process if the job is its user's, else confined readers.

    One instance serves all jobs of a program.
    """

    threads: ThreadSource = field(default_factory=_here)
    recorders: RecorderSource | None = None
    """Reader of PyTorch's flight recorders; None: this process."""
    ras: RasSource | None = None
    """Client of NCCL's RAS; None: this process."""
    confinement: Confinement = py_spy.SPY
    """How py-spy is confined when it reads stacks."""
    inspector: InspectorSource | None = None
    """Reader of NCCL Inspector's files; None: this process."""


class JobWatch:
    """Everything about one job except the loop: the caller samples, and routes facts here."""

    def __init__(  # noqa: PLR0913 - one part of the watch each
        self,
        kernel: KernelSampler,
        tracker: Tracker,
        table: SyscallTable,
        settings: Settings,
        sinks: Sequence[ObservationSink] = (),
        carry_out: Callable[[Decision], None] | None = None,
        *,
        whole: bool = True,
        environ: frozenset[str] = RANK_ENVIRON,
        identities: Identities | None = None,
        recorder: InputRecorder | None = None,
        nccl: NcclProbes | None = None,
        reads_stacks: bool = False,
        sources: RankSources | None = None,
    ) -> None:
        """`whole`: every rank of the job should be on this host; `environ`: variables that identify ranks.

        `identities`: shared by the jobs of a node; None: a separate reader. `recorder`: None: no record is kept.
        `nccl`: None: operations are not counted. `reads_stacks`: the Python stacks of its ranks are read for a
        verdict. `sources`: readers of what ranks wrote; None: this process.
        """
        self._kernel, self._sinks, self._environ = kernel, sinks, environ
        self._identities = Identities() if identities is None else identities
        self._judging = Judging(
            tracker,
            table,
            settings,
            sinks,
            carry_out,
            whole=whole,
            recorder=recorder,
            is_ready=self._is_read,
        )
        self._sources = sources or RankSources()
        self._stacks = StackWatch(self._sources.confinement) if reads_stacks else None
        self._probes, self._is_part = FileSystemProbes(), not whole
        self.members: set[Pid] = set()
        """Watched processes that are alive."""
        self._ras: RasWatch | None = None
        self._recorders: RecorderWatch | None = None
        self._inspector: InspectorWatch | None = None
        self._nccl = None if nccl is None else _nccl_watch(nccl)
        self._watches_table = any(getattr(sink, "wants_waits", False) for sink in sinks)
        self._pacing = Pacing(self.job)

    @property
    def job(self) -> Job:
        """The state of the job, from all facts so far."""
        return self._judging.job

    @property
    def tracker(self) -> Tracker:
        """Its verdict over time; after a restart it may be handed to the next watch."""
        return self._judging.tracker

    @tracker.setter
    def tracker(self, tracker: Tracker) -> None:
        self._judging.tracker = tracker

    def join(self, pids: Iterable[int], owner_id: int = 0) -> None:
        """Start watching those that are not watched yet; `owner_id` as in `KernelSampler.watch`."""
        fresh = {Pid(pid) for pid in pids} - self.members
        for pid in fresh:
            self._kernel.watch(pid, owner_id)
            self.members.add(pid)
        self._introduce(fresh)

    def prepare(self) -> None:
        """Before a pass: identify new processes, and set how closely each process is sampled."""
        self._introduce(self.job.nameless)
        if not self._pacing.is_attended:
            return
        for pid, wanted_request in self.job.sampling().items():
            self._kernel.request(pid, wanted_request)

    @property
    def ease(self) -> float:
        """Factor by which the pause before the next pass may be longer than usual; 1 if it is urgent."""
        return self._pacing.ease

    def attend(self) -> bool:
        """Called once a pass, with its facts: True if its threads are to be read and the job judged as well."""
        # counts of the NCCL probes, and a table, must be from one pass
        needs_all = self._nccl is not None or self._watches_table
        return self._pacing.attend(self.tracker.current, needs_all=needs_all)

    def _introduce(self, pids: Collection[Pid]) -> None:
        if pids:
            for fact in self._identities.learn(pids, self._environ):
                self._judging.take(fact)

    def take(self, fact: Fact) -> bool:
        """Feed one fact; True if the job should be judged at once."""
        if isinstance(fact, _NEW_PROGRAM):
            # a reading in progress is of the previous program
            self._identities.forget(fact.pid)
            if self._nccl is not None:
                self._nccl.forget(fact.pid)
        if isinstance(fact, ProcessExit):
            self.members.discard(fact.pid)
        is_announced = self._judging.take(fact)
        if is_announced:
            self._pacing.announce()
        return is_announced

    def wants(self) -> list[ReadingRequest]:
        """Threads that should be read in this pass."""
        return self._judging.wants()

    def ask_collectives(self) -> None:
        """Collect the collective counts of its ranks, if they are counted.

        While it has stalled, or if NCCL may know that a fault is over, also ask its own NCCL and its ranks' flight
        recorders.
        """
        self._ask_ras()
        self._ask_recorders()
        self._read_inspector()

    def _ask_ras(self) -> None:
        ranks = self.job.members.ranks
        for launched in [] if self._nccl is None else self._nccl.follow(ranks):
            self._judging.take(launched)
        asks = self._judging.asks_collectives()
        if self._ras is None:
            if not asks:
                return
            # few jobs ever need it
            from kcover_ebpf.collectives.ras.watch import RasWatch

            self._ras = RasWatch(source=self._sources.ras)
        world_size = self.job.members.world_size
        answers = self._ras.tick(asks, ranks, world_size, self._turn_s(ranks, world_size))
        if self._nccl is not None:
            answers = self._nccl.joined(asks, answers, ranks, world_size)
        for fact in answers:
            self._judging.take(fact)

    def read_stacks(self) -> None:
        """Collect Python stacks of the ranks that were read, and start reading if a verdict is near."""
        if self._stacks is None:
            return
        ranks = self.job.members.ranks
        size = max(len(ranks), self.job.members.world_size or 0) if self._is_part else len(ranks)
        for fact in self._stacks.tick(self._judging.wants_stacks(), ranks, size):
            self._judging.take(fact)

    def probe_file_systems(self) -> None:
        """Collect answers of the file systems that ranks wait for, and start probing them."""
        for fact in self._probes.tick(self.job.probes()):
            self._judging.take(fact)

    def _is_read(self) -> bool:
        fault = self.tracker.latest
        is_named = fault is not None and fault.culprit is not None
        if not is_named and self._recorders is not None and self._recorders.is_asking:
            # if two of three ranks differ, only the third shows which of them is wrong
            return False
        return self._stacks is None or self._stacks.is_ready(self.job.members.ranks)

    def _turn_s(self, ranks: Mapping[Pid, ProcessHistory], world_size: int | None) -> float | None:
        if not self._is_part:
            # results of two hosts are not joined, so each asks for itself
            return 0.0
        from kcover_ebpf.collectives.ras.watch import turn_s

        numbers = [process.rank for process in ranks.values()]
        return turn_s(numbers, world_size)

    def _ask_recorders(self) -> None:
        if self._recorders is None:
            seen = (process.seen for process in self.job.members.ranks.values())
            if not any(
                process.rank_environ.get(RECORDER_PIPE) for process in seen if process is not None
            ):
                return
            from kcover_ebpf.collectives.recorder.watch import RecorderWatch

            self._recorders = RecorderWatch(self._sources.recorders)
        for fact in self._recorders.tick(self.job.attention.stalled, self.job.members.ranks):
            self._judging.take(fact)

    def _read_inspector(self) -> None:
        """What NCCL Inspector wrote, while the job is slow or has stalled."""
        verdict = self.tracker.current
        is_slow = verdict is not None and verdict.kind is VerdictKind.SLOW
        asks = is_slow or self.job.attention.stalled
        if self._inspector is None:
            seen = (view.seen for view in self.job.members.ranks.values())
            if not asks or not any(
                INSPECTOR_FOLDER in process.rank_environ for process in seen if process is not None
            ):
                return
            from kcover_ebpf.collectives.inspector.watch import InspectorWatch

            self._inspector = InspectorWatch(self._sources.inspector)
        for fact in self._inspector.tick(asks, self.job.members.ranks):
            self._judging.take(fact)

    def judge(self) -> None:
        """Report a changed verdict, and decide about a stable one."""
        self._judging.judge(procfs.unix_offset_s())

    def publish_table(self) -> None:
        """Publish which thread waits where, if a sink subscribed."""
        verdict = self.tracker.current
        finding = self.job.finding() if self._watches_table and verdict is not None else None
        if finding is None or verdict is None:
            return
        rows = wait_rows(self.job, finding)
        for sink in self._sinks:
            sink.on_waits(rows, f"{verdict.kind.value} {verdict.cause.value}")

    def close(self) -> None:
        """Send no more queries; the processes stay watched."""
        if self._ras is not None:
            self._ras.close()
        if self._recorders is not None:
            self._recorders.close()
        if self._inspector is not None:
            self._inspector.close()
        if self._stacks is not None:
            self._stacks.close()
        if self._nccl is not None:
            self._nccl.close()
        self._probes.close()


_NEW_PROGRAM = ProcessExit, ProcessExec


def _nccl_watch(probes: NcclProbes) -> NcclWatch:
    from kcover_ebpf.collectives.nccl.watch import NcclWatch

    return NcclWatch(probes)
