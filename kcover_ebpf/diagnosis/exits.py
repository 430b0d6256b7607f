"""Faults that the kernel announces: exits, signals, out of memory. They need no waiting and no learning.

Who died first is not always who is to blame: a rank that left with code 0, that its own launcher killed, that skipped a
collective, or that all others waited for in vain makes an innocent peer fail. Those are distinguished here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence

from kcover_ebpf.diagnosis import endpoints, gave_up, stacks
from kcover_ebpf.diagnosis.announcements import (
    ENDING_SIGNALS,
    Announcements,
    gone_before,
    is_by_launcher,
    left_before,
)
from kcover_ebpf.diagnosis.evidence import name
from kcover_ebpf.diagnosis.process import ProcessHistory
from kcover_ebpf.diagnosis.rank_numbers import restarts_left
from kcover_ebpf.diagnosis.roles import Role
from kcover_ebpf.diagnosis.snapshot import Finding
from kcover_ebpf.diagnosis.verdict import (
    RAISED,
    Cause,
    Culprit,
    Evidence,
    EvidenceKind,
    VerdictKind,
)
from kcover_ebpf.facts.kernel import ProcessExit
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.diagnosis import GAVE_UP_SEEN_NS

_CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def judge_failure(
    announced: Announcements,
    views: Mapping[Pid, ProcessHistory],
    survivor_stacks: Mapping[Pid, stacks.Stack],
    longest_s: float,
    launcher: ProcessHistory | None = None,
    *,
    whole: bool = True,
) -> Finding | None:
    """The finding for the first failure; None if there is none, or if the whole job was ended.

    `longest_s`: the longest step so far. `launcher`: of the one that failed first, if it lives. `whole`: all ranks are
    among `views`; else nothing shows that the whole job was ended.
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
    evidence = [Evidence(EvidenceKind.EVENT, reported(view, first, announced))]
    evidence += _dumps(ranks.values())
    evidence += _restarts(view, launcher)
    gone = gone_before(first, ranks, longest_s)
    earlier = _ended_before(announced, first, gone, views)
    if earlier is not None:
        cause, there, text = earlier
        evidence.insert(0, Evidence(EvidenceKind.EVENT, text))
        return crashed(cause, first.boottime_ns, there, evidence, victims)
    odd = _skipped(first, ranks, survivor_stacks)
    if odd is not None and view.member is not None and view.member.role is Role.RANK:
        other = [pid for pid in survivor_stacks if pid != odd]
        names = ", ".join(name(ranks[pid]) for pid in other)
        text = f"{name(ranks[odd])} waits in a different collective from {names}"
        evidence.append(Evidence(EvidenceKind.STACK, text))
        return crashed(Cause.COLLECTIVE_MISMATCH, first.boottime_ns, ranks[odd], evidence, victims)
    late = _awaited(announced, first, views)
    if late is not None:
        evidence.append(Evidence(EvidenceKind.PEERS, late.text))
        there = views[late.rank.pid]
        return crashed(Cause.TIMED_OUT, first.boottime_ns, there, evidence, victims)
    return crashed(cause_of(view, first, announced), first.boottime_ns, view, evidence, victims)


def _awaited(
    announced: Announcements, first: ProcessExit, views: Mapping[Pid, ProcessHistory]
) -> gave_up.Awaited | None:
    """The rank for whose sake another gave up; None where that one died of something else, or was served at last."""
    late = announced.awaited
    if late is None or first.pid not in late.waiting or late.rank.pid not in views:
        return None
    if cause_of(views[first.pid], first, announced) not in RAISED:
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


def _ended_before(
    announced: Announcements,
    first: ProcessExit,
    gone: Sequence[ProcessExit],
    views: Mapping[Pid, ProcessHistory],
) -> tuple[Cause, ProcessHistory, str] | None:
    """The rank that ended before another failed for lack of it, how, and the sentence that says so."""
    left = left_before(gone)
    if left is not None:
        return Cause.LEFT_EARLY, views[left], f"{name(views[left])} exited with code 0 before that"
    killed = [each for each in gone if is_by_launcher(each, announced, views)]
    # a launcher that ends several ends the job, and some rank notices before its turn
    if len(killed) != 1 or cause_of(views[first.pid], first, announced) not in RAISED:
        return None
    view = views[killed[0].pid]
    return Cause.KILLED, view, reported(view, killed[0], announced)


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
        each.signal in ENDING_SIGNALS and each.pid not in announced.oom for each in exits
    )


def cause_of(view: ProcessHistory, leaving: ProcessExit, announced: Announcements) -> Cause:
    """Why a rank ended, or the rank of a loader cannot continue."""
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


def reported(view: ProcessHistory, leaving: ProcessExit, announced: Announcements) -> str:
    """How a process ended, and who ended it, as a sentence."""
    if leaving.signal:
        how = f"{'is dying of' if view.is_dying else 'died by'} {signal_name(leaving.signal)}"
        sent = announced.signals.get(leaving.pid)
        if leaving.pid in announced.oom:
            how += ", chosen by the out-of-memory killer"
        elif sent is not None and sent.signal == leaving.signal and sent.sender_pid:
            own = sent.sender_pid == leaving.pid
            how += (
                " raised by itself" if own else f" sent by {sent.sender_comm} ({sent.sender_pid})"
            )
        how += ", and its core was dumped" if leaving.core_dumped else ""
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


def _dumps(ranks: Iterable[ProcessHistory]) -> list[Evidence]:
    """Who is to be left alone for a while: what a core is needed for cannot be found out later."""
    return [
        Evidence(
            EvidenceKind.STATE,
            f"{name(view)} is dumping core after {signal_name(view.exit.signal)}, or still frees its memory",
        )
        for view in ranks
        if view.is_dumping and view.exit is not None
    ]


def _restarts(view: ProcessHistory, launcher: ProcessHistory | None) -> list[Evidence]:
    """That its launcher is about to start the ranks again, as torchrun does with `--max-restarts`."""
    left = 0 if view.seen is None else restarts_left(view.seen.rank_environ)
    if launcher is None or left <= 0:
        return []
    text = f"{launcher.comm} ({launcher.pid}) starts failed ranks again, {left} more time(s)"
    return [Evidence(EvidenceKind.SINK, text)]


def crashed(
    cause: Cause,
    since_ns: int,
    view: ProcessHistory,
    evidence: list[Evidence],
    victims: tuple[Pid, ...],
) -> Finding:
    """A finding that names a process that ended, or the rank that it belonged to."""
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
