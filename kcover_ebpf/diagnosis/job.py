"""All facts of one job over time, and what follows from them. Pure: time comes in with the facts.

The caller feeds `observe` with every fact, makes the readings that it `wants`, and asks for a `finding` once a pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.diagnosis.clock.progress import JobProgress, Stall
from kcover_ebpf.diagnosis.clock.sampling import at_rest, connected, examined, in_detail, requests
from kcover_ebpf.diagnosis.clock.silences import Silences
from kcover_ebpf.diagnosis.clock.suspicion import Suspicion
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot
from kcover_ebpf.diagnosis.failures.announcements import Announcements
from kcover_ebpf.diagnosis.failures.device_faults import DeviceFaults
from kcover_ebpf.diagnosis.history.packet_loss import LossWatch, NarrowLink
from kcover_ebpf.diagnosis.history.process import Clock, ProcessHistory
from kcover_ebpf.diagnosis.history.resumptions import Resumptions
from kcover_ebpf.diagnosis.history.senders import Senders
from kcover_ebpf.diagnosis.job_finding import finding_of
from kcover_ebpf.diagnosis.job_learning import end_pass
from kcover_ebpf.diagnosis.job_snapshot import snapshot_of
from kcover_ebpf.diagnosis.judge.blindness import Sight, unseen
from kcover_ebpf.diagnosis.membership.members import Members
from kcover_ebpf.diagnosis.sub_jobs import SubJobs
from kcover_ebpf.diagnosis.waits.file_servers import probes_wanted
from kcover_ebpf.facts.host import (
    CollectivesSeen,
    FileSystemProbe,
    ProbeRequest,
    ProcessSeen,
    ReadingRequest,
    ThreadReading,
    Unreadable,
)
from kcover_ebpf.facts.inspector import InspectorSeen
from kcover_ebpf.facts.kernel import (
    DescriptorSample,
    Detail,
    Fact,
    FatalSignal,
    OomKill,
    ProcessExec,
    ProcessExit,
    ProcessFork,
    ProcessTotals,
    SampleRequest,
    SignalSent,
    SocketSample,
    TcpRetransmit,
    ThreadSample,
    Tick,
)
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.facts.python_stacks import PythonStacksSeen
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.roles import Role
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.diagnosis import LONGEST_BURN_NS

_Sample = ThreadSample | ProcessTotals | SocketSample | DescriptorSample | ProcessSeen
_OfProcess = _Sample | Clock | ProcessExec | ProcessExit


class Job:
    """One job as observed from this host. `whole`: every rank should be here, unless a launcher says otherwise."""

    def __init__(self, policy: Policy, table: SyscallTable, *, whole: bool = True) -> None:
        self.policy, self.table, self.whole = policy, table, whole
        self.members = Members()
        self.sub_jobs = SubJobs(self)
        self.attention = Suspicion(table)
        self.pace = JobProgress(policy, table)
        self.announced = Announcements()
        self.faults = DeviceFaults()
        self.loss, self.narrow = LossWatch(), NarrowLink()
        self.logged, self.inspector_seen = LogSeen(0), InspectorSeen(0)
        self.now_ns = 0
        self.moved_bytes: dict[Pid, int] = defaultdict(int)
        self.remember(self.pace.memory)
        self.senders = Senders()
        self.sight = Sight()
        self._unseen = ""
        self.resumptions = Resumptions()
        self.floor_ns = 0
        self._snapshot: JobSnapshot | None = None
        self._alarm = self._examined = False
        self.is_suspended = False
        """True while all ranks of the job are stopped: someone suspended it."""
        self._silent_s, self.place = 0.0, ""
        """For the present suspicion: the longest silence, and the cause of the finding during it."""

    def observe(self, fact: Fact) -> None:
        """Take one fact; facts of one kind must come in their order."""
        self._snapshot = None
        self.sub_jobs.observe(fact)
        self.now_ns = max(self.now_ns, fact.boottime_ns)
        match fact:
            case ThreadSample():
                self._on_thread(fact)
            case ProcessTotals():
                self._view(fact).on_totals(fact, learns=self.is_healthy)
            case SocketSample():
                self.moved_bytes[fact.pid] += self._view(fact).on_socket(fact)
            case DescriptorSample():
                self._view(fact).on_descriptor(fact)
            case ThreadReading():
                self.attention.on_reading(fact)
                if (process := self.members.views.get(fact.pid)) is not None:
                    process.on_devices(fact)
            case FileSystemProbe():
                self.attention.probes[fact.pid, fact.tid] = fact
            case TcpRetransmit():
                self.loss.observe(fact, self.members.ranks)
            case Tick():
                self._on_tick(fact)
            case _:
                self._on_life(fact)

    def _on_life(self, fact: Fact) -> None:
        match fact:
            case ProcessSeen():
                self.attention.unreadable.pop(fact.pid, None)
                self._view(fact).seen = fact
                self.members.rename()
            case Unreadable():
                self.attention.unreadable[fact.pid] = fact
            case ProcessFork():
                self.members.on_fork(fact)
                self.announced.forked.append(fact.child_pid)
            case ProcessExec():
                self.members.on_exec(self._view(fact))
            case ProcessExit():
                self._on_exit(fact)
            case FatalSignal():
                self._on_fatal(fact)
            case SignalSent():
                self.announced.on_signal(fact)
                self._alarm = True
            case CollectivesSeen():
                self.attention.collectives = fact
                if fact.moving:
                    self.attention.counts_moved_ns = fact.boottime_ns
                    self._restart_clocks(fact.boottime_ns)
            case _:
                self._on_rest(fact)

    def _on_rest(self, fact: Fact) -> None:
        if isinstance(fact, RecordersSeen | PythonStacksSeen):
            self.attention.on_answer(fact)
        elif isinstance(fact, LogSeen):
            self.logged = fact
        elif isinstance(fact, InspectorSeen):
            self.inspector_seen = fact
        elif isinstance(fact, OomKill):
            self.announced.on_oom(fact)
        elif not isinstance(fact, Clock):
            self.faults.observe(fact)
        elif self._view(fact).on_clock(fact):
            self.progress(fact.pid, fact.boottime_ns)

    def _view(self, fact: _OfProcess) -> ProcessHistory:
        return self.members.view(fact.pid, fact.boottime_ns)

    def _on_thread(self, sample: ThreadSample) -> None:
        process = self._view(sample)
        burned_ns = process.lead.burns_alike_ns if process.lead is not None else None
        if not process.on_thread(sample, self.table):
            return
        if burned_ns is not None and sample.boottime_ns - burned_ns > LONGEST_BURN_NS:
            self.pace.forget_current(sample.pid, sample.boottime_ns)
        self.progress(sample.pid, sample.boottime_ns)

    def _on_fatal(self, signal: FatalSignal) -> None:
        # for a process of the job this is as good as its exit, which may take as long as a core dump
        process = self.members.views.get(signal.pid)
        self._classify()
        if process is None or process.exit is not None or process.role is None:
            return
        process.is_dying = True
        number, comm = signal.signal, signal.comm
        self._leave(
            process,
            ProcessExit(signal.boottime_ns, signal.pid, 0, number, core_dumped=False, comm=comm),
        )

    def _on_exit(self, process_exit: ProcessExit) -> None:
        process = self._view(process_exit)
        if process.is_dying:
            process.is_dying, process.exit = False, self.announced.on_gone(process_exit)
            self._alarm = True
        else:
            self._leave(process, process_exit)

    def _leave(self, process: ProcessHistory, process_exit: ProcessExit) -> None:
        self.attention.unreadable.pop(process_exit.pid, None)
        self._classify()
        if self.announced.on_exit(process, process_exit, self.members, self.pace.longest_s):
            self._forget(self.members.supersede(process))
        self.members.leave(process_exit.pid, process_exit, learns=self.is_healthy)
        if process.membership is not None and process.membership.role in (Role.RANK, Role.LOADER):
            self._alarm = True
        else:
            self.attention.forget(process_exit.pid)

    def _forget(self, superseded: Iterable[Pid]) -> None:
        for pid in superseded:
            self.pace.leave(pid)
            self.attention.forget(pid)
        self.announced.keep(self.members)

    def progress(self, pid: Pid, now_ns: int) -> None:
        """Note a sign of progress of a process at this boottime."""
        if self.pace.progress(pid, now_ns):
            lead = self.members.views[pid].lead
            moved_ns = lead.progress_ns if lead is not None else 0
            self.attention.on_progress(pid, now_ns, moved_ns, self.pace.longest_of_s(pid))

    @property
    def is_healthy(self) -> bool:
        """It trains and nothing is suspicious: habits are learned now."""
        return self.pace.trained and not self.attention.suspicious

    def remember(self, memory: JobMemory) -> None:
        """Continue with what an earlier start of the job, or an earlier agent, learned; `memory` is written to."""
        self.attention.known = memory.waits
        self.pace.memory = memory

    @property
    def silences(self) -> Silences:
        """Silences that ended by themselves, over all remembered starts."""
        return self.pace.memory.silences

    def _on_tick(self, tick: Tick) -> None:
        now_ns = tick.boottime_ns
        self.members.meet()
        self._classify()
        self.sub_jobs.divide()
        ranks = self.members.ranks
        end_pass(self, ranks, tick)
        self.announced.settle(self.members)
        self.announced.outlive(ranks, self.members.children, now_ns, self.pace.longest_s)
        expected = self.members.expected if self.whole else None
        self.pace.watch_training(ranks, expected, now_ns)
        self._check_blindness(tick)
        active = {pid: rank for pid, rank in ranks.items() if not rank.rests} or ranks
        stopped = sum(rank.is_stopped for rank in ranks.values())
        self.is_suspended = self.all_here and stopped == len(ranks) > 0
        if self.resumptions.observe(ranks, now_ns) or self.is_suspended:
            self._restart_clocks(now_ns)
        elif not self.attention.suspicious:
            self.pace.observe_steps(active, now_ns, elsewhere=self.has_parts_elsewhere)
        self._suspect(active, stopped, now_ns)
        self._alarm = False
        for process in self._examined_ranks:
            # the next pass shows what their side threads do
            if process.sides_asked_ns is None:
                process.sides_asked_ns = now_ns

    def _suspect(self, active: Mapping[Pid, ProcessHistory], stopped: int, now_ns: int) -> None:
        """Note whether something may be wrong, and learn a silence that ended by itself."""
        silent = any(self.pace.is_silent(process, now_ns) for process in active.values())
        stopped += sum(process.is_stopped for process in self.members.roster.loaders.values())
        failed = bool(self.announced.failures)
        known = stopped > 0 or self._alarm or failed or self.announced.misses_rank
        # a rank that is stopped or has died blocks all others, though they may notice it later
        blocked = stopped > 0 or failed
        stall = Stall.CERTAIN if blocked else self.pace.stall(active, now_ns)
        only_silent = not known and not self.pace.is_assembled
        if self.sub_jobs.parts:
            silent, known, stall = self.sub_jobs.are_suspicious, self._alarm, self.sub_jobs.stall
        if self.attention.suspect(silent or known, stall, now_ns, only_silent=only_silent):
            self.members.forget_descriptors()
            if self.is_healthy and not self.sub_jobs.parts:
                self.silences.learn(self.place, self._silent_s)
            self._silent_s, self.place = 0.0, ""
        elif self.attention.suspicious:
            self._silent_s = max(self._silent_s, self.pace.silence_s(active, now_ns))
        self.faults.outlive(now_ns, silent, self.attention.stalled)

    def _check_blindness(self, tick: Tick) -> None:
        before_ns, now_ns = tick.boottime_ns - tick.period_ns, tick.boottime_ns
        if tick.late:
            self.sight.lose(f"no pass for {tick.period_ns / NS:.1f} s", before_ns, now_ns)
            self._restart_clocks(now_ns)
        was_unseen = self._unseen
        self._unseen = unseen(self.members.owned.values(), now_ns)
        # ranks with progress need no judgement; while a part is unobserved, silence of the rest shows nothing
        if self._unseen and self.attention.suspicious:
            self.sight.lose(self._unseen, before_ns, now_ns)
        elif was_unseen and not self._unseen:
            self._restart_clocks(now_ns)

    def _restart_clocks(self, now_ns: int) -> None:
        self.floor_ns = now_ns
        self.pace.restart_clocks(now_ns)

    def _classify(self) -> None:
        if not self.members.classify():
            return
        former = self.members.supersede_former()
        self._forget(former)
        if former and not self.members.has_ended:
            self.pace.begin_again()
        ranks = self.members.all_ranks
        for pid, process in self.members.views.items():
            if pid in ranks:
                self.pace.join(process)
            else:
                self.pace.leave(pid)

    @property
    def nameless(self) -> list[Pid]:
        """Living processes about which nothing was read yet."""
        living = (process for process in self.members.views.values() if process.exit is None)
        return [process.pid for process in living if process.seen is None]

    @property
    def connected(self) -> list[Pid]:
        """Living processes whose connections are sampled in the next pass."""
        return connected(self.members, suspicious=self.attention.suspicious)

    @property
    def detailed(self) -> set[Pid]:
        """Processes of which every descriptor, and every thread that is judged, is sampled."""
        return set(self.members.owned) if self.attention.suspicious else set()

    def sampling(self) -> dict[Pid, SampleRequest]:
        """Request for each living process: how closely it is sampled."""
        rested = at_rest(self.members.ranks.values(), self.pace, self.now_ns)
        views, detailed, closely = self.members.views, self.detailed, self._detail
        wanted = requests(views, detailed, closely, self.now_ns, rested)
        for process in self._examined_ranks:
            wanted[process.pid] = replace(wanted[process.pid], detail=Detail.ALL)
        return wanted if self._examined else wanted | self.sub_jobs.sampling()

    @property
    def _examined_ranks(self) -> list[ProcessHistory]:
        ranks = self.members.ranks.values()
        return examined(ranks, self.attention, self.pace, self._detail, self.now_ns)

    @property
    def _detail(self) -> SampleRequest:
        trained = self.pace.trained
        return in_detail(self.attention, self.now_ns, trained=trained, examined=self._examined)

    @property
    def urgent(self) -> bool:
        """True while passes should be frequent."""
        return self.attention.urgent(self.now_ns, self.pace.trained)

    def examine(self) -> None:
        """Sample every thread in the next pass, whether or not anything seems wrong."""
        self._alarm = self._examined = True

    def wants(self) -> list[ReadingRequest]:
        """Requests for the threads to read in this pass."""
        owned, trained = self.members.owned.values(), self.pace.trained
        return self.sub_jobs.wants() or self.attention.wants(
            owned, self.waiting, self.now_ns, trained=trained
        )

    def probes(self) -> list[ProbeRequest]:
        """Requests for the file systems to probe in this pass."""
        if not self.attention.suspicious:
            return []
        processes, readings = self.members.owned.values(), self.attention.readings
        return probes_wanted(processes, readings, self.table, self.now_ns)

    @property
    def waiting(self) -> Iterable[ProcessHistory]:
        """Ranks whose lead thread waits for others."""
        return (process for process in self.members.ranks.values() if self.pace.waits(process))

    def finding(self) -> Finding | None:
        """The conclusion from the facts so far; None while they are too incomplete."""
        return finding_of(self)

    @property
    def has_parts_elsewhere(self) -> bool:
        """False only if all ranks are known to be on this host."""
        return self.members.others_elsewhere(whole=self.whole) is not False

    @property
    def all_here(self) -> bool:
        """Every rank of the job should be on this host, and no launcher says otherwise."""
        size = self.members.world_size
        return self.whole and (size is None or self.members.expected == size)

    def snapshot(self) -> JobSnapshot:
        """Everything that a judgement needs, as of the last fact; cached until the next one."""
        self._snapshot = self._snapshot or snapshot_of(self)
        return self._snapshot
