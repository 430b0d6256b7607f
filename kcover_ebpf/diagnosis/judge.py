"""From the standings of all ranks to one finding: walk from those who wait to the one who does not go on.

The rule: follow the waits to their end. If the rank at the end makes an effort that explains the
wait, the job works; if it cannot go on by itself, it is the culprit; if nobody is at the end, the
waits form a cycle, or the link between them is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis import device_wait, evidence, nccl, stacks, tcp_links, wait_chain
from kcover_ebpf.diagnosis.all_waiting import standstill
from kcover_ebpf.diagnosis.process import NS, Effort
from kcover_ebpf.diagnosis.process_state import EFFORT, HELD, ProcessState, State
from kcover_ebpf.diagnosis.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.diagnosis.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.ids import Pid

_VICTIM_S = 0.4


def judge(picture: JobSnapshot) -> Finding:
    """One finding for the job as it is now; WORKING(training) when nothing is wrong."""
    ranks = [picture.standings[pid] for pid in picture.ranks]
    if picture.whole and ranks and all(each.state in HELD for each in ranks):
        return Finding(VerdictKind.WORKING, Cause.SUSPENDED, min(each.since_ns for each in ranks))
    found = (
        _held_alone(picture, ranks)
        or _lost_link(picture)
        or _closed_window(picture, ranks)
        or _at_the_end_of_the_chain(picture, ranks)
        or Finding(VerdictKind.WORKING, Cause.TRAINING, picture.now_ns)
    )
    return nccl.refine(picture, found, ranks)


def _held_alone(picture: JobSnapshot, ranks: Sequence[ProcessState]) -> Finding | None:
    # a rank that was stopped or frozen while the others were not: its state alone says that nobody
    # goes on; of several the first one
    for each in sorted(ranks, key=lambda each: each.since_ns):
        if each.state not in (State.STOPPED, State.FROZEN):
            continue
        if picture.silence_s(each.pid) < picture.policy.stopped_s:
            continue
        cause = Cause.STOPPED if each.state is State.STOPPED else Cause.FROZEN
        found = [
            Evidence(
                EvidenceKind.STATE,
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
        return blame(VerdictKind.HUNG, cause, each, found, ranks)
    return None


def _lost_link(picture: JobSnapshot) -> Finding | None:
    views = picture.ranks
    edges = tcp_links.lost_edges(views.values(), picture.ends)
    if not edges or any(picture.standings[pid].state is State.MOVING for pid in views):
        return None
    pairs = {frozenset({edge.pid, edge.peer_pid or edge.remote}) for edge in edges}
    if picture.lossy and max(edge.backoff for edge in edges) < tcp_links.LOST_ON_LOSSY_BACKOFF:
        return None
    since_ns = min(edge.since_ns for edge in edges)
    shown = sorted(edges, key=lambda edge: -edge.backoff)[:4]
    found = [Evidence(EvidenceKind.EDGE, edge.text) for edge in shown]
    quiet_s = (picture.now_ns - since_ns) / NS
    found.append(
        Evidence(EvidenceKind.TIME, f"no answer on {len(pairs)} connections for {quiet_s:.1f} s")
    )
    pid = tcp_links.common_end(edges, len(views))
    victims = tuple(other for other in views if other != pid)
    if pid is None:
        return Finding(
            VerdictKind.LOST_LINK, Cause.LINK, since_ns, None, None, None, tuple(found), victims
        )
    common = picture.standings[pid]
    found.append(
        Evidence(EvidenceKind.PEERS, f"every lost connection touches {evidence.name(common)}")
    )
    return Finding(
        VerdictKind.LOST_LINK, Cause.LINK, since_ns, pid, None, common.rank, tuple(found), victims
    )


def _closed_window(picture: JobSnapshot, ranks: Sequence[ProcessState]) -> Finding | None:
    # a rank that does not read what was sent to it, while nobody makes an effort
    closed = tcp_links.closed_reader(picture.ranks, picture.ends)
    if closed is None or any(each.state in EFFORT for each in ranks):
        return None
    if any(wait_chain.is_effort(picture, each) for each in ranks):
        return None
    reader = picture.standings[closed[0]]
    if not evidence.is_inside(reader, wait_chain.follow(picture, reader)):
        # who waits for storage or a service does not read meanwhile
        return None
    if picture.silence_s(reader.pid) < picture.thresholds_s[reader.pid]:
        return None
    text = f"{evidence.name(reader)} is not reading: its peers are waiting to send it {closed[1]} B"
    found = [Evidence(EvidenceKind.EDGE, text), *evidence.time(picture, reader)]
    found += evidence.peers(picture, reader, ranks)
    return blame(VerdictKind.HUNG, Cause.BLOCKED_READ, reader, found, ranks)


def _at_the_end_of_the_chain(picture: JobSnapshot, ranks: Sequence[ProcessState]) -> Finding | None:
    waiting, sinks = wait_chain.split(picture, ranks)
    working = [each for each in sinks if wait_chain.is_effort(picture, each)]
    at_work = {each.pid for each in working}
    stuck = [each for each in sinks if each.pid not in at_work]
    if working:
        return _working(picture, working, waiting)
    if stuck:
        return _stuck(picture, stuck, ranks)
    return standstill(picture, ranks)


def _working(
    picture: JobSnapshot, working: Sequence[ProcessState], waiting: Sequence[ProcessState]
) -> Finding:
    moving = [each for each in working if each.state is State.MOVING]
    if moving or not waiting:
        return Finding(VerdictKind.WORKING, Cause.TRAINING, picture.now_ns)
    first = min(working, key=lambda each: each.since_ns)
    end = wait_chain.follow(picture, first)
    what = f"{end.state.value}: {end.text}, {evidence.ago(picture, end)}"
    text = f"{evidence.name(first)} is {what}; the others wait for it"
    return Finding(
        VerdictKind.WORKING,
        _quiet_cause(first, end),
        first.since_ns,
        None,
        None,
        None,
        (Evidence(EvidenceKind.SINK, text),),
    )


def _quiet_cause(first: ProcessState, end: ProcessState) -> Cause:
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
    picture: JobSnapshot, stuck: Sequence[ProcessState], ranks: Sequence[ProcessState]
) -> Finding | None:
    ends = {each.pid: wait_chain.follow(picture, each) for each in stuck}
    # the earliest one: whoever came later may be waiting for it in a way that was not understood
    first = min(stuck, key=lambda each: each.since_ns)
    end = ends[first.pid]
    others = [each for each in ranks if each.pid != first.pid]
    if end.state is State.TRACED or picture.silence_s(first.pid) < _needed_s(picture, first, end):
        return None
    if any(picture.silence_s(each.pid) < _VICTIM_S for each in others):
        return None
    if end.state in (State.OUTSIDE, State.HELPED):
        return _awaits_outside(picture, first, end, ranks)
    found = _stuck_evidence(picture, first, end, ranks)
    certain = end.proven and end.state is State.STORAGE
    if not certain and (not others or not _is_known(picture, first)):
        return _alone(first, end, found)
    in_storage = sum(last.state is State.STORAGE for last in ends.values())
    if end.state is State.STORAGE and in_storage > 1:
        # many ranks in the same resource: it is the resource, not a rank
        found.append(Evidence(EvidenceKind.PEERS, f"{in_storage} ranks wait for storage"))
        return Finding(
            VerdictKind.HUNG,
            Cause.STORAGE,
            first.since_ns,
            evidence=tuple(found),
            victims=_pids(ranks),
        )
    if end.pid == first.pid and _in_another_collective(first, others):
        return blame(VerdictKind.DEADLOCK, Cause.COLLECTIVE_MISMATCH, first, found, ranks)
    kind = VerdictKind.SLOW if end.state is State.THROTTLED else VerdictKind.HUNG
    return blame(kind, _cause(first, end), first, found, ranks, end)


def _is_known(picture: JobSnapshot, each: ProcessState) -> bool:
    # a program without a number may be anything, unless it has joined others like it
    member = picture.ranks[each.pid].member
    return each.rank is not None or (member is not None and member.joined)


def _needed_s(picture: JobSnapshot, first: ProcessState, end: ProcessState) -> float:
    needed_s = picture.thresholds_s[first.pid]
    if end.state in (State.STOPPED, State.FROZEN):
        # its state says that it does not go on, however long this job's steps last
        return min(needed_s, picture.policy.stopped_s)
    return needed_s


def _alone(first: ProcessState, end: ProcessState, found: Sequence[Evidence]) -> Finding:
    # nobody waits for it and nothing tells what it should be doing: a server sleeps like that all day
    if end.state is State.SLEEP_LONG:
        return Finding(VerdictKind.WORKING, Cause.SLEEPING, first.since_ns)
    return Finding(
        VerdictKind.UNKNOWN,
        _cause(first, end),
        first.since_ns,
        first.pid,
        end.tid,
        first.rank,
        tuple(found),
    )


def _awaits_outside(
    picture: JobSnapshot, first: ProcessState, end: ProcessState, ranks: Sequence[ProcessState]
) -> Finding:
    # nothing that is seen from here says whether the answer will come: told, and never acted upon
    text = f"{evidence.name(first)}: {first.text}, {evidence.ago(picture, first)}"
    if end.pid != first.pid:
        text += f"; it waits for process {end.pid}: {end.text}, {evidence.ago(picture, end)}"
    found = [
        Evidence(EvidenceKind.SINK, f"{text}; {end.state.value}"),
        *evidence.time(picture, first),
        *evidence.peers(picture, first, ranks),
    ]
    return blame(VerdictKind.UNKNOWN, _cause(first, end), first, found, ranks, end)


def _stuck_evidence(
    picture: JobSnapshot, first: ProcessState, end: ProcessState, ranks: Sequence[ProcessState]
) -> list[Evidence]:
    text = f"{evidence.name(first)}: {first.text}, {evidence.ago(picture, first)}"
    found = [Evidence(EvidenceKind.SINK, text)]
    if end.pid != first.pid:
        text = f"it waits for process {end.pid}: {end.text}, {evidence.ago(picture, end)}"
        found.append(Evidence(EvidenceKind.SINK, text))
    found += evidence.endless(first, end)
    found += evidence.time(picture, first) + evidence.peers(picture, first, ranks)
    if evidence.is_inside(first, end):
        found += evidence.unread(picture, first) + evidence.sender(picture, first)
        found += evidence.place(picture, first, ranks)
        found += device_wait.elsewhere(picture, first, ranks)
    elif end.state is State.SPINNING:
        found += evidence.place(picture, end, ranks)
    return found


def _pids(ranks: Sequence[ProcessState]) -> tuple[Pid, ...]:
    return tuple(each.pid for each in ranks)


def _in_another_collective(odd: ProcessState, others: Sequence[ProcessState]) -> bool:
    # it waits in the same library as the others, only elsewhere: they wait for it there, it for
    # them here
    if odd.state is not State.FUTEX or odd.inspection is None:
        return False
    own = stacks.waits_in(odd.inspection.stack)
    theirs = {
        stacks.waits_in(each.inspection.stack)
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
    State.DEVICE: Cause.DRIVER_STUCK,
    State.SPINNING: Cause.SPINNING,
}


def _cause(first: ProcessState, end: ProcessState) -> Cause:
    if first.state is State.LOCK:
        return Cause.BLOCKED_LOCK
    if end.pid != first.pid:
        return Cause.LOADER_STUCK
    if first.state is State.CHILD:
        return Cause.LOADER_STUCK if first.waits_for else Cause.LOADER_DIED
    return _STUCK_CAUSE.get(end.state, Cause.BLOCKED_UNKNOWN)
