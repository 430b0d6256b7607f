"""Announcements of the kernel about one job: exits, signals, out of memory. They need no waiting and no learning.

Not every exit is a fault of the job. A launcher or a rank ends its own processes, a wrapper's first commands may fail,
and a rank may continue without one of its children. So a lost process is a fault only if those that need it stop making
progress.
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
from kcover_ebpf.tunables.diagnosis import LOSS_FELT_NS, LOSS_FELT_STEPS, RECOVERY_STABLE_NS

ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL})
"""Signals by which a process is ended on purpose."""
_FORKED_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Loss:
    """An exit that is a fault only if the processes that need the ended one make no progress without it."""

    process_exit: ProcessExit
    owner: Pid | None = None
    """The rank whose loader it was; None for a rank that its own launcher ended."""

    def lasts_ns(self, longest_s: float) -> int:
        """Boottime until which it explains a later stall. `longest_s`: the longest step so far, in seconds.

        Prefetched data, and the collective under way, are used up by then.
        """
        least_ns = LOSS_FELT_NS if self.owner is not None else round(LEFT_SINCE_S * NS)
        return self.process_exit.boottime_ns + least_ns + round(LOSS_FELT_STEPS * longest_s * NS)


@dataclass(slots=True)
class Announcements:
    """Everything that was announced about one job so far."""

    failures: list[ProcessExit] = field(default_factory=list)
    """Failed exits of ranks, and of loaders whose ranks died of that, in order."""
    losses: dict[Pid, Loss] = field(default_factory=dict)
    """Pid -> the exit of a process that the job may continue without."""
    oom: set[Pid] = field(default_factory=set)
    signals: dict[Pid, SignalSent] = field(default_factory=dict)
    """The last fatal signal sent to each process."""
    forked: deque[Pid] = field(default_factory=lambda: deque(maxlen=_FORKED_KEPT))
    """Processes that the job's own recently started; some are gone, or are first read after they sent a signal."""
    stops: dict[Pid, SignalSent] = field(default_factory=dict)
    """The stop signal in force for each process."""
    awaited: gave_up.Awaited | None = None
    """The rank that all others waited for when that was last determined, before any failed; None if there was none."""

    @property
    def misses_rank(self) -> bool:
        """True while it is undecided whether the other ranks continue without one that their launcher ended."""
        return any(loss.owner is None for loss in self.losses.values())

    def judged(self, snapshot: JobSnapshot) -> JobSnapshot:
        """Note the rank that the others wait for in a snapshot; returns the snapshot."""
        if not self.failures:
            self.awaited = gave_up.awaited(snapshot) or self.awaited
        return snapshot

    def on_signal(self, sent: SignalSent) -> None:
        """Note a fatal, stop or continue signal, with its sender."""
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
        """Note an exit if it concerns the job; True if it already is a failure.

        `longest_s`: the longest step so far; the others notice within this time that a rank has left.
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
            # a program that a wrapper runs before the training may fail without harm; the wrapper reports it
            # otherwise
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
            # a sandbox that ends as planned, or a saver that the memory limit ended: the rank may continue without it
            self.losses[process_exit.pid] = Loss(process_exit, member.owner)
            return False
        self.failures += [loss.process_exit for loss in self._of(process_exit.pid)]
        self.failures.append(process_exit)
        return True

    def _of(self, rank: Pid) -> list[Loss]:
        """Remove and return the loaders that a rank had lost: it died of that."""
        found = [loss for loss in self.losses.values() if loss.owner == rank]
        for loss in found:
            del self.losses[loss.process_exit.pid]
        return found

    def on_gone(self, process_exit: ProcessExit) -> ProcessExit:
        """The exit of a process that was known to be dying, with the time at which its end began."""
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
        """Once a pass: forget losses after which the processes that needed the lost one continued, or ended.

        `ranks`: the living ones, `children`: theirs; `longest_s`: the longest step so far.
        """
        for pid, loss in list(self.losses.items()):
            if loss.owner is not None and self._sender(pid) in self.forked:
                # a shell of the rank ended a process that the rank had started
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
            # a rank that fails because another is missing moves as well, for seconds; one that trains exchanges data
            fails = loss.owner is None and any(0 < rank.data_ns <= ends_ns for rank in needed)
            is_old = now_ns - loss.process_exit.boottime_ns > KILLED_PATIENCE_S * NS
            if moved and (is_old or not fails):
                del self.losses[pid]

    def _ended_inside(self, process_exit: ProcessExit, members: Members) -> bool:
        # a launcher or a rank ends its own processes; that is management, not a fault
        sender = self._sender(process_exit.pid)
        return sender is not None and (sender in members.views or sender in self.forked)

    def _sender(self, pid: Pid) -> Pid | None:
        """Sender of the last fatal signal to a process; None if unknown, or if it sent the signal itself."""
        sent = self.signals.get(pid)
        return None if sent is None or sent.sender_pid == pid else sent.sender_pid

    def _ended_for_another(
        self, process: ProcessHistory, process_exit: ProcessExit, members: Members, longest_s: float
    ) -> bool:
        # a launcher that ends the others after a rank left with code 0, with no signal to itself, gives no other hint
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
        """Forget the exits of processes that turned out not to be part of the job."""
        self.failures = [failure for failure in self.failures if failure.pid in members.views]
        self.losses = {pid: loss for pid, loss in self.losses.items() if pid in members.views}

    def settle(self, members: Members) -> None:
        """Forget the failures once the job recovered: each failed rank has a successor that continues."""
        for failure in self.failures:
            process = members.views.get(failure.pid)
            again = members.successor(process) if process is not None else None
            if again is None or again.peer_bytes_ns < failure.boottime_ns + RECOVERY_STABLE_NS:
                return
        self.failures.clear()


def is_by_launcher(
    process_exit: ProcessExit, announcements: Announcements, views: Mapping[Pid, ProcessHistory]
) -> bool:
    """True if its own launcher killed it without having been asked to end itself."""
    sent = announcements.signals.get(process_exit.pid)
    if sent is None or sent.signal != process_exit.signal or sent.sender_pid == process_exit.pid:
        return False
    return sent.sender_pid in views and sent.sender_pid not in announcements.signals


def left_before(gone: Sequence[ProcessExit]) -> Pid | None:
    """The rank among these that ended with code 0; None if there is none."""
    return next(
        (
            process_exit.pid
            for process_exit in gone
            if not process_exit.signal and not process_exit.exit_code
        ),
        None,
    )


def gone_before(
    first_exit: ProcessExit,
    ranks: Mapping[Pid, ProcessHistory],
    longest_s: float,
    exchanged_ns: int = 0,
) -> list[ProcessExit]:
    """Exits of ranks that are shortly enough before a failure to be its reason.

    `exchanged_ns`: the last exchange of the others. An exit next to it may be older: nothing was done without that
    rank, and on a busy machine a program takes long to end after an error. 0: none was observed.
    """
    window_ns = max(LOSS_FELT_NS, int(LOSS_FELT_STEPS * longest_s * NS))
    exits = [
        process.exit
        for pid, process in ranks.items()
        if pid != first_exit.pid and process.exit is not None
    ]
    return [
        exit_
        for exit_ in exits
        if exit_.known
        and exit_.boottime_ns <= first_exit.boottime_ns
        and min(first_exit.boottime_ns - exit_.boottime_ns, abs(exchanged_ns - exit_.boottime_ns))
        <= window_ns
    ]


def _has_begun_another(
    loss: Loss, process: ProcessHistory, children: Sequence[ProcessHistory], now_ns: int
) -> bool:
    # a pool whose sandbox crashed starts the next one; periodic children of a rank show nothing
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
