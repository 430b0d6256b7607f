"""From a snapshot of all ranks to one finding: follow the waits to the rank that is stuck.

The rule: follow each wait to its end. If the rank at the end makes an effort that explains the wait, the job works. If
it cannot continue by itself, it is the culprit. If no rank is at the end, the waits form a cycle, or the link between
two ranks is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from kcover_ebpf.diagnosis.evidence import (
    control_group,
    evidence,
    odd_stack,
    tcp_links,
    wait_chain,
    wait_graph,
)
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.diagnosis.history import stacks
from kcover_ebpf.diagnosis.judge import device_wait, lone_worker, nccl
from kcover_ebpf.diagnosis.judge.all_waiting import standstill
from kcover_ebpf.diagnosis.judge.run_end import at_first_exits, at_run_end
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import EFFORT, STOPPED, Effort, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.certainty import SIDES_READ_S, SUSPECT_STOPPED_S
from kcover_ebpf.tunables.diagnosis import INERT_S, VICTIM_S
from kcover_ebpf.tunables.links import LOST_ON_LOSSY_BACKOFF


def judge(snapshot: JobSnapshot) -> Finding:
    """One finding for the job at the time of the snapshot; WORKING(training) when nothing is wrong.

    The rules are tried in this order; the first that applies decides:

    1. All ranks are stopped: the whole job was suspended, which is no fault.
    2. Most ranks have ended well, and the run is at its planned end.
    3. A rank is stopped or frozen alone. Its state proves that it does not continue.
    4. Retransmissions show a lost link, or a full receive window shows a rank that does not read.
    5. Chains of waits end at a rank (`_at_the_end_of_the_chain`), or nowhere (`all_waiting.standstill`).

    The answers of the ranks' own NCCL may then overrule an inferred finding (`nccl.refine`), and an unusual stack may
    explain it. Snapshots are first made comparable: efforts that the rank always makes, or that all ranks make, explain
    no wait.
    """
    seen_snapshot = odd_stack.levelled(snapshot)
    snapshot = control_group.compared(seen_snapshot)
    ranks = list(snapshot.ranks.values())
    if snapshot.whole and ranks and all(rank.state in STOPPED for rank in ranks):
        return Finding(VerdictKind.WORKING, Cause.SUSPENDED, snapshot.oldest_ns)
    finding = (
        at_run_end(snapshot, ranks)
        or _stopped_alone(snapshot, ranks)
        or _lost_link(snapshot)
        or _closed_window(snapshot, ranks)
        or _at_the_end_of_the_chain(snapshot, ranks)
        or Finding(VerdictKind.WORKING, Cause.TRAINING, snapshot.now_ns)
    )
    finding = at_first_exits(snapshot, finding, ranks)
    finding = odd_stack.explained(snapshot, nccl.refine(snapshot, finding, ranks))
    if not ranks or finding.kind is VerdictKind.WORKING:
        return finding
    graph = wait_graph.lines(seen_snapshot, snapshot)
    return replace(finding, silent_since_ns=snapshot.silent_since_ns, graph=graph)


def _stopped_alone(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Finding | None:
    # a rank that was stopped or frozen while others were not: its state alone shows that no rank continues, however
    # long the silence is; of several such ranks, the first
    held = sorted(
        (rank for rank in ranks if rank.state in (State.STOPPED, State.FROZEN)),
        key=lambda rank: -rank.age_s,
    )
    if not held or held[0].age_s < SUSPECT_STOPPED_S:
        return None
    rank = held[0]
    # if all observed ranks are stopped, those elsewhere may be too: the whole job was suspended
    alone = any(other.state not in STOPPED for other in ranks)
    alone = alone or rank.age_s - snapshot.unstopped_age_s >= SUSPECT_STOPPED_S
    stopped_s = snapshot.policy.stopped_s
    is_fault = alone and _settled_s(held, stopped_s) >= stopped_s
    kind = VerdictKind.HUNG if is_fault else VerdictKind.UNKNOWN
    cause = Cause.STOPPED if rank.state is State.STOPPED else Cause.FROZEN
    text = f"{evidence.name(rank)} is {rank.text}, {evidence.ago(rank)}"
    found = [Evidence(EvidenceKind.STATE, text)]
    signal = rank.stop_signal
    if signal is not None and kind is VerdictKind.HUNG:
        sender = evidence.sent_by(signal.sender_pid, signal.sender, outside=signal.from_outside)
        text = f"signal {signal.signal} was sent by {sender}"
        found.append(Evidence(EvidenceKind.EVENT, text))
    found += evidence.unread(snapshot, rank) + evidence.time(rank) + evidence.peers(rank, ranks)
    return blame(snapshot, kind, cause, rank, found)


def _settled_s(held: Sequence[RankSnapshot], stopped_s: float) -> float:
    """Seconds since the last stop of a series that began with the first of these ranks, sorted by age.

    A tool that suspends a job rank by rank stops the next one before the policy's time is over: until then none is
    alone.
    """
    settled_s = held[0].age_s
    for rank in held[1:]:
        if settled_s - rank.age_s > stopped_s:
            break
        settled_s = rank.age_s
    return settled_s


def _lost_link(snapshot: JobSnapshot) -> Finding | None:
    ranks = snapshot.ranks
    edges = tcp_links.lost_edges(ranks.values(), snapshot.ends)
    if not edges or any(rank.state is State.MOVING for rank in ranks.values()):
        return None
    pairs = {frozenset({edge.pid, edge.peer_pid or edge.remote}) for edge in edges}
    if snapshot.lossy and max(edge.backoff for edge in edges) < LOST_ON_LOSSY_BACKOFF:
        return None
    quiet_s = max(edge.age_s for edge in edges)
    since_ns = snapshot.now_ns - round(quiet_s * NS)
    shown = sorted(edges, key=lambda edge: -edge.backoff)[:4]
    found = [Evidence(EvidenceKind.EDGE, edge.text) for edge in shown]
    found.append(
        Evidence(EvidenceKind.TIME, f"no answer on {len(pairs)} connections for {quiet_s:.1f} s")
    )
    pid = tcp_links.common_end(edges, len(ranks))
    if pid is None:
        ends = tcp_links.both_ends(edges)
        culprit = None if ends is None else Culprit(ends[0], or_rank=ends[1])
        victims = tuple(other for other in ranks if ranks[other].rank not in (ends or ()))
        return Finding(VerdictKind.LOST_LINK, Cause.LINK, since_ns, culprit, tuple(found), victims)
    victims = tuple(other for other in ranks if other != pid)
    common = snapshot.processes[pid]
    found.append(
        Evidence(EvidenceKind.PEERS, f"every lost connection touches {evidence.name(common)}")
    )
    culprit = Culprit(common.rank, pid)
    return Finding(VerdictKind.LOST_LINK, Cause.LINK, since_ns, culprit, tuple(found), victims)


def _closed_window(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Finding | None:
    # a rank that does not read what was sent to it, while no rank makes an effort
    closed = tcp_links.closed_reader(snapshot.ranks, snapshot.ends)
    if closed is None or any(rank.state in EFFORT for rank in ranks):
        return None
    if any(wait_chain.is_effort(snapshot, rank) for rank in ranks):
        return None
    reader = snapshot.processes[closed[0]]
    if not evidence.is_inside(reader, wait_chain.follow(snapshot, reader)):
        # a rank that waits for storage or a service does not read meanwhile
        return None
    if reader.age_s < snapshot.threshold_s(reader.pid):
        return None
    text = f"{evidence.name(reader)} is not reading: its peers are waiting to send it {closed[1]} B"
    found = [Evidence(EvidenceKind.EDGE, text), *evidence.time(reader)]
    found += evidence.peers(reader, ranks)
    return blame(snapshot, VerdictKind.HUNG, Cause.BLOCKED_READ, reader, found)


def _at_the_end_of_the_chain(
    snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]
) -> Finding | None:
    waiting, sinks = wait_chain.split(snapshot, ranks)
    working = [sink for sink in sinks if wait_chain.is_effort(snapshot, sink)]
    at_work = {rank.pid for rank in working}
    stuck = [sink for sink in sinks if sink.pid not in at_work]
    certain = [sink for sink in stuck if _is_endless(snapshot, sink)]
    if certain and all(wait_chain.awaits_unseen(snapshot, sink) for sink in working):
        # other ranks may wait for a helper and not for this rank, but that does not explain a wait that cannot end
        return _stuck(snapshot, certain, ranks)
    if working:
        alone = lone_worker.report(snapshot, working, waiting)
        return alone or _working(snapshot, working, waiting)
    if stuck:
        return _stuck(snapshot, stuck, ranks)
    return standstill(snapshot, ranks)


def _is_endless(snapshot: JobSnapshot, rank: RankSnapshot) -> bool:
    end = wait_chain.follow(snapshot, rank)
    return end.proven or bool(evidence.endless(rank, end))


def _working(
    snapshot: JobSnapshot, working: Sequence[RankSnapshot], waiting: Sequence[RankSnapshot]
) -> Finding:
    moving = [rank for rank in working if rank.state is State.MOVING]
    if moving or not waiting:
        return Finding(VerdictKind.WORKING, Cause.TRAINING, snapshot.now_ns)
    first = max(working, key=lambda rank: rank.age_s)
    end = wait_chain.follow(snapshot, first)
    text = f"{evidence.name(first)} is {evidence.doing(end)}; the others wait for it"
    return Finding(
        VerdictKind.WORKING,
        _quiet_cause(first, end),
        snapshot.since_ns(first),
        evidence=(Evidence(EvidenceKind.SINK, text),),
    )


def _quiet_cause(first_rank: RankSnapshot, end_rank: RankSnapshot) -> Cause:
    if end_rank.state is State.TRACED:
        return Cause.DEBUGGER
    by_state = {
        State.STORAGE: Cause.CHECKPOINT,
        State.STORING: Cause.CHECKPOINT,
        State.SLEEPING: Cause.SLEEPING,
        State.USER: Cause.WAITING_FOR_USER,
        State.CHILDREN: Cause.LOADING,
    }
    if first_rank.pid != end_rank.pid or first_rank.effort is Effort.CHILDREN:
        return Cause.LOADING
    return by_state.get(end_rank.state, Cause.COMPUTING)


def _stuck(
    snapshot: JobSnapshot, stuck: Sequence[RankSnapshot], ranks: Sequence[RankSnapshot]
) -> Finding | None:
    ends = {rank.pid: wait_chain.follow(snapshot, rank) for rank in stuck}
    if len(stuck) == len(ranks) and all(end.state is State.SLEEP_LONG for end in ends.values()):
        # a job that is kept alive for later: no rank waits for another
        return Finding(VerdictKind.WORKING, Cause.SLEEPING, snapshot.oldest_ns)
    # the earliest one: a later one may wait for it in a way that was not recognised
    first = max(stuck, key=lambda rank: rank.age_s)
    end = ends[first.pid]
    others = [rank for rank in ranks if rank.pid != first.pid]
    if end.state is State.TRACED or first.age_s < _needed_s(snapshot, first, end):
        return None
    if any(rank.age_s < VICTIM_S for rank in others):
        return None
    if end.state in (State.OUTSIDE, State.HELPED):
        return _awaits_outside(snapshot, first, end, ranks)
    found = _stuck_evidence(snapshot, first, end, ranks)
    certain = end.proven and end.state is State.STORAGE
    # a program without a number may be anything, unless it has joined others like it
    unknown = first.rank is None and not first.joined
    if not certain and (not others or unknown):
        return _alone(snapshot, first, end, found)
    in_storage = sum(last.state is State.STORAGE for last in ends.values())
    if end.state is State.STORAGE and in_storage > 1:
        return _in_storage(snapshot, first, ranks, found, in_storage)
    if end.pid == first.pid and _in_another_collective(first, others):
        return blame(snapshot, VerdictKind.DEADLOCK, Cause.COLLECTIVE_MISMATCH, first, found)
    kind = VerdictKind.SLOW if end.state is State.THROTTLED else VerdictKind.HUNG
    # of two ranks, the owner of a lock is named, and not the one that waits for it
    culprit = end if first.state is State.LOCK and end.pid in snapshot.ranks else first
    blamed = blame(snapshot, kind, _cause(first, end), culprit, found, end)
    # storage, a driver or a page may still answer, work may end, and anything may end a wait of unknown kind: none of
    # them is known to be stuck
    is_own = evidence.is_inside(first, end) or end.state is State.SPINNING
    is_own = is_own or wait_chain.is_cycle(first, end)
    return replace(blamed, doubtful=not is_own)


def _in_storage(
    snapshot: JobSnapshot,
    first_rank: RankSnapshot,
    ranks: Sequence[RankSnapshot],
    found: Sequence[Evidence],
    count: int,
) -> Finding:
    # many ranks in the same resource: it is the resource, not a rank
    said = *found, Evidence(EvidenceKind.PEERS, f"{count} ranks wait for storage")
    since_ns, victims = snapshot.since_ns(first_rank), _pids(ranks)
    return Finding(VerdictKind.HUNG, Cause.STORAGE, since_ns, evidence=said, victims=victims)


def _needed_s(snapshot: JobSnapshot, first_rank: RankSnapshot, end_rank: RankSnapshot) -> float:
    needed_s = snapshot.stalls_s.get(first_rank.pid, inf)
    if min(rank.age_s for rank in snapshot.ranks.values()) < needed_s:
        needed_s = snapshot.threshold_s(first_rank.pid)
    if end_rank.state in (State.STOPPED, State.FROZEN):
        # its state shows that it does not continue, whatever this job's step time
        return snapshot.policy.stopped_s
    if end_rank.state is State.FUTEX and not end_rank.sides_read:
        # it waits for another thread, and what its threads wait for is not known yet
        return needed_s + SIDES_READ_S
    if end_rank.state is State.SPINNING and end_rank.pid != first_rank.pid:
        # a child's work for a rank may be a small loop that ends
        return max(needed_s, INERT_S)
    return needed_s


def _alone(
    snapshot: JobSnapshot,
    first_rank: RankSnapshot,
    end_rank: RankSnapshot,
    found: Sequence[Evidence],
) -> Finding:
    # no rank waits for it, and nothing shows what it should be doing: a server sleeps like this all day
    if end_rank.state is State.SLEEP_LONG:
        return Finding(VerdictKind.WORKING, Cause.SLEEPING, snapshot.since_ns(first_rank))
    return Finding(
        VerdictKind.UNKNOWN,
        _cause(first_rank, end_rank),
        snapshot.since_ns(first_rank),
        Culprit(first_rank.rank, first_rank.pid, end_rank.tid),
        tuple(found),
    )


def _awaits_outside(
    snapshot: JobSnapshot,
    first_rank: RankSnapshot,
    end_rank: RankSnapshot,
    ranks: Sequence[RankSnapshot],
) -> Finding:
    # nothing observed here shows whether the answer will come: reported, and never acted upon
    text = f"{evidence.name(first_rank)}: {first_rank.text}, {evidence.ago(first_rank)}"
    if end_rank.pid != first_rank.pid:
        text += f"; it waits for process {end_rank.pid}: {end_rank.text}, {evidence.ago(end_rank)}"
    found = [
        Evidence(EvidenceKind.SINK, f"{text}; {end_rank.state.text}"),
        *evidence.time(first_rank),
        *evidence.peers(first_rank, ranks),
        *evidence.gpus(ranks, first_rank),
    ]
    return blame(
        snapshot, VerdictKind.UNKNOWN, _cause(first_rank, end_rank), first_rank, found, end_rank
    )


def _stuck_evidence(
    snapshot: JobSnapshot,
    first_rank: RankSnapshot,
    end_rank: RankSnapshot,
    ranks: Sequence[RankSnapshot],
) -> list[Evidence]:
    text = f"{evidence.name(first_rank)}: {first_rank.text}, {evidence.ago(first_rank)}"
    found = [Evidence(EvidenceKind.SINK, text)]
    if end_rank.pid != first_rank.pid:
        text = f"it waits for process {end_rank.pid}: {end_rank.text}, {evidence.ago(end_rank)}"
        found.append(Evidence(EvidenceKind.SINK, text))
    if wait_chain.is_cycle(first_rank, end_rank):
        text = f"process {end_rank.pid} writes to {evidence.name(first_rank)}, which does not read"
        found.append(Evidence(EvidenceKind.EDGE, text))
    found += evidence.endless(first_rank, end_rank)
    found += evidence.time(first_rank) + evidence.peers(first_rank, ranks)
    if evidence.is_inside(first_rank, end_rank):
        found += evidence.unread(snapshot, first_rank) + evidence.sender(snapshot, first_rank)
        found += evidence.place(snapshot, first_rank, ranks)
        found += device_wait.elsewhere(snapshot, first_rank, ranks)
    elif end_rank.state is State.SPINNING:
        found += evidence.place(snapshot, end_rank, ranks)
    return found + evidence.gpus(ranks, first_rank)


def _pids(ranks: Sequence[RankSnapshot]) -> tuple[Pid, ...]:
    return tuple(rank.pid for rank in ranks)


def _in_another_collective(odd_rank: RankSnapshot, others: Sequence[RankSnapshot]) -> bool:
    # it waits in the same library as the others but at another place: each side waits for the other
    if odd_rank.state is not State.FUTEX:
        return False
    own = stacks.waits_in(odd_rank.stack)
    theirs = {
        stacks.waits_in(rank.stack)
        for rank in others
        if rank.state is State.FUTEX and rank.thread_read
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


def _cause(first_rank: RankSnapshot, end_rank: RankSnapshot) -> Cause:
    if end_rank.state is State.THROTTLED:
        # whatever its wait: it runs again in the next period
        return Cause.CPU_THROTTLED
    if first_rank.state is State.LOCK:
        return Cause.BLOCKED_LOCK
    if end_rank.proven and end_rank.state is State.STORAGE:
        return Cause.STORAGE
    if end_rank.pid != first_rank.pid:
        return Cause.LOADER_STUCK
    if first_rank.state is State.CHILD:
        return Cause.LOADER_STUCK
    return _STUCK_CAUSE.get(end_rank.state, Cause.BLOCKED_UNKNOWN)
