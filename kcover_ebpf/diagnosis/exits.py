"""Faults that the kernel announces: exits, signals, out of memory. They need no waiting and no learning.

Who died first is not always who is to blame: a rank that left with code 0, that its own launcher killed, that skipped a
collective, or that all others waited for in vain makes an innocent peer fail. Those are distinguished here.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kcover_ebpf.diagnosis import endpoints, gave_up, stacks
from kcover_ebpf.diagnosis.evidence import name
from kcover_ebpf.diagnosis.members import Members, established
from kcover_ebpf.diagnosis.process import ProcessHistory
from kcover_ebpf.diagnosis.roles import Role
from kcover_ebpf.diagnosis.snapshot import Finding, JobSnapshot
from kcover_ebpf.diagnosis.verdict import (
    RAISED,
    Cause,
    Culprit,
    Evidence,
    EvidenceKind,
    VerdictKind,
)
from kcover_ebpf.facts.kernel import OomKill, ProcessExit, SignalSent
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.diagnosis import (
    GAVE_UP_SEEN_NS,
    LEFT_BEFORE_NS,
    LEFT_BEFORE_STEPS,
    LOADER_MISSED_NS,
    RECOVERED_NS,
)

_CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_ENDING_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL}


@dataclass(slots=True)
class Announcements:
    """What was announced about one job so far."""

    failures: list[ProcessExit] = field(default_factory=list)
    """Failed exits of ranks, and of their loaders whose ranks could not continue, in order."""
    lost: dict[Pid, ProcessExit] = field(default_factory=dict)
    """Loaders that died, by their rank: a fault only if that makes no progress without it."""
    oom: set[Pid] = field(default_factory=set)
    signals: dict[Pid, SignalSent] = field(default_factory=dict)
    """The last fatal signal sent to a process."""
    stops: dict[Pid, SignalSent] = field(default_factory=dict)
    """The stop signal in force for a process."""
    awaited: gave_up.Awaited | None = None
    """The rank that all others were last seen waiting for, before any failed."""

    def judged(self, snapshot: JobSnapshot) -> JobSnapshot:
        """Note who waits for whom in a snapshot, which is returned."""
        if not self.failures:
            self.awaited = gave_up.awaited(snapshot) or self.awaited
        return snapshot

    def on_signal(self, sent: SignalSent) -> None:
        """Note who sent which signal."""
        if sent.signal in (signal.SIGSTOP, signal.SIGTSTP):
            self.stops[sent.pid] = sent
        elif sent.signal == signal.SIGCONT:
            self.stops.pop(sent.pid, None)
        else:
            self.signals[sent.pid] = sent

    def on_oom(self, kill: OomKill) -> None:
        """Note a victim of the out-of-memory killer."""
        self.oom.add(kill.pid)

    def on_exit(
        self, view: ProcessHistory, leaving: ProcessExit, members: Members, longest_s: float
    ) -> bool:
        """Note an exit if it is a failure that concerns the job; True if it is.

        `longest_s`: the longest step so far; after that the others notice that a rank has left.
        """
        member, by_signal = view.member, leaving.signal != 0
        if member is None or not (by_signal or leaving.exit_code):
            return False
        ended = leaving.signal in _ENDING_SIGNALS and self._ended_inside(leaving, members)
        if ended and not self._ended_for_another(view, leaving, members, longest_s):
            return False
        concerns = {
            # what a wrapper runs before the training may fail without harm; the wrapper reports it it
            Role.RANK: by_signal or established(view, leaving) or not members.is_wrapped(view),
            Role.LOADER: by_signal,
            Role.HELPER: member.wraps
            and not members.is_wrapped(view)
            and not self._failed(member.rank, members),
        }
        if not concerns.get(member.role, False):
            return False
        if member.role is Role.LOADER and member.owner is not None:
            # a sandbox that ends as it should, a saver that the memory limit took: the rank may do without
            self.lost.setdefault(member.owner, leaving)
            return False
        loader = self.lost.pop(leaving.pid, None)
        if loader is not None:
            self.failures.append(loader)
        self.failures.append(leaving)
        return True

    def follow(self, ranks: Mapping[Pid, ProcessHistory], stalled: Collection[Pid]) -> None:
        """Once a pass: a lost loader is a failure where its rank has stalled since, and none where it continued."""
        for owner, leaving in list(self.lost.items()):
            rank = ranks.get(owner)
            if rank is None:
                del self.lost[owner]
            elif owner in stalled:
                self.failures.append(self.lost.pop(owner))
            elif _moved_ns(rank) > leaving.boottime_ns + LOADER_MISSED_NS:
                del self.lost[owner]

    def _ended_inside(self, leaving: ProcessExit, members: Members) -> bool:
        # a launcher or a rank ends its own processes; that is management, not a fault
        sent = self.signals.get(leaving.pid)
        return (
            sent is not None and sent.sender_pid != leaving.pid and sent.sender_pid in members.views
        )

    def _ended_for_another(
        self, view: ProcessHistory, leaving: ProcessExit, members: Members, longest_s: float
    ) -> bool:
        # a launcher that ends the others after a rank left with code 0, without a signal to itself, gives no other hint
        reported = self.signals[leaving.pid].sender_pid in self.signals
        is_rank = view.member is not None and view.member.role is Role.RANK
        left = _left_before(_gone_before(leaving, members.all_ranks, longest_s))
        return is_rank and not reported and left is not None

    def _failed(self, rank: int | None, members: Members) -> bool:
        views = [members.views.get(failure.pid) for failure in self.failures]
        return any(view is not None and view.member and view.member.rank == rank for view in views)

    def keep(self, members: Members) -> None:
        """Forget the failures of what was no part of the job after all."""
        self.failures = [each for each in self.failures if each.pid in members.views]

    def settle(self, members: Members) -> None:
        """Forget the failures once the job got over them: each rank is there again and continues."""
        for failure in self.failures:
            view = members.views.get(failure.pid)
            again = members.successor(view) if view is not None else None
            if again is None or again.peer_bytes_ns < failure.boottime_ns + RECOVERED_NS:
                return
        self.failures.clear()


def judge_failure(
    announced: Announcements,
    views: Mapping[Pid, ProcessHistory],
    survivor_stacks: Mapping[Pid, stacks.Stack],
    longest_s: float,
    *,
    whole: bool = True,
) -> Finding | None:
    """The finding for the first failure; None if there is none, or if the whole job was ended.

    `longest_s`: the longest step so far. `whole`: all ranks are among `views`; else nothing shows that
    the whole job was ended.
    """
    if not announced.failures:
        return None
    first = _first(announced.failures, views)
    view = views[first.pid]
    ranks = {
        pid: each for pid, each in views.items() if each.member and each.member.role is Role.RANK
    }
    alive = [pid for pid, each in ranks.items() if each.exit is None]
    if whole and not alive and _ended_from_outside(announced, ranks):
        return None
    victims = tuple(alive)
    evidence = [Evidence(EvidenceKind.EVENT, _reported(view, first, announced))]
    gone = _gone_before(first, ranks, longest_s)
    earlier = _ended_before(announced, first, gone, views)
    if earlier is not None:
        cause, there, text = earlier
        evidence.insert(0, Evidence(EvidenceKind.EVENT, text))
        return _finding(cause, first.boottime_ns, there, evidence, victims)
    odd = _skipped(first, ranks, survivor_stacks)
    if odd is not None and view.member is not None and view.member.role is Role.RANK:
        other = [pid for pid in survivor_stacks if pid != odd]
        names = ", ".join(name(ranks[pid]) for pid in other)
        text = f"{name(ranks[odd])} waits in a different collective from {names}"
        evidence.append(Evidence(EvidenceKind.STACK, text))
        return _finding(Cause.COLLECTIVE_MISMATCH, first.boottime_ns, ranks[odd], evidence, victims)
    late = _awaited(announced, first, views)
    if late is not None:
        evidence.append(Evidence(EvidenceKind.PEERS, late.text))
        there = views[late.rank.pid]
        return _finding(Cause.TIMED_OUT, first.boottime_ns, there, evidence, victims)
    return _finding(_cause(view, first, announced), first.boottime_ns, view, evidence, victims)


def _awaited(
    announced: Announcements, first: ProcessExit, views: Mapping[Pid, ProcessHistory]
) -> gave_up.Awaited | None:
    """The rank for whose sake another gave up; None where that one died of something else, or was served at last."""
    late = announced.awaited
    if late is None or first.pid not in late.waiting or late.rank.pid not in views:
        return None
    if _cause(views[first.pid], first, announced) not in RAISED:
        return None
    there = views[late.rank.pid]
    was_alive = there.exit is None or there.exit.boottime_ns >= first.boottime_ns
    is_recent = first.boottime_ns - late.at_ns <= GAVE_UP_SEEN_NS
    was_served = any(views[pid].data_ns > late.at_ns for pid in late.waiting if pid in views)
    return late if was_alive and is_recent and not was_served else None


def _first(failures: Sequence[ProcessExit], views: Mapping[Pid, ProcessHistory]) -> ProcessExit:
    # a rank that dies with its loaders is to be reported, whichever of them was reaped first
    first = failures[0]
    member = views[first.pid].member
    owner = member.owner if member is not None else None
    # a rank that raises for the lack of its loader is its victim; one that was killed with it is not
    return next((each for each in failures if each.pid == owner and each.signal), first)


def _moved_ns(rank: ProcessHistory) -> int:
    lead = rank.lead
    return max(rank.data_ns, lead.progress_ns if lead is not None else 0)


def _ended_before(
    announced: Announcements,
    first: ProcessExit,
    gone: Sequence[ProcessExit],
    views: Mapping[Pid, ProcessHistory],
) -> tuple[Cause, ProcessHistory, str] | None:
    """The rank that ended before another failed for lack of it, how, and the sentence that says so."""
    left = _left_before(gone)
    if left is not None:
        return Cause.LEFT_EARLY, views[left], f"{name(views[left])} exited with code 0 before that"
    killed = [each for each in gone if _is_by_launcher(each, announced, views)]
    # a launcher that ends several ends the job, and some rank notices before its turn
    if len(killed) != 1 or _cause(views[first.pid], first, announced) not in RAISED:
        return None
    view = views[killed[0].pid]
    return Cause.KILLED, view, _reported(view, killed[0], announced)


def _is_by_launcher(
    leaving: ProcessExit, announced: Announcements, views: Mapping[Pid, ProcessHistory]
) -> bool:
    """Whether its own launcher killed it, which was not itself ordered to end."""
    sent = announced.signals.get(leaving.pid)
    if sent is None or sent.signal != leaving.signal or sent.sender_pid == leaving.pid:
        return False
    return sent.sender_pid in views and sent.sender_pid not in announced.signals


def _left_before(gone: Sequence[ProcessExit]) -> Pid | None:
    return next((each.pid for each in gone if not each.signal and not each.exit_code), None)


def _gone_before(
    first: ProcessExit, ranks: Mapping[Pid, ProcessHistory], longest_s: float
) -> list[ProcessExit]:
    """The exits of ranks shortly enough before a failure to be its reason."""
    window_ns = max(LEFT_BEFORE_NS, int(LEFT_BEFORE_STEPS * longest_s * NS))
    exits = [view.exit for pid, view in ranks.items() if pid != first.pid and view.exit is not None]
    return [
        each
        for each in exits
        if each.known and 0 <= first.boottime_ns - each.boottime_ns <= window_ns
    ]


def _skipped(
    first: ProcessExit, ranks: Mapping[Pid, ProcessHistory], survivors: Mapping[Pid, stacks.Stack]
) -> Pid | None:
    """The survivor that waits in another collective than the rest; None unless two signs agree.

    Its stack differs from all others', which are alike; or, with only two left, it is the one that
    has sent after the other: it entered its collective last, and what it sent there killed the
    receiver.
    """
    if first.signal not in (0, signal.SIGABRT) or len(survivors) < 2:
        return None
    apart = stacks.groups(survivors)
    if len(apart) != 2:
        return None
    odd = stacks.minority(apart)
    if len(odd) == 1:
        return odd[0]
    ends = endpoints.EndpointIndex(ranks.values())
    newest = endpoints.newest_sender({pid: ranks[pid] for pid in survivors}, ends)
    return newest[0] if newest is not None and len(survivors) == 2 else None


def _ended_from_outside(announced: Announcements, ranks: Mapping[Pid, ProcessHistory]) -> bool:
    exits = [view.exit for view in ranks.values() if view.exit is not None]
    return bool(exits) and all(
        each.signal in _ENDING_SIGNALS and each.pid not in announced.oom for each in exits
    )


def _cause(view: ProcessHistory, leaving: ProcessExit, announced: Announcements) -> Cause:
    if leaving.pid in announced.oom:
        return Cause.OOM_KILLED
    if view.member is not None and view.member.role is Role.LOADER:
        return Cause.LOADER_DIED
    return cause_of_signal(leaving.signal) if leaving.signal else Cause.EXITED


def cause_of_signal(number: int) -> Cause:
    """What a rank died of that was ended by a signal, as far as its number shows it."""
    if number == signal.SIGABRT:
        return Cause.ABORTED
    return Cause.SEGFAULT if number in _CRASH_SIGNALS else Cause.KILLED


def _reported(view: ProcessHistory, leaving: ProcessExit, announced: Announcements) -> str:
    if leaving.signal:
        how = f"died by {signal_name(leaving.signal)}"
        sent = announced.signals.get(leaving.pid)
        if leaving.pid in announced.oom:
            how += ", chosen by the out-of-memory killer"
        elif sent is not None and sent.signal == leaving.signal and sent.sender_pid:
            own = sent.sender_pid == leaving.pid
            how += (
                " raised by itself" if own else f" sent by {sent.sender_comm} ({sent.sender_pid})"
            )
    else:
        how = f"exited with code {leaving.exit_code}"
    what = "" if view.member is None or view.member.role is Role.RANK else "a data loader of "
    return f"{what}{name(view)} (pid {leaving.pid}, {leaving.comm}) {how}"


def signal_name(number: int) -> str:
    """Such as "SIGKILL", or "signal 40" where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _finding(
    cause: Cause,
    since_ns: int,
    view: ProcessHistory,
    evidence: list[Evidence],
    victims: tuple[Pid, ...],
) -> Finding:
    member = view.member
    owner = member.owner if member and member.owner is not None else view.pid
    return Finding(
        VerdictKind.CRASHED,
        cause,
        since_ns,
        Culprit(view.rank, owner, view.pid),
        tuple(evidence),
        tuple(pid for pid in victims if pid != owner),
    )
