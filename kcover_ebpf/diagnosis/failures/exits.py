"""Faults that the kernel announces: exits, signals, out of memory. They need no waiting and no learning.

The first rank that died is not always the culprit. An innocent peer also fails after a rank left with code 0, was
killed by its own launcher, skipped a collective, or kept all others waiting. These cases are distinguished here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.evidence.evidence import name, sent_by
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.failures import gave_up
from kcover_ebpf.diagnosis.failures.announcements import (
    ENDING_SIGNALS,
    Announcements,
    gone_before,
    is_by_launcher,
    left_before,
)
from kcover_ebpf.diagnosis.failures.own_recovery import own_recovery
from kcover_ebpf.diagnosis.history import stacks
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership import endpoints
from kcover_ebpf.facts.kernel import ProcessExit
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import RAISED, Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import GAVE_UP_SEEN_NS

_CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


@dataclass(frozen=True, slots=True)
class Survivors:
    """The ranks that still live when another has failed."""

    stacks: Mapping[Pid, stacks.Stack]
    sends_alike: bool | None = None
    """They sent at the same time while the job was healthy, so the order of sending is evidence; None if unknown."""


def judge_failure(
    announcements: Announcements,
    views: Mapping[Pid, ProcessHistory],
    survivors: Survivors,
    longest_s: float,
    process: ProcessHistory | None = None,
    *,
    whole: bool = True,
) -> Finding | None:
    """The finding for the first failure; None if there is none, or if the whole job was ended.

    `longest_s`: the longest step so far. `process`: the parent of the one that failed first, if it lives. `whole`: all
    ranks are among `views`; otherwise nothing shows that the whole job was ended.
    """
    if not announcements.failures:
        return None
    first = _first(announcements.failures, views)
    ranks = {
        pid: process_history for pid, process_history in views.items() if _is_rank(process_history)
    }
    alive = [pid for pid, rank in ranks.items() if rank.exit is None]
    if whole and not alive and _ended_from_outside(announcements, ranks, views):
        return None
    first_process = views[first.pid]
    evidence = [Evidence(EvidenceKind.EVENT, reported(first_process, first, announcements))]
    evidence += _dumps(ranks.values())
    restart = own_recovery(first_process, process, is_missed=bool(alive) or not whole)
    evidence += [] if restart is None else [restart]
    exchanged_ns = max((rank.data_ns for rank in ranks.values()), default=0)
    gone = gone_before(first, ranks, longest_s, exchanged_ns)
    earlier = _ended_before(announcements, first, gone, views)
    if earlier is not None:
        cause, culprit, text = earlier
        evidence.insert(0, Evidence(EvidenceKind.EVENT, text))
    else:
        odd = _skipped(first, ranks, survivors)
        cause, culprit, reasons = _origin(announcements, first, views, survivors, odd)
        evidence += reasons
    return crashed(cause, first.boottime_ns, culprit, evidence, tuple(alive))


def _is_rank(process: ProcessHistory) -> bool:
    return process.membership is not None and process.membership.role is Role.RANK


def _origin(
    announcements: Announcements,
    first_exit: ProcessExit,
    views: Mapping[Pid, ProcessHistory],
    survivors: Survivors,
    odd: Pid | None,
) -> tuple[Cause, ProcessHistory, list[Evidence]]:
    """Cause, culprit and further evidence of a first failure that no earlier exit explains.

    A rank that is still alive is the culprit if it skipped a collective (`odd`) or if all others waited for it in vain.
    Otherwise the process that failed first is.
    """
    process = views[first_exit.pid]
    if odd is not None and _is_rank(process):
        return Cause.COLLECTIVE_MISMATCH, views[odd], [_apart(odd, survivors.stacks, views)]
    late = _awaited(announcements, first_exit, views)
    if late is not None:
        reason = Evidence(EvidenceKind.PEERS, late.text)
        return Cause.TIMED_OUT, views[late.rank.pid], [reason]
    return cause_of(process, first_exit, announcements), process, []


def _apart(
    odd: Pid, survivors: Mapping[Pid, stacks.Stack], ranks: Mapping[Pid, ProcessHistory]
) -> Evidence:
    names = ", ".join(name(ranks[pid]) for pid in survivors if pid != odd)
    text = f"{name(ranks[odd])} waits in a different collective from {names}"
    return Evidence(EvidenceKind.STACK, text)


def _awaited(
    announcements: Announcements, first_exit: ProcessExit, views: Mapping[Pid, ProcessHistory]
) -> gave_up.Awaited | None:
    """The rank that a failed one had given up waiting for; None if it died of something else, or was served."""
    late = announcements.awaited
    if late is None or first_exit.pid not in late.waiting or late.rank.pid not in views:
        return None
    if cause_of(views[first_exit.pid], first_exit, announcements) not in RAISED:
        return None
    process = views[late.rank.pid]
    was_alive = process.exit is None or process.exit.boottime_ns >= first_exit.boottime_ns
    is_recent = first_exit.boottime_ns - late.at_ns <= GAVE_UP_SEEN_NS
    was_served = any(views[pid].data_ns > late.at_ns for pid in late.waiting if pid in views)
    return late if was_alive and is_recent and not was_served else None


def _first(failures: Sequence[ProcessExit], views: Mapping[Pid, ProcessHistory]) -> ProcessExit:
    # a rank that dies with its loaders is reported, whichever of them was reaped first
    first = failures[0]
    member = views[first.pid].membership
    owner = member.owner if member is not None else None
    # a rank that raises an error because its loader died is a victim; one that was killed with it is not
    return next((failure for failure in failures if failure.pid == owner and failure.signal), first)


def _ended_before(
    announcements: Announcements,
    first_exit: ProcessExit,
    gone: Sequence[ProcessExit],
    views: Mapping[Pid, ProcessHistory],
) -> tuple[Cause, ProcessHistory, str] | None:
    """The rank that ended before another failed because of that, with cause and sentence; None if there is none."""
    left = left_before(gone)
    if left is not None:
        return Cause.LEFT_EARLY, views[left], f"{name(views[left])} exited with code 0 before that"
    killed = [
        process_exit for process_exit in gone if is_by_launcher(process_exit, announcements, views)
    ]
    # a launcher that ends several ranks ends the job, and a rank may notice before its turn
    if len(killed) != 1 or cause_of(views[first_exit.pid], first_exit, announcements) not in RAISED:
        return None
    process = views[killed[0].pid]
    return Cause.KILLED, process, reported(process, killed[0], announcements)


def _skipped(
    first_exit: ProcessExit,
    ranks: Mapping[Pid, ProcessHistory],
    survivors: Survivors,
) -> Pid | None:
    """The survivor that waits in another collective than the rest; None unless two signs agree.

    Its stack differs from all others', which are alike. Or, with only two left that used to send at the same time, it
    is the one that sent after the other: it entered its collective last, and what it sent there killed the receiver.
    """
    if first_exit.signal not in (0, signal.SIGABRT) or len(survivors.stacks) < 2:
        return None
    apart = stacks.groups(survivors.stacks)
    if len(apart) != 2:
        return None
    odd = stacks.minority(apart)
    if len(odd) == 1 or len(survivors.stacks) > 2 or not survivors.sends_alike:
        return odd[0] if len(odd) == 1 else None
    endpoint_index = endpoints.EndpointIndex(ranks.values())
    newest = endpoints.newest_sender({pid: ranks[pid] for pid in survivors.stacks}, endpoint_index)
    return newest[0] if newest is not None else None


def _ended_from_outside(
    announcements: Announcements,
    ranks: Mapping[Pid, ProcessHistory],
    views: Mapping[Pid, ProcessHistory],
) -> bool:
    exits = [process.exit for process in ranks.values() if process.exit is not None]
    return bool(exits) and all(
        process_exit.signal in ENDING_SIGNALS
        and process_exit.pid not in announcements.oom
        # a launcher that was not asked to end ends the others because one died
        and not is_by_launcher(process_exit, announcements, views)
        for process_exit in exits
    )


def cause_of(
    process: ProcessHistory, process_exit: ProcessExit, announcements: Announcements
) -> Cause:
    """Why a rank ended, or why the rank of a loader cannot continue."""
    if process_exit.pid in announcements.oom:
        return Cause.OOM_KILLED
    if process.membership is not None and process.membership.role is Role.LOADER:
        return Cause.LOADER_DIED
    return cause_of_signal(process_exit.signal) if process_exit.signal else Cause.EXITED


def cause_of_signal(number: int) -> Cause:
    """Cause of the end of a rank by this signal, as far as its number shows it."""
    if number == signal.SIGABRT:
        return Cause.ABORTED
    return Cause.SEGFAULT if number in _CRASH_SIGNALS else Cause.KILLED


def reported(
    process: ProcessHistory, process_exit: ProcessExit, announcements: Announcements
) -> str:
    """How a process ended, and which process ended it, as a sentence."""
    if process_exit.signal:
        how = (
            f"{'is dying of' if process.is_dying else 'died by'} {signal_name(process_exit.signal)}"
        )
        sent = announcements.signals.get(process_exit.pid)
        if process_exit.pid in announcements.oom:
            how += ", chosen by the out-of-memory killer"
        elif sent is not None and sent.signal == process_exit.signal and sent.sender_pid:
            own = sent.sender_pid == process_exit.pid
            how += (
                " raised by itself"
                if own
                else f" sent by {sent_by(sent.sender_pid, sent.sender_comm, outside=sent.from_outside)}"
            )
        how += ", and its core was dumped" if process_exit.core_dumped else ""
    else:
        how = f"exited with code {process_exit.exit_code}"
    what = (
        ""
        if process.membership is None or process.membership.role is Role.RANK
        else "a data loader of "
    )
    return f"{what}{name(process)} (pid {process_exit.pid}, {process_exit.comm}) {how}"


def signal_name(number: int) -> str:
    """Name of a signal such as "SIGKILL", or "signal 40" if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _dumps(ranks: Iterable[ProcessHistory]) -> list[Evidence]:
    """Ranks that must not be disturbed for a while: the information in a core cannot be recovered later."""
    return [
        Evidence(
            EvidenceKind.STATE,
            f"{name(process)} is dumping core after {signal_name(process.exit.signal)}, or still frees its memory",
        )
        for process in ranks
        if process.is_dumping and process.exit is not None
    ]


def crashed(
    cause: Cause,
    since_ns: int,
    process: ProcessHistory,
    evidence: list[Evidence],
    victims: tuple[Pid, ...],
) -> Finding:
    """A finding that names a process that ended, or the rank that it belonged to."""
    member = process.membership
    owner = member.owner if member and member.owner is not None else process.pid
    return Finding(
        VerdictKind.CRASHED,
        cause,
        since_ns,
        Culprit(process.rank, owner, process.pid),
        tuple(evidence),
        tuple(pid for pid in victims if pid != owner),
    )
