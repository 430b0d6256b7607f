"""All facts of one job over time, and what they add up to. Pure: time comes in with the facts.

The caller feeds `observe` with every fact, carries out the looks it `wants`, and asks for the
`finding` once a pass.
"""

from __future__ import annotations

from collections import defaultdict

from kcover_ebpf.facts import (
    DescriptorSample,
    Fact,
    OomKill,
    ProcessExec,
    ProcessExit,
    ProcessFork,
    ProcessTotals,
    SignalSent,
    SocketSample,
    TaskState,
    TcpRetransmit,
    ThreadSample,
    Tick,
)
from kcover_ebpf.host_facts import CollectivesSeen, Inspection, Look, ProcessSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents import announced, startup
from kcover_ebpf.incidents.attention import Attention
from kcover_ebpf.incidents.devices import DeviceFaults
from kcover_ebpf.incidents.finding import Finding, Picture
from kcover_ebpf.incidents.judge import judge
from kcover_ebpf.incidents.limit import at_hard_limit
from kcover_ebpf.incidents.links import Ends
from kcover_ebpf.incidents.loss import LossWatch
from kcover_ebpf.incidents.members import Members
from kcover_ebpf.incidents.phases import Pace
from kcover_ebpf.incidents.processes import NS, ProcessView
from kcover_ebpf.incidents.ranks import Role
from kcover_ebpf.incidents.sight import Sight, unseen
from kcover_ebpf.incidents.slowness import slowness
from kcover_ebpf.incidents.stacks import KnownWaits
from kcover_ebpf.incidents.stand import stand
from kcover_ebpf.incidents.standing import Scene, State
from kcover_ebpf.incidents.verdict import Cause, Kind
from kcover_ebpf.settings import Policy
from kcover_ebpf.syscalls import SyscallTable

_LOSSY_SILENCE_S = 4.5
_HELD = (TaskState.STOPPED, TaskState.FROZEN, TaskState.TRACED)
_Sample = ThreadSample | ProcessTotals | SocketSample | DescriptorSample


class Job:
    """One job as seen from this host; `whole`: every rank of it should be here."""

    def __init__(self, policy: Policy, table: SyscallTable, *, whole: bool = True) -> None:
        self._policy, self._whole = policy, whole
        self.table = table
        self.members = Members()
        self.attention = Attention()
        self.pace = Pace(policy, table)
        self.announced = announced.Announcements()
        self.faults = DeviceFaults()
        self.loss = LossWatch()
        self.now_ns = 0
        self._moved_bytes: dict[Pid, int] = defaultdict(int)
        self.sight = Sight()
        self._unseen = ""
        self._floor_ns = 0
        self._alarm = False

    def observe(self, fact: Fact) -> None:
        """Take one fact, in the order of its kind's arrival."""
        self.now_ns = max(self.now_ns, fact.boottime_ns)
        match fact:
            case ThreadSample():
                self._on_thread(fact)
            case ProcessTotals():
                self._view(fact).on_totals(fact)
            case SocketSample():
                self._moved_bytes[fact.pid] += self._view(fact).on_socket(fact)
            case DescriptorSample():
                self._view(fact).descriptors[fact.fd, fact.inode] = fact
            case Inspection():
                self.attention.on_look(fact)
            case TcpRetransmit():
                self.loss.observe(fact, self.members.ranks)
            case Tick():
                self._on_tick(fact)
            case _:
                self._on_life(fact)

    def _on_life(self, fact: Fact) -> None:
        match fact:
            case ProcessSeen():
                self._view(fact).seen = fact
                self.members.rename()
            case ProcessFork():
                self.members.view(fact.child_pid, fact.boottime_ns)
            case ProcessExec():
                self._view(fact).seen = None
            case ProcessExit():
                self._on_exit(fact)
            case OomKill():
                self.announced.on_oom(fact)
            case SignalSent():
                self.announced.on_signal(fact)
                self._alarm = True
            case CollectivesSeen():
                self.attention.collectives = fact
                if fact.moving:
                    self._restart_clocks(fact.boottime_ns)
            case _:
                self.faults.observe(fact)

    def _view(self, fact: _Sample | ProcessSeen | ProcessExec | ProcessExit) -> ProcessView:
        return self.members.view(fact.pid, fact.boottime_ns)

    def _on_thread(self, sample: ThreadSample) -> None:
        if self._view(sample).on_thread(sample, self.table):
            self._progress(sample.pid, sample.boottime_ns)

    def _on_exit(self, fact: ProcessExit) -> None:
        view = self._view(fact)
        self._classify()
        self.announced.on_exit(view, fact, self.members, self.pace.longest_s)
        self.members.leave(fact.pid, fact)
        if view.member is not None and view.member.role in (Role.RANK, Role.LOADER):
            self._alarm = True
        else:
            self.attention.forget(fact.pid)

    def _progress(self, pid: Pid, now_ns: int) -> None:
        if self.pace.progress(pid, now_ns):
            self.attention.on_progress(pid)

    def _on_tick(self, tick: Tick) -> None:
        now_ns = tick.boottime_ns
        self._classify()
        ranks = self.members.ranks
        for pid, moved in self._moved_bytes.items():
            view = self.members.views.get(pid)
            if view is not None and view.on_peer_bytes(moved, now_ns):
                self._progress(pid, now_ns)
        if not self.attention.suspicious:
            self.pace.note_payload(sum(self._moved_bytes[pid] for pid in ranks), tick.period_ns)
        self._moved_bytes.clear()
        self.announced.settle(self.members)
        self.pace.watch_training(ranks, self.members.world_size if self._whole else None)
        self._look_for_blindness(tick)
        held = sum(_held(view) for view in ranks.values())
        if self._whole and held and held == len(ranks):
            self._restart_clocks(now_ns)
        elif not self.attention.suspicious:
            self.pace.observe_shares(ranks)
        silent = any(self.pace.is_silent(view, now_ns) for view in ranks.values())
        wrong = silent or held > 0 or self._alarm or bool(self.announced.failures)
        if self.attention.suspect(wrong, now_ns):
            self.members.forget_descriptors()
        self.faults.outlive(now_ns, silent)
        self._alarm = False

    def _look_for_blindness(self, tick: Tick) -> None:
        before_ns, now_ns = tick.boottime_ns - tick.period_ns, tick.boottime_ns
        if tick.late:
            self.sight.lose(f"no pass for {tick.period_ns / NS:.1f} s", before_ns, now_ns)
            self._restart_clocks(now_ns)
        was_unseen = self._unseen
        self._unseen = unseen(self.members.owned.values(), now_ns)
        # ranks that are seen to go on need no judgement; that they are silent says nothing while a part is not seen
        if self._unseen and self.attention.suspicious:
            self.sight.lose(self._unseen, before_ns, now_ns)
        elif was_unseen and not self._unseen:
            self._restart_clocks(now_ns)

    def _restart_clocks(self, now_ns: int) -> None:
        self._floor_ns = now_ns
        self.pace.restart_clocks(now_ns)

    def _classify(self) -> None:
        if not self.members.classify():
            return
        self.announced.keep(self.members)
        ranks = self.members.all_ranks
        for pid, view in self.members.views.items():
            if pid in ranks:
                self.pace.join(view)
            else:
                self.pace.leave(pid)

    @property
    def nameless(self) -> list[Pid]:
        """Living processes about which nothing was read yet."""
        views = self.members.views.values()
        return [view.pid for view in views if view.seen is None and view.exit is None]

    @property
    def detailed(self) -> set[Pid]:
        """Processes of which every thread and descriptor is wanted at each pass."""
        return set(self.members.owned) if self.attention.suspicious else set()

    @property
    def urgent(self) -> bool:
        """True while the sampler should go fast."""
        return self.attention.urgent(self.now_ns, self.pace.trained)

    def examine(self) -> None:
        """Look closely at the next pass, whether or not anything seems wrong."""
        self._alarm = True

    def wants(self) -> list[Look]:
        """Threads to look at now."""
        return self.attention.wants(self.members.owned.values(), self._waiting, self.now_ns)

    @property
    def _waiting(self) -> list[ProcessView]:
        return [view for view in self.members.ranks.values() if self.pace.waits(view)]

    def finding(self) -> Finding | None:
        """What the job looks like now; None for a moment while what was seen is not complete enough to judge by.

        What was announced is judged whatever was missed: it is certain.
        """
        failed = self.faults.judge(self.members.views) or self._failure()
        if failed is not None:
            return failed
        unsampled = startup.unsampled_rank(self.members, self.now_ns)
        if unsampled is not None:
            return unsampled
        if self.sight.is_blind(self.now_ns):
            return self.sight.finding(self.now_ns)
        if not self.members.ranks:
            ended = any(view.exit is not None for view in self.members.views.values())
            cause = Cause.ENDING if ended else Cause.STARTING
            return Finding(Kind.WORKING, cause, self.now_ns)
        if self._whole:
            missing = startup.missing_rank(self.members, self.pace, self.now_ns, self._policy)
            if missing is not None:
                return missing
        if not self.attention.suspicious:
            return self._healthy()
        found = self.faults.located(judge(self.picture()), self.members.ranks)
        if found.cause is Cause.TRAINING or startup.awaits_somebody(found, self.members, self.pace):
            return self._healthy()
        silent_s = self.pace.silence_s(self.members.ranks, self.now_ns)
        return at_hard_limit(found, silent_s, self._policy, self.now_ns)

    def _failure(self) -> Finding | None:
        failures = self.announced.failures
        if not failures:
            return None
        waits = bool(self.members.ranks) or not self._whole
        if waits and self.now_ns - failures[0].boottime_ns < announced.SETTLE_NS:
            return None
        stacks, views = self.attention.stacks_of(self._waiting), self.members.views
        longest_s = self.pace.longest_s
        return announced.judge_failure(self.announced, views, stacks, longest_s, whole=self._whole)

    def _healthy(self) -> Finding:
        slow = slowness(self.pace, self.loss, self.members.ranks, self.now_ns)
        if slow is not None:
            return slow
        cause = Cause.TRAINING if self.pace.trained else Cause.STARTING
        return Finding(Kind.WORKING, cause, self.now_ns)

    def picture(self) -> Picture:
        """Everything a judgement needs, as of now."""
        members, views = self.members, self.members.views
        ends = Ends(views.values())
        scene = Scene(
            now_ns=self.now_ns,
            policy=self._policy,
            table=self.table,
            children=members.children,
            holders=lambda pid, waited: members.holders(pid, waited, ends),
            inspections=self.attention.looks,
            kind=members.kind,
            ends=ends,
            all_here=members.world_size == len(members.all_ranks),
        )
        standings = {
            pid: stand(view, scene).floored(self._floor_ns)
            for pid, view in views.items()
            if view.member is not None and view.member.owner is not None
        }
        ranks = members.all_ranks
        return Picture(
            now_ns=self.now_ns,
            policy=self._policy,
            ranks=members.ranks,
            standings=standings,
            ends=ends,
            lossy=self._is_lossy([standings[pid].since_ns for pid in members.ranks]),
            thresholds_s={pid: self.pace.threshold_s(pid) for pid in members.ranks},
            known=self.attention.known if self.pace.trained else KnownWaits(),
            whole=self._whole,
            stop_signals=self.announced.stops,
            left={pid: standings[pid] for pid in ranks if standings[pid].state is State.LEFT},
            collectives=self.attention.collectives,
        )

    def _is_lossy(self, since_ns: list[int]) -> bool:
        # a lost link shows retransmissions as well, but nothing gets through; silence unseen is the kernel's word
        silent_s = self.pace.silence_s(self.members.ranks, self.now_ns)
        silent_s = silent_s or (self.now_ns - max(since_ns, default=self.now_ns)) / NS
        return bool(self.loss.lossy(self.now_ns, self.pace.slowed)) and silent_s < _LOSSY_SILENCE_S


def _held(view: ProcessView) -> bool:
    return view.lead is not None and view.lead.sample.state in _HELD
