"""All facts of one job over time, and the verdict they add up to. Pure: time comes in with the facts.

The caller feeds `observe` with every fact, reads the looks it `wants`, and asks `verdict` once a
pass.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.device_facts import DeviceFault
from kcover_ebpf.facts import (
    DescriptorSample,
    Fact,
    Inode,
    Inspection,
    Look,
    OomKill,
    Pid,
    ProcessExec,
    ProcessExit,
    ProcessFork,
    ProcessSeen,
    ProcessTotals,
    SignalSent,
    SocketSample,
    TaskState,
    ThreadSample,
    Tick,
    Tid,
    WaitedFile,
)
from kcover_ebpf.incidents import announced, links, stacks
from kcover_ebpf.incidents.cadence import Cadence
from kcover_ebpf.incidents.devices import DeviceFaults
from kcover_ebpf.incidents.judge import Finding, Picture, judge
from kcover_ebpf.incidents.processes import NS, ProcessView
from kcover_ebpf.incidents.ranks import Membership, Role, classify
from kcover_ebpf.incidents.slow import WaitShares
from kcover_ebpf.incidents.standing import Scene, Standing, State, stand
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind
from kcover_ebpf.settings import Policy
from kcover_ebpf.syscalls import Family, SyscallTable

_BLIND_NS = 2 * NS
_SUSPICIOUS_FLOOR_S = 1.2
_CALM_AFTER_NS = 30 * NS
_LOOK_PERIOD_NS = 200_000_000
_LOOKS_KEPT = 48
_BASELINE_EAGER = 40
_BASELINE_PERIOD_NS = 10 * NS
_WAIT_FAMILIES = frozenset({Family.FUTEX, Family.POLL, Family.NETWORK, Family.YIELD})


class Job:
    """One job as seen from this host."""

    def __init__(self, policy: Policy, table: SyscallTable) -> None:
        self._policy, self._table = policy, table
        self.views: dict[Pid, ProcessView] = {}
        self.announced = announced.Announcements()
        self.faults = DeviceFaults()
        self.known = stacks.KnownWaits()
        self.world_size: int | None = None
        self.trained = False
        """True once any rank made progress in step with others (payload between ranks, or repeated
        moves).
        """
        self.now_ns = 0
        self._cadence: dict[Pid, Cadence] = {}
        self._looks: dict[tuple[Pid, Tid], deque[Inspection]] = {}
        self._pending: dict[Pid, stacks.Stack] = {}
        self._moved_bytes: dict[Pid, int] = defaultdict(int)
        self._shares = WaitShares()
        self._stale_roles = True
        self._blind_until_ns = 0
        self._floor_ns = 0
        self._last_rank_ns = 0
        self._suspicious_since_ns: int | None = None
        self._next_baseline_ns = 0
        self._alarm = False

    # --- facts
    # -------------------------------------------------------------------------------------------

    def observe(self, fact: Fact) -> None:
        """Take one fact, in the order of its kind's arrival."""
        self.now_ns = max(self.now_ns, fact.boottime_ns)
        match fact:
            case ThreadSample():
                self._on_thread(fact)
            case ProcessTotals():
                self._view(fact.pid, fact.boottime_ns).on_totals(fact)
            case SocketSample():
                self._on_socket(fact)
            case DescriptorSample():
                key = (fact.fd, fact.inode)
                self._view(fact.pid, fact.boottime_ns).descriptors[key] = fact
            case ProcessSeen():
                self._view(fact.pid, fact.boottime_ns).seen = fact
                self._stale_roles = True
            case ProcessFork():
                self._view(fact.child_pid, fact.boottime_ns)
            case ProcessExec():
                self._view(fact.pid, fact.boottime_ns).seen = None
            case ProcessExit():
                self._on_exit(fact)
            case OomKill():
                self.announced.on_oom(fact)
            case SignalSent():
                self.announced.on_signal(fact)
                self._alarm = True
            case Inspection():
                self._on_look(fact)
            case DeviceFault():
                self.faults.on_fault(fact)
                self._alarm = True
            case Tick():
                self._on_tick(fact)
            case _:
                pass

    def _view(self, pid: Pid, now_ns: int) -> ProcessView:
        view = self.views.get(pid)
        if view is None:
            view = self.views[pid] = ProcessView(pid, now_ns)
        return view

    def _on_thread(self, sample: ThreadSample) -> None:
        view = self._view(sample.pid, sample.boottime_ns)
        if view.on_thread(sample, self._table):
            self._progress(view, sample.boottime_ns)

    def _on_socket(self, sample: SocketSample) -> None:
        view = self._view(sample.pid, sample.boottime_ns)
        self._moved_bytes[sample.pid] += view.on_socket(sample)

    def _on_exit(self, fact: ProcessExit) -> None:
        view = self._view(fact.pid, fact.boottime_ns)
        self._classify()
        view.exit = fact
        self.announced.on_exit(view, fact, self.views.keys())
        self._alarm = True
        if view.member is None or view.member.role is not Role.RANK:
            self._forget(fact.pid)

    def _forget(self, pid: Pid) -> None:
        # a loader that died stays known, so that the one who waits for it can be explained
        view = self.views[pid]
        if view.member is None or view.member.role is not Role.LOADER:
            del self.views[pid]
        for key in [key for key in self._looks if key[0] == pid]:
            del self._looks[key]

    def _on_look(self, look: Inspection) -> None:
        looks = self._looks.setdefault((look.pid, look.tid), deque(maxlen=_LOOKS_KEPT))
        looks.append(look)
        if look.stack and not self.suspicious:
            self._pending[look.pid] = look.stack

    def _progress(self, view: ProcessView, now_ns: int) -> None:
        cadence = self._cadence.get(view.pid)
        if cadence is None:
            return
        cadence.progress(now_ns / NS)
        pending = self._pending.pop(view.pid, None)
        if pending is not None:
            self.known.learn(pending)

    def _on_tick(self, tick: Tick) -> None:
        self._classify()
        ranks = self.ranks
        for pid, moved in self._moved_bytes.items():
            view = self.views.get(pid)
            if view is not None and view.on_peer_bytes(moved, tick.boottime_ns):
                self._progress(view, tick.boottime_ns)
                self.trained = self.trained or len(ranks) > 1
        self._moved_bytes.clear()
        if tick.late or tick.lost_count:
            self._blind_until_ns = tick.boottime_ns + _BLIND_NS
            self._restart_clocks(tick.boottime_ns)
        held = [view for view in ranks.values() if _held(view)]
        if ranks and len(held) == len(ranks):
            self._restart_clocks(tick.boottime_ns)
        elif not self.suspicious:
            self._shares.observe({pid: self._waits(view) for pid, view in ranks.items()})
        self._watch_suspicion(tick.boottime_ns)

    def _restart_clocks(self, now_ns: int) -> None:
        self._floor_ns = now_ns
        for cadence in self._cadence.values():
            cadence.forget_current(now_ns / NS)

    def _waits(self, view: ProcessView) -> bool:
        lead = view.lead
        if lead is None:
            return False
        blocked = lead.sample.state is TaskState.SLEEPING or lead.waits_busily
        return blocked and self._table.family(lead.sample.syscall) in _WAIT_FAMILIES

    def _classify(self) -> None:
        if not self._stale_roles:
            return
        self._stale_roles = False
        living = [view.seen for view in self.views.values() if view.seen is not None]
        for pid, member in classify(living).items():
            view = self.views[pid]
            if view.exit is None or view.member is None:
                self._join(view, member)

    def _join(self, view: ProcessView, member: Membership) -> None:
        view.member = member
        if member.role is not Role.RANK:
            self._cadence.pop(view.pid, None)
            return
        self.world_size = member.world_size or self.world_size
        if view.pid not in self._cadence:
            policy = self._policy
            self._cadence[view.pid] = Cadence(policy.stall_floor_s, policy.stall_factor)
            self._last_rank_ns = max(self._last_rank_ns, view.first_seen_ns)

    # --- what the sampler should do
    # ----------------------------------------------------------------------

    @property
    def ranks(self) -> dict[Pid, ProcessView]:
        """Living ranks."""
        return {
            pid: view
            for pid, view in self.views.items()
            if view.exit is None and view.member is not None and view.member.role is Role.RANK
        }

    @property
    def nameless(self) -> list[Pid]:
        """Living processes about which nothing was read yet."""
        return [pid for pid, view in self.views.items() if view.seen is None and view.exit is None]

    @property
    def suspicious(self) -> bool:
        """True while some rank is silent for longer than usual, or something was announced."""
        return self._suspicious_since_ns is not None

    @property
    def urgent(self) -> bool:
        """True while the sampler should go fast: suspicious, and not for so long that it is a quiet phase."""
        since = self._suspicious_since_ns
        return since is not None and self.now_ns - since < _CALM_AFTER_NS

    @property
    def detailed(self) -> set[Pid]:
        """Processes of which every thread and descriptor is wanted at each pass."""
        if not self.suspicious:
            return set()
        return {
            pid
            for pid, view in self.views.items()
            if view.exit is None and view.member is not None and view.member.owner is not None
        }

    def _watch_suspicion(self, now_ns: int) -> None:
        silent = any(self._silent(pid, now_ns) for pid in self.ranks)
        held = any(_held(view) for view in self.ranks.values())
        if silent or held or self._alarm or self.announced.failures:
            if self._suspicious_since_ns is None:
                self._suspicious_since_ns = now_ns
        elif self._suspicious_since_ns is not None:
            self._suspicious_since_ns = None
            self._looks.clear()
            for view in self.views.values():
                view.descriptors.clear()
        self._alarm = False
        if self._suspicious_since_ns is None:
            self.faults.forget_harmless(now_ns)

    def examine(self) -> None:
        """Look closely at the next pass, whether or not anything seems wrong."""
        self._alarm = True

    def _silent(self, pid: Pid, now_ns: int) -> bool:
        cadence = self._cadence[pid]
        last_s = cadence.last_s
        if last_s is None:
            last_s = self.views[pid].first_seen_ns / NS
        limit_s = max(_SUSPICIOUS_FLOOR_S, min(0.8 * cadence.threshold_s, 30.0))
        return now_ns / NS - last_s >= limit_s

    @property
    def last_looks(self) -> dict[Pid, Inspection]:
        """The last closer look at each process, of those that were looked at."""
        return {pid: looks[-1] for (pid, _), looks in self._looks.items() if looks}

    @property
    def exited_ranks(self) -> set[Pid]:
        """Ranks that are gone."""
        return {pid for pid in self._cadence if pid not in self.ranks}

    @property
    def devices(self) -> set[str]:
        """Device nodes that its processes hold open, as far as they were told (`ProcessSeen.devices`)."""
        return {name for view in self.views.values() if view.seen for name in view.seen.devices}

    def wants(self) -> list[Look]:
        """Threads to look at now: all leads while suspicious, else a few healthy waits to remember."""
        if self.suspicious:
            looks = [self._look(self.views[pid]) for pid in sorted(self.detailed)]
            return [look for look in looks if look is not None]
        if self.now_ns < self._next_baseline_ns:
            return []
        if self.known.count >= _BASELINE_EAGER // 4 or self.now_ns - self._last_rank_ns > 60 * NS:
            self._next_baseline_ns = self.now_ns + _BASELINE_PERIOD_NS
        waiting = [view for pid, view in self.ranks.items() if self._waits(view)]
        waiting = [view for view in waiting if view.lead and not view.lead.waits_busily]
        looks = [self._look(view) for view in waiting if view.pid not in self._pending]
        return [look for look in looks if look is not None][:2]

    def _look(self, view: ProcessView) -> Look | None:
        lead = view.lead
        if lead is None:
            return None
        earlier = self._looks.get((view.pid, lead.sample.tid))
        if earlier and self.now_ns - earlier[-1].boottime_ns < _LOOK_PERIOD_NS:
            return None
        running_sp = lead.sample.user_sp if lead.burning_since_ns is not None else None
        return Look(view.pid, lead.sample.tid, lead.sample.idle_since_ns, running_sp)

    # --- verdict
    # -----------------------------------------------------------------------------------------

    @property
    def blind(self) -> bool:
        """True while what was seen is not complete enough to judge by."""
        return self.now_ns < self._blind_until_ns

    def finding(self) -> Finding | None:
        """What the job looks like now; None while it cannot be judged."""
        if self.blind:
            return None
        failed = self.faults.judge(self.views) or self._failure()
        if failed is not None:
            return failed
        ranks = self.ranks
        if not ranks:
            return self._without_ranks()
        missing = self._missing(ranks)
        if missing is not None:
            return missing
        if not self.suspicious:
            return self._healthy()
        return self._hard_limit(judge(self.picture()))

    def _failure(self) -> Finding | None:
        failures = self.announced.failures
        if not failures or self.now_ns - failures[0].boottime_ns < announced.SETTLE_NS:
            return None
        survivors = {
            pid: looks[-1].stack
            for pid in self.ranks
            if (looks := self._looks.get((pid, Tid(pid)))) and looks[-1].stack
        }
        return announced.judge_failure(self.announced, self.views, self.known, survivors)

    def _without_ranks(self) -> Finding:
        left = [view for view in self.views.values() if view.exit is not None]
        cause = Cause.ENDING if left else Cause.STARTING
        return Finding(Kind.WORKING, cause, self.now_ns)

    def _missing(self, ranks: dict[Pid, ProcessView]) -> Finding | None:
        if self.trained or self.world_size is None or any(self._exits()):
            return None
        present = {view.member.rank for view in ranks.values() if view.member}
        absent = sorted(set(range(min(self.world_size, 65536))) - present)
        waited_s = (self.now_ns - self._last_rank_ns) / NS
        if not absent or waited_s < self._policy.start_grace_s:
            return None
        if any(view.latest_effort(self.now_ns, 5 * NS) for view in ranks.values()):
            return None
        text = f"{len(present)} of {self.world_size} ranks are here; rank {absent[0]} is not, for {waited_s:.0f} s"
        evidence = (Evidence(EvidenceKind.TIME, text),)
        return Finding(
            Kind.HUNG,
            Cause.MISSING_RANK,
            self._last_rank_ns,
            None,
            None,
            absent[0],
            evidence,
            tuple(ranks),
        )

    def _exits(self) -> list[ProcessExit]:
        return [view.exit for view in self.views.values() if view.exit is not None]

    def _healthy(self) -> Finding:
        slow = self._shares.straggler()
        if slow is not None:
            view = self.views[slow.pid]
            rank = view.member.rank if view.member else None
            text = (
                f"rank {rank} waits {slow.own_wait_share:.0%} of the time, the others "
                f"{slow.others_wait_share:.0%}: about {slow.factor:.1f} times slower"
            )
            evidence = (Evidence(EvidenceKind.PEERS, text),)
            others = tuple(pid for pid in self.ranks if pid != slow.pid)
            return Finding(
                Kind.SLOW, Cause.SLOW_RANK, self.now_ns, slow.pid, None, rank, evidence, others
            )
        cause = Cause.TRAINING if self.trained else Cause.STARTING
        return Finding(Kind.WORKING, cause, self.now_ns)

    def _hard_limit(self, finding: Finding) -> Finding:
        limit_s = self._policy.hard_limit_s
        if limit_s is None or finding.kind.is_fault:
            return finding
        lasts = [each.last_s for pid, each in self._cadence.items() if pid in self.ranks]
        silent = [self.now_ns / NS - last for last in lasts if last is not None]
        if not silent or min(silent) < limit_s:
            return finding
        evidence = (
            *finding.evidence,
            Evidence(
                EvidenceKind.TIME, f"no progress for {min(silent):.0f} s: the policy's hard limit"
            ),
        )
        since_ns = self.now_ns - int(min(silent) * NS)
        return Finding(
            Kind.HUNG, Cause.UNKNOWN, since_ns, None, None, None, evidence, tuple(self.ranks)
        )

    def picture(self) -> Picture:
        """Everything a judgement needs, as of now."""
        scene = Scene(
            now_ns=self.now_ns,
            policy=self._policy,
            table=self._table,
            children=self._children,
            holders=self._holders,
            inspections=lambda pid, tid: self._looks.get((pid, Tid(tid)), ()),
            kind=self._kind,
        )
        standings = {
            pid: self._floored(stand(view, scene))
            for pid, view in self.views.items()
            if view.member is not None and view.member.owner is not None
        }
        ranks = self.ranks
        left = {
            pid: each
            for pid, each in standings.items()
            if each.state is State.LEFT and pid in self._cadence
        }
        return Picture(
            now_ns=self.now_ns,
            policy=self._policy,
            ranks=ranks,
            standings=standings,
            thresholds_s={pid: self._cadence[pid].threshold_s for pid in ranks},
            known=self.known,
            stop_signals=self.announced.stops,
            left=left,
        )

    def _floored(self, standing: Standing) -> Standing:
        # time before the floor cannot be judged: the node slept, the job was held, or the sensor
        # was blind
        return replace(standing, since_ns=max(standing.since_ns, self._floor_ns))

    def _children(self, pid: Pid) -> Sequence[ProcessView]:
        return [
            view
            for view in self.views.values()
            if view.pid != pid and view.exit is None and view.member and view.member.owner == pid
        ]

    def _kind(self, pid: Pid, waited: WaitedFile) -> str:
        # the sampler knows what the text of a descriptor does not say
        view = self.views[pid]
        if waited.fd in view.sockets:
            return "tcp"
        known = [each.kind for each in view.descriptors.values() if each.fd == waited.fd]
        return known[0] if known else waited.kind

    def _holders(self, pid: Pid, waited: WaitedFile) -> tuple[Pid, ...]:
        view = self.views[pid]
        socket = view.sockets.get(waited.fd)
        if socket is not None:
            peer = links.Ends(self.views.values()).peer(socket)
            return () if peer is None else (peer,)
        inodes: set[Inode] = {waited.inode}
        for descriptor in view.descriptors.values():
            if descriptor.fd == waited.fd:
                inodes = {descriptor.peer_inode or descriptor.inode}
        return tuple(
            sorted(
                view.pid
                for view in self.views.values()
                if view.pid != pid
                and view.exit is None
                and any(each.inode in inodes for each in view.descriptors.values())
            )
        )


def _held(view: ProcessView) -> bool:
    lead = view.lead
    return lead is not None and lead.sample.state in (
        TaskState.STOPPED,
        TaskState.FROZEN,
        TaskState.TRACED,
    )
