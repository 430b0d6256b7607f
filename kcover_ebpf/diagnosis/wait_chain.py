"""The walk: from everyone who waits to the process at the end of the chain."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis import stacks
from kcover_ebpf.diagnosis.process_state import (
    EFFORT,
    SOON_S,
    STOPPED,
    STUCK,
    WAITING,
    State,
)
from kcover_ebpf.diagnosis.rank_snapshot import RankSnapshot
from kcover_ebpf.diagnosis.roles import Role
from kcover_ebpf.diagnosis.snapshot import JobSnapshot
from kcover_ebpf.ids import Pid


def split(
    snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]
) -> tuple[list[RankSnapshot], list[RankSnapshot]]:
    """(those who wait for peers, those at the end of a chain)."""
    futexes = {each.pid: each.stack for each in ranks if each.state is State.FUTEX and each.stack}
    # while ranks are missing, who came first waits for them elsewhere than who came last
    comparable = len(ranks) > 1 and not snapshot.starting
    known = {each.pid for each in ranks if each.known_wait}
    odd = set(stacks.outliers(futexes, known)) if comparable else set()
    # several ranks that spin wait busily for a device or for each other; a single one is at the end
    # of a chain
    spinning = [each for each in ranks if each.state is State.SPINNING]
    waits = WAITING | ({State.SPINNING} if len(spinning) > 1 else set())
    asking = any(each.state in waits - {State.FUTEX} for each in ranks)
    if comparable and not odd and futexes and asking:
        # a busy waiter is in the collective for certain; a futex that no process ever left is not
        odd = futexes.keys() - known
        on_device = sum(each.state is State.ON_DEVICE for each in ranks)
        if on_device and len(odd) >= on_device:
            # one rank that waits for its device while the others wait for it, as in an evaluation on rank 0
            odd = set()
    waiting, sinks = [], []
    for each in ranks:
        end = follow(snapshot, each)
        if end.pid == each.pid and each.pid not in odd and each.state in waits:
            waiting.append(each)
        else:
            sinks.append(each)
    return waiting, sinks


def follow(snapshot: JobSnapshot, start: RankSnapshot) -> RankSnapshot:
    """The process at the end of the chain of waits for children, pipes and locks; itself if it ends there."""
    seen, here = {start.pid}, start
    while here.state in (State.CHILD, State.LOCK, State.READ):
        ahead = [
            snapshot.processes[pid]
            for pid in here.waits_for
            if pid in snapshot.processes and pid not in seen and pid not in snapshot.ranks
        ]
        ahead += [
            snapshot.processes[pid]
            for pid in here.waits_for
            if pid in snapshot.ranks and pid not in seen and here.state is State.LOCK
        ]
        if not ahead:
            return here
        waited = here.pid
        here = max(ahead, key=lambda each: (_weight(each, waited), each.age_s))
        seen.add(here.pid)
    return here


def _weight(process: RankSnapshot, waited_by: Pid) -> int:
    # among several children the one that cannot continue explains the wait; an idle one, which waits for
    # work from the very rank that waits, does not
    if process.state is State.READ and waited_by in process.waits_for:
        return 0
    if process.state in STOPPED:
        return 3
    if process.state in STUCK:
        return 3
    if process.state is State.FUTEX:
        return 1 if process.timed else 2
    return 0 if process.state in (State.CHILD, State.PEERS, State.ON_DEVICE) else 1


def is_effort(snapshot: JobSnapshot, each: RankSnapshot) -> bool:
    """True if what is at the end of this chain explains why others wait, and is still believed."""
    end = follow(snapshot, each)
    if end.state is State.TRACED:
        return True
    policy, silence_s = snapshot.policy, end.age_s
    if end.state in EFFORT or each.state in EFFORT:
        return min(silence_s, each.age_s) < policy.quiet_cap_s
    if end.state is State.THROTTLED:
        # one rank without a CPU has its own limit; several mean that the host is overloaded
        ranks = [other.state for other in snapshot.ranks.values()]
        return ranks.count(State.THROTTLED) > 1
    if end.state in STOPPED or end.proven:
        return False
    helps = end.role in (Role.HELPER, Role.COMPILER) and end.state is not State.SLEEP_LONG
    if end.state in _PATIENCE or helps:
        return silence_s < policy.storage_patience_s
    return silence_s < SOON_S.get(end.state, 0.0)


_PATIENCE = frozenset({State.STORAGE, State.OUTSIDE, State.HELPED})
