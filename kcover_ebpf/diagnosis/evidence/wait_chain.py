"""Follows chains of waits, from each rank that waits to the process at the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.history import stacks
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import EFFORT, SOON_S, STOPPED, STUCK, WAITING, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.tunables.diagnosis import LONE_FLOOR_S


def split(
    snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]
) -> tuple[list[RankSnapshot], list[RankSnapshot]]:
    """(ranks that wait for peers, ranks at the end of a chain)."""
    futexes = {
        rank_snapshot.pid: rank_snapshot.stack
        for rank_snapshot in ranks
        if rank_snapshot.state is State.FUTEX and rank_snapshot.stack
    }
    # while ranks are missing, the first to arrive wait elsewhere for them than the last
    comparable = len(ranks) > 1 and not snapshot.starting
    known = {rank_snapshot.pid for rank_snapshot in ranks if rank_snapshot.known_wait}
    odd = set(stacks.outliers(futexes, known)) if comparable else set()
    # several ranks that spin wait busily for a device or for each other; a single one is at the end of a chain
    spinning = [rank_snapshot for rank_snapshot in ranks if rank_snapshot.state is State.SPINNING]
    waits = WAITING | ({State.SPINNING} if len(spinning) > 1 else set())
    asking = any(_asks_peers(rank_snapshot, waits) for rank_snapshot in ranks)
    if comparable and not odd and futexes and asking:
        # a rank that polls is certainly in the collective; one at a futex that no process ever left is not
        odd = futexes.keys() - known
        on_device = sum(rank_snapshot.state is State.ON_DEVICE for rank_snapshot in ranks)
        # either most ranks are in a rare collective; or a rank waits for its device in an evaluation while the others
        # wait for it
        if 2 * len(odd) > len(ranks) or (on_device and len(odd) >= on_device):
            odd = set()
    waiting, sinks = [], []
    for rank in ranks:
        end = follow(snapshot, rank)
        if end.pid == rank.pid and rank.pid not in odd and rank.state in waits:
            waiting.append(rank)
        else:
            sinks.append(rank)
    return waiting, sinks


def _asks_peers(rank: RankSnapshot, waits: Collection[State]) -> bool:
    """True if a rank certainly waits for ranks: a connection that never carried payload may lead anywhere."""
    if rank.state is State.FUTEX or rank.state not in waits:
        return False
    return rank.awaits is None or any(
        socket.payload and socket.remote == rank.awaits for socket in rank.sockets
    )


def follow(snapshot: JobSnapshot, first_rank: RankSnapshot) -> RankSnapshot:
    """The process at the end of the chain of waits for children, pipes and locks; the rank itself if it ends there."""
    seen, last_rank = {first_rank.pid}, first_rank
    while last_rank.state in (State.CHILD, State.LOCK, State.READ):
        ahead = [
            snapshot.processes[pid]
            for pid in last_rank.waits_for
            if pid in snapshot.processes
            and pid not in seen
            and (pid not in snapshot.ranks or last_rank.state is State.LOCK)
        ]
        if not ahead:
            return last_rank
        waited = last_rank.pid
        last_rank = max(ahead, key=lambda rank: (_weight(rank, waited), rank.age_s))
        seen.add(last_rank.pid)
    return last_rank


def _weight(rank: RankSnapshot, waited_by: Pid) -> int:
    # among several children the one that cannot continue explains the wait; an idle child, which waits for work from
    # the very rank that waits, does not
    if rank.state is State.READ and waited_by in rank.waits_for:
        return 3 if rank.writes else 0
    if rank.state in STOPPED:
        return 3
    if rank.state in STUCK:
        return 3
    if rank.state is State.FUTEX:
        return 1 if rank.timed else 2
    return 0 if rank.state in (State.CHILD, State.PEERS, State.ON_DEVICE) else 1


def is_cycle(first_rank: RankSnapshot, end_rank: RankSnapshot) -> bool:
    """True if the process that a rank waits for waits in turn until that rank reads its output: a full pipe.

    False if a side thread of the rank, which may be the one that reads, waits for something that ends.
    """
    awaited = end_rank.pid != first_rank.pid and first_rank.pid in end_rank.waits_for
    return awaited and end_rank.writes and not first_rank.beside


def is_effort(snapshot: JobSnapshot, rank: RankSnapshot) -> bool:
    """True if the end of this chain explains why others wait, and is still given time."""
    end = follow(snapshot, rank)
    if end.state is State.TRACED:
        return True
    policy, silence_s = snapshot.policy, end.age_s
    if end.state in EFFORT or rank.state in EFFORT:
        return min(silence_s, rank.age_s) < policy.quiet_cap_s
    if end.state is State.THROTTLED:
        # one rank without a CPU has its own limit; several mean that the host is overloaded
        ranks = [rank_snapshot.state for rank_snapshot in snapshot.ranks.values()]
        return ranks.count(State.THROTTLED) > 1
    if end.state is State.DUMPING:
        return silence_s < policy.core_dump_patience_s
    if end.state in STOPPED or end.proven or is_cycle(rank, end):
        return False
    helps = end.role in (Role.HELPER, Role.COMPILER) and end.state is not State.SLEEP_LONG
    if end.state in _UNSEEN and not helps:
        return silence_s < min(policy.storage_patience_s, LONE_FLOOR_S)
    if end.state is State.STORAGE or helps:
        return silence_s < policy.storage_patience_s
    return silence_s < SOON_S.get(end.state, 0.0)


def awaits_unseen(snapshot: JobSnapshot, rank: RankSnapshot) -> bool:
    """True if no work for it is observed: at the end of its chain is a service, or a helper."""
    return follow(snapshot, rank).state in _UNSEEN


_UNSEEN = frozenset({State.OUTSIDE, State.HELPED})
"""Waits for something outside of the job, or for a helper: after a minute they are reported as a suspicion."""
