"""What the kernel announced about one job: exits, signals, out of memory. It needs no waiting and no learning.

Not every exit is a fault of the job. A launcher or a rank ends its own processes, a wrapper's first commands may fail,
and a rank may do without one of its children: what was lost is a fault only if those who need it stop without it.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.failures import gave_up
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.members import Members, established
from kcover_ebpf.facts.kernel import OomKill, ProcessExit, SignalSent
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.certainty import KILLED_PATIENCE_S, LEFT_SINCE_S
from kcover_ebpf.tunables.diagnosis import (
    LEFT_BEFORE_NS,
    LEFT_BEFORE_STEPS,
    LOADER_MISSED_NS,
    RECOVERED_NS,
)

ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL})
"""By which a process is ended on purpose."""
_FORKED_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Loss:
    """An exit that is a fault only if those who need the process make no progress without it."""

    process_exit: ProcessExit
    owner: Pid | None = None
    """The rank whose loader it was; None: it was a rank itself, ended by its own launcher."""

    def lasts_ns(self, longest_s: float) -> int:
        """Until when it explains that they stop (boottime); `longest_s`: the longest step so far.

        What was prefetched, and the collective under way, are used up by then.
        """
        least_ns = LOADER_MISSED_NS if self.owner is not None else round(LEFT_SINCE_S * NS)
        return self.process_exit.boottime_ns + least_ns + round(LEFT_BEFORE_STEPS * longest_s * NS)


@dataclass(slots=True)
class Announcements:
    """What was announced about one job so far."""

    failures: list[ProcessExit] = field(default_factory=list)
    """Failed exits of ranks, and of loaders whose ranks died of it, in order."""
    losses: dict[Pid, Loss] = field(default_factory=dict)
    """By who ended: what the job may do without."""
    oom: set[Pid] = field(default_factory=set)
    signals: dict[Pid, SignalSent] = field(default_factory=dict)
    """The last fatal signal sent to a process."""
    forked: deque[Pid] = field(default_factory=lambda: deque(maxlen=_FORKED_KEPT))
    """Processes that the job's own began of late; they may be gone, or be heard of after what they did."""
    stops: dict[Pid, SignalSent] = field(default_factory=dict)
    """The stop signal in force for a process."""
    awaited: gave_up.Awaited | None = None
    """The rank that all others were last seen waiting for, before any failed."""

    @property
    def misses_rank(self) -> bool:
        """True while it is open whether the others do without a rank that their launcher ended."""
        return any(loss.owner is None for loss in self.losses.values())

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
        self, process: ProcessHistory, process_exit: ProcessExit, members: Members, longest_s: float
    ) -> bool:
        """Note an exit if it concerns the job; True if it is a failure already.

        `longest_s`: the longest step so far; after that the others notice that a rank has left.
        """
        member, by_signal = process.membership, process_exit.signal != 0
        if member is None or not (by_signal or process_exit.exit_code) or members.is_apart(process):
            return False
        if process_exit.signal in ENDING_SIGNALS and self._ended_inside(process_exit, members):
            if member.role is Role.RANK and is_by_launcher(process_exit, self, members.views):
                self.losses[process_exit.pid] = Loss(process_exit)
            if not self._ended_for_another(process, process_exit, members, longest_s):
                return False
        concerns = {
            # what a wrapper runs before the training may fail without harm; the wrapper reports it
            Role.RANK: by_signal
            or established(process, process_exit)
            or not members.is_wrapped(process),
            Role.LOADER: by_signal,
            Role.HELPER: member.wraps
            and not members.is_wrapped(process)
            and not self._failed(member.rank, members),
        }
        if not concerns.get(member.role, False):
            return False
        if member.role is Role.LOADER and member.owner is not None:
            # a sandbox that ends as it should, a saver that the memory limit took: the rank may do without
            self.losses[process_exit.pid] = Loss(process_exit, member.owner)
            return False
        self.failures += [loss.process_exit for loss in self._of(process_exit.pid)]
        self.failures.append(process_exit)
        return True

    def _of(self, rank: Pid) -> list[Loss]:
        """The loaders that a rank has lost, taken out: it died of that."""
        found = [loss for loss in self.losses.values() if loss.owner == rank]
        for loss in found:
            del self.losses[loss.process_exit.pid]
        return found

    def on_gone(self, process_exit: ProcessExit) -> ProcessExit:
        """What was known to be dying has ended; returns its exit with the time at which it began to."""
        for place, failure in enumerate(self.failures):
            if failure.pid == process_exit.pid:
                process_exit = replace(process_exit, boottime_ns=failure.boottime_ns)
                self.failures[place] = process_exit
        if process_exit.pid in self.losses:
            loss = self.losses[process_exit.pid]
            process_exit = replace(process_exit, boottime_ns=loss.process_exit.boottime_ns)
            self.losses[process_exit.pid] = replace(loss, process_exit=process_exit)
        return process_exit

    def outlive(
        self,
        ranks: Mapping[Pid, ProcessHistory],
        children: Callable[[Pid], Sequence[ProcessHistory]],
        now_ns: int,
        longest_s: float,
    ) -> None:
        """Once a pass: forget the losses after which those who needed the process continued, or ended.

        `ranks`: the living ones, `children`: theirs; `longest_s`: the longest step so far.
        """
        for pid, loss in list(self.losses.items()):
            if loss.owner is not None and self._sender(pid) in self.forked:
                # a shell of the rank ended what the rank had begun
                del self.losses[pid]
                continue
            needed = list(ranks.values()) if loss.owner is None else _known(ranks, loss.owner)
            if loss.owner is not None and any(
                _has_begun_another(loss, rank, children(rank.pid), now_ns) for rank in needed
            ):
                del self.losses[pid]
                continue
            ends_ns = loss.lasts_ns(longest_s)
            moved = all(_moved_ns(rank) > ends_ns for rank in needed)
            # who fails for lack of a rank moves as well, for seconds; who trains on exchanges data
            fails = loss.owner is None and any(0 < rank.data_ns <= ends_ns for rank in needed)
            is_old = now_ns - loss.process_exit.boottime_ns > KILLED_PATIENCE_S * NS
            if moved and (is_old or not fails):
                del self.losses[pid]

    def _ended_inside(self, process_exit: ProcessExit, members: Members) -> bool:
        # a launcher or a rank ends its own processes; that is management, not a fault
        sender = self._sender(process_exit.pid)
        return sender is not None and (sender in members.views or sender in self.forked)

    def _sender(self, pid: Pid) -> Pid | None:
        """Who sent the last fatal signal to a process; None where that is not known, or it did so itself."""
        sent = self.signals.get(pid)
        return None if sent is None or sent.sender_pid == pid else sent.sender_pid

    def _ended_for_another(
        self, process: ProcessHistory, process_exit: ProcessExit, members: Members, longest_s: float
    ) -> bool:
        # a launcher that ends the others after a rank left with code 0, without a signal to itself, gives no other hint
        reported = self.signals[process_exit.pid].sender_pid in self.signals
        is_rank = process.membership is not None and process.membership.role is Role.RANK
        left = left_before(gone_before(process_exit, members.all_ranks, longest_s))
        return is_rank and not reported and left is not None

    def _failed(self, rank: int | None, members: Members) -> bool:
        views = [members.views.get(failure.pid) for failure in self.failures]
        return any(
            process is not None and process.membership and process.membership.rank == rank
            for process in views
        )

    def keep(self, members: Members) -> None:
        """Forget the exits of what was no part of the job after all."""
        self.failures = [failure for failure in self.failures if failure.pid in members.views]
        self.losses = {pid: loss for pid, loss in self.losses.items() if pid in members.views}

    def settle(self, members: Members) -> None:
        """Forget the failures once the job got over them: each rank is there again and continues."""
        for failure in self.failures:
            process = members.views.get(failure.pid)
            again = members.successor(process) if process is not None else None
            if again is None or again.peer_bytes_ns < failure.boottime_ns + RECOVERED_NS:
                return
        self.failures.clear()


def is_by_launcher(
    process_exit: ProcessExit, announcements: Announcements, views: Mapping[Pid, ProcessHistory]
) -> bool:
    """Whether its own launcher killed it, which was not itself ordered to end."""
    sent = announcements.signals.get(process_exit.pid)
    if sent is None or sent.signal != process_exit.signal or sent.sender_pid == process_exit.pid:
        return False
    return sent.sender_pid in views and sent.sender_pid not in announcements.signals


def left_before(gone: Sequence[ProcessExit]) -> Pid | None:
    """The rank among these that ended with code 0."""
    return next(
        (
            process_exit.pid
            for process_exit in gone
            if not process_exit.signal and not process_exit.exit_code
        ),
        None,
    )


def gone_before(
    first_exit: ProcessExit, ranks: Mapping[Pid, ProcessHistory], longest_s: float
) -> list[ProcessExit]:
    """The exits of ranks shortly enough before a failure to be its reason."""
    window_ns = max(LEFT_BEFORE_NS, int(LEFT_BEFORE_STEPS * longest_s * NS))
    exits = [
        process.exit
        for pid, process in ranks.items()
        if pid != first_exit.pid and process.exit is not None
    ]
    return [
        exit_
        for exit_ in exits
        if exit_.known and 0 <= first_exit.boottime_ns - exit_.boottime_ns <= window_ns
    ]


def _has_begun_another(
    loss: Loss, process: ProcessHistory, children: Sequence[ProcessHistory], now_ns: int
) -> bool:
    # a pool whose sandbox crashed runs the next one; what a rank begins every few seconds anyhow shows nothing
    lost_ns, background = loss.process_exit.boottime_ns, process.efforts.background
    return any(
        child.first_seen_ns > lost_ns
        and not background.has_run(child.name, now_ns - child.first_seen_ns)
        for child in children
    )


def _known(ranks: Mapping[Pid, ProcessHistory], pid: Pid) -> list[ProcessHistory]:
    return [ranks[pid]] if pid in ranks else []


def _moved_ns(process: ProcessHistory) -> int:
    lead = process.lead
    return max(process.data_ns, lead.progress_ns if lead is not None else 0)
