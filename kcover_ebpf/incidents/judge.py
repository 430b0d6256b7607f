"""From the standings of all ranks to one finding: walk from those who wait to the one who does not go on.

The rule: follow the waits to their end. If the rank at the end makes an effort that explains the
wait, the job works; if it cannot go on by itself, it is the culprit; if nobody is at the end, the
waits form a cycle, or the link between them is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.facts import Pid
from kcover_ebpf.incidents import chain, evidence, links, stacks
from kcover_ebpf.incidents.finding import Finding, Picture
from kcover_ebpf.incidents.processes import NS, Effort
from kcover_ebpf.incidents.standing import HELD, Standing, State
from kcover_ebpf.incidents.verdict import Cause, Evidence, EvidenceKind, Kind

_CYCLE_FACTOR = 2.0
_CYCLE_FLOOR_S = 6.0
_VICTIM_S = 0.4


def judge(picture: Picture) -> Finding:
    """One finding for the job as it is now; WORKING(training) when nothing is wrong."""
    ranks = [picture.standings[pid] for pid in picture.ranks]
    if ranks and all(each.state in HELD for each in ranks):
        return Finding(Kind.WORKING, Cause.SUSPENDED, min(each.since_ns for each in ranks))
    return (
        _held_alone(picture, ranks)
        or _lost_link(picture)
        or _at_the_end_of_the_chain(picture, ranks)
        or Finding(Kind.WORKING, Cause.TRAINING, picture.now_ns)
    )


def _held_alone(picture: Picture, ranks: Sequence[Standing]) -> Finding | None:
    # a rank that was stopped or frozen while the others were not: its state alone says that nobody
    # goes on
    for each in ranks:
        if each.state not in (State.STOPPED, State.FROZEN):
            continue
        if picture.silence_s(each.pid) < picture.policy.stopped_s:
            continue
        cause = Cause.STOPPED if each.state is State.STOPPED else Cause.FROZEN
        found = [
            Evidence(
                EvidenceKind.SINK,
                f"{evidence.name(each)} is {each.text}, {evidence.ago(picture, each)}",
            )
        ]
        signal = picture.stop_signals.get(each.pid)
        if signal is not None:
            sender = (
                f"{signal.sender_comm} ({signal.sender_pid})" if signal.sender_pid else "the kernel"
            )
            found.append(
                Evidence(EvidenceKind.EVENT, f"signal {signal.signal} was sent by {sender}")
            )
        found += (
            evidence.unread(picture, each)
            + evidence.time(picture, each)
            + evidence.peers(picture, each, ranks)
        )
        return _finding(Kind.HUNG, cause, each, found, picture, ranks)
    return None


def _lost_link(picture: Picture) -> Finding | None:
    views = picture.ranks
    edges = links.lost_edges(views.values(), picture.ends)
    if not edges or any(picture.standings[pid].state is State.MOVING for pid in views):
        return None
    pairs = {frozenset({edge.pid, edge.peer_pid or edge.remote}) for edge in edges}
    if len(pairs) == 1 and max(edge.backoff for edge in edges) <= links.LOST_BACKOFF:
        return None
    since_ns = min(edge.since_ns for edge in edges)
    shown = sorted(edges, key=lambda edge: -edge.backoff)[:4]
    found = [Evidence(EvidenceKind.EDGE, edge.text) for edge in shown]
    quiet_s = (picture.now_ns - since_ns) / NS
    found.append(
        Evidence(EvidenceKind.TIME, f"no answer on {len(pairs)} connections for {quiet_s:.1f} s")
    )
    pid = links.common_end(edges, len(views))
    victims = tuple(other for other in views if other != pid)
    if pid is None:
        return Finding(
            Kind.LOST_LINK, Cause.LINK, since_ns, None, None, None, tuple(found), victims
        )
    common = picture.standings[pid]
    found.append(
        Evidence(EvidenceKind.PEERS, f"every lost connection touches {evidence.name(common)}")
    )
    return Finding(
        Kind.LOST_LINK, Cause.LINK, since_ns, pid, None, common.rank, tuple(found), victims
    )


def _at_the_end_of_the_chain(picture: Picture, ranks: Sequence[Standing]) -> Finding | None:
    waiting, sinks = chain.split(picture, ranks)
    working = [each for each in sinks if chain.is_effort(picture, each)]
    stuck = [each for each in sinks if each not in working]
    if working:
        return _working(picture, working, waiting)
    if stuck:
        return _stuck(picture, stuck, ranks)
    return _nobody(picture, ranks)


def _working(picture: Picture, working: Sequence[Standing], waiting: Sequence[Standing]) -> Finding:
    moving = [each for each in working if each.state is State.MOVING]
    if moving or not waiting:
        return Finding(Kind.WORKING, Cause.TRAINING, picture.now_ns)
    first = min(working, key=lambda each: each.since_ns)
    end = chain.follow(picture, first)
    text = f"{evidence.name(first)} is {end.state.value}: {end.text}, {evidence.ago(picture, end)}; the others wait for it"
    return Finding(
        Kind.WORKING,
        _quiet_cause(first, end),
        first.since_ns,
        None,
        None,
        None,
        (Evidence(EvidenceKind.SINK, text),),
    )


def _quiet_cause(first: Standing, end: Standing) -> Cause:
    if end.state is State.TRACED:
        return Cause.DEBUGGER
    by_state = {
        State.STORAGE: Cause.CHECKPOINT,
        State.STORING: Cause.CHECKPOINT,
        State.SLEEPING: Cause.SLEEPING,
        State.USER: Cause.WAITING_FOR_USER,
        State.CHILDREN: Cause.LOADING,
    }
    if first.pid != end.pid or first.effort is Effort.CHILDREN:
        return Cause.LOADING
    return by_state.get(end.state, Cause.COMPUTING)


def _stuck(
    picture: Picture, stuck: Sequence[Standing], ranks: Sequence[Standing]
) -> Finding | None:
    ends = [(each, chain.follow(picture, each)) for each in stuck]
    # the earliest one: whoever came later may be waiting for it in a way that was not understood
    first, end = min(ends, key=lambda pair: pair[0].since_ns)
    silent_s = picture.silence_s(first.pid)
    if silent_s < picture.thresholds_s[first.pid]:
        return None
    others = [each for each in ranks if each.pid != first.pid]
    if any(picture.silence_s(each.pid) < _VICTIM_S for each in others):
        return None
    if end.state is State.TRACED:
        return None
    found = [
        Evidence(
            EvidenceKind.SINK,
            f"{evidence.name(first)}: {first.text}, {evidence.ago(picture, first)}",
        )
    ]
    if end.pid != first.pid:
        found.append(
            Evidence(
                EvidenceKind.EDGE,
                f"it waits for process {end.pid}: {end.text}, {evidence.ago(picture, end)}",
            )
        )
    found += (
        evidence.time(picture, first)
        + evidence.peers(picture, first, ranks)
        + evidence.unread(picture, first)
    )
    found += evidence.sender(picture, first) + evidence.odd_stack(picture, first)
    same = [each for each, last in ends if last.state is end.state]
    if end.state is State.STORAGE and len(same) > 1:
        # many ranks in the same resource: it is the resource, not a rank
        text = f"{len(same)} ranks wait for storage"
        found.append(Evidence(EvidenceKind.PEERS, text))
        victims = tuple(each.pid for each in ranks)
        return Finding(
            Kind.HUNG, Cause.STORAGE, first.since_ns, None, None, None, tuple(found), victims
        )
    if end.pid == first.pid and _in_another_collective(first, others):
        return _finding(Kind.DEADLOCK, Cause.COLLECTIVE_MISMATCH, first, found, picture, ranks, end)
    kind = Kind.SLOW if end.state is State.THROTTLED else Kind.HUNG
    return _finding(kind, _cause(first, end), first, found, picture, ranks, end)


def _in_another_collective(odd: Standing, others: Sequence[Standing]) -> bool:
    # it waits in the same library as the others, only elsewhere: they wait for it there, it for them here
    if odd.state is not State.FUTEX or odd.inspection is None:
        return False
    own = stacks.library(odd.inspection.stack)
    theirs = {
        stacks.library(each.inspection.stack)
        for each in others
        if each.state is State.FUTEX and each.inspection is not None
    }
    return own is not None and own in theirs


_STUCK_CAUSE = {
    State.STOPPED: Cause.STOPPED,
    State.FROZEN: Cause.FROZEN,
    State.THROTTLED: Cause.CPU_THROTTLED,
    State.SLEEP_LONG: Cause.BLOCKED_SLEEP,
    State.READ: Cause.BLOCKED_READ,
    State.LOCK: Cause.BLOCKED_LOCK,
    State.FUTEX: Cause.BLOCKED_LOCK,
    State.STORAGE: Cause.STORAGE,
    State.DEVICE: Cause.DEVICE,
    State.SPINNING: Cause.SPINNING,
}


def _cause(first: Standing, end: Standing) -> Cause:
    if end.pid != first.pid:
        return Cause.LOADER_STUCK
    if first.state is State.CHILD:
        return Cause.LOADER_STUCK if first.waits_for else Cause.LOADER_DIED
    return _STUCK_CAUSE.get(end.state, Cause.BLOCKED_UNKNOWN)


def _nobody(picture: Picture, ranks: Sequence[Standing]) -> Finding | None:
    """Everybody waits for peers and nobody is at the end of a chain."""
    if not ranks:
        return None
    silent = {each.pid: picture.silence_s(each.pid) for each in ranks}
    needed = max(picture.thresholds_s[pid] for pid in silent)
    if min(silent.values()) < max(1.0, needed / 2) or max(silent.values()) < needed:
        return None
    since_ns = min(each.since_ns for each in ranks)
    gone = min(picture.left.values(), key=lambda each: each.since_ns, default=None)
    if gone is not None:
        text = f"{evidence.name(gone)} left with exit code 0 while the others still wait for it"
        found = [Evidence(EvidenceKind.EVENT, text), *evidence.time(picture, ranks[0])]
        return _finding(Kind.HUNG, Cause.LEFT_EARLY, gone, found, picture, ranks)
    closed = links.closed_reader(picture.ranks, picture.ends)
    if closed is not None:
        reader = picture.standings[closed[0]]
        text = f"{evidence.name(reader)} does not read: its peers wait to send it {closed[1]} B"
        found = [Evidence(EvidenceKind.EDGE, text), *evidence.time(picture, reader)]
        found += evidence.peers(picture, reader, ranks)
        return _finding(Kind.HUNG, Cause.BLOCKED_READ, reader, found, picture, ranks)
    apart = stacks.groups(
        {
            each.pid: each.inspection.stack
            for each in ranks
            if each.inspection and each.inspection.stack
        }
    )
    lag = links.oldest_sender(picture.ranks)
    if len(apart) > 1 or lag is not None:
        return _mismatch(picture, ranks, apart, lag)
    if min(silent.values()) < max(_CYCLE_FLOOR_S, _CYCLE_FACTOR * needed) or len(ranks) < 2:
        return None
    found = [
        Evidence(EvidenceKind.TIME, f"no rank has moved for {min(silent.values()):.1f} s"),
        Evidence(EvidenceKind.PEERS, "every rank waits for the others and no byte is on its way"),
    ]
    victims = tuple(each.pid for each in ranks)
    return Finding(Kind.HUNG, Cause.WAIT_CYCLE, since_ns, None, None, None, tuple(found), victims)


def _mismatch(
    picture: Picture,
    ranks: Sequence[Standing],
    apart: Sequence[list[Pid]],
    lag: tuple[Pid, float] | None,
) -> Finding:
    by_pid = {each.pid: each for each in ranks}
    odd = stacks.minority(apart)
    quiet_s = min(picture.silence_s(each.pid) for each in ranks)
    found = [Evidence(EvidenceKind.TIME, f"no rank has moved for {quiet_s:.1f} s")]
    culprit: Standing | None = None
    if lag is not None:
        text = f"{evidence.name(by_pid[lag[0]])} sent last {lag[1]:.2f} s before all others"
        found.append(Evidence(EvidenceKind.EDGE, text))
        culprit = by_pid[lag[0]]
    if len(apart) > 1:
        sides = " | ".join(
            ", ".join(evidence.name(by_pid[pid]) for pid in group) for group in apart
        )
        found.append(
            Evidence(EvidenceKind.STACK, f"the ranks wait in {len(apart)} places: {sides}")
        )
        if len(odd) == 1:
            culprit = by_pid[odd[0]]
    found.append(Evidence(EvidenceKind.PEERS, "every rank waits"))
    since_ns = min(each.since_ns for each in ranks)
    if len(apart) > 1:
        cause = Cause.COLLECTIVE_MISMATCH
        kind = Kind.DEADLOCK
    else:
        cause, kind = Cause.BLOCKED_UNKNOWN, Kind.HUNG
    if culprit is None:
        victims = tuple(by_pid)
        return Finding(kind, cause, since_ns, None, None, None, tuple(found), victims)
    return _finding(kind, cause, culprit, found, picture, ranks)


def _finding(
    kind: Kind,
    cause: Cause,
    culprit: Standing,
    found: Sequence[Evidence],
    picture: Picture,
    ranks: Sequence[Standing],
    end: Standing | None = None,
) -> Finding:
    victims = tuple(each.pid for each in ranks if each.pid != culprit.pid)
    tid = (end or culprit).tid
    return Finding(
        kind, cause, culprit.since_ns, culprit.pid, tid, culprit.rank, tuple(found), victims
    )
