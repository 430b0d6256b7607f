"""One rank works and all others wait for it, longer than the job was ever silent: reported, never acted on.

The computation, the waits and their length are readings of one clock. An evaluation, a checkpoint that is assembled in
memory and an endless loop look the same, so the finding names the rank and is no fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis.evidence import evidence, wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import CYCLE_FACTOR, INERT_S, LONE_FLOOR_S

_ADVICE = (
    "not known: whether that ends (an evaluation, a checkpoint in memory and an endless loop look alike); "
    "kcover-ebpf trace shows whether its stack advances"
)


def report(
    snapshot: JobSnapshot, working: Sequence[RankSnapshot], waiting: Sequence[RankSnapshot]
) -> Finding | None:
    """UNKNOWN with the rank that computes; None if other ranks may be working, or if it has not lasted long enough.

    `waiting`: ranks that wait for others or for their devices.
    """
    first, ranks = working[0], snapshot.ranks
    if snapshot.starting or not snapshot.all_seen or len(working) != 1:
        return None
    if not waiting or len(waiting) + 1 < len(ranks):
        return None
    if first.state is not State.COMPUTING:
        return _is_awaited(snapshot, first, waiting)
    inert_s = first.inert_s or 0.0
    if not snapshot.cadence_known and inert_s < INERT_S:
        return None
    waited_s = min(rank.age_s for rank in waiting)
    floor_s = INERT_S if inert_s >= INERT_S else LONE_FLOOR_S
    if min(waited_s, first.age_s) < _named_after_s(snapshot, floor_s):
        return None
    what = f"{evidence.name(first)} computes ({first.text}) while all {len(waiting)} other ranks wait for it"
    threshold_s = _threshold_s(snapshot)
    lasts = f"that lasts for {waited_s:.1f} s, and a silence of {threshold_s:.1f} s is a stall of this job"
    found = [
        Evidence(EvidenceKind.SINK, f"{what}; {_ADVICE}"),
        Evidence(EvidenceKind.TIME, lasts),
        *_inert(first),
        *evidence.peers(first, list(ranks.values())),
        *evidence.gpus(list(ranks.values()), first),
    ]
    return blame(snapshot, VerdictKind.UNKNOWN, Cause.COMPUTING, first, found)


def _named_after_s(snapshot: JobSnapshot, floor_s: float) -> float:
    return max(floor_s, CYCLE_FACTOR * _threshold_s(snapshot))


def _threshold_s(snapshot: JobSnapshot) -> float:
    return max(snapshot.threshold_s(pid) for pid in snapshot.ranks)


def _is_awaited(
    snapshot: JobSnapshot, first_rank: RankSnapshot, waiting: Sequence[RankSnapshot]
) -> Finding | None:
    """UNKNOWN once all others have waited for longer than this rank's activity is given.

    Each nap, and each call of a loop that fails and retries, is as short as ever: only the waiting ranks show that it
    comes to no end. The loop may be that of a child for which the rank waits.
    """
    waited_s = min(rank.age_s for rank in waiting)
    end = wait_chain.follow(snapshot, first_rank)
    if waited_s < _believed_s(snapshot, first_rank, end):
        return None
    text = (
        f"{evidence.name(first_rank)} is {first_rank.state.text} ({first_rank.text}) "
        f"while all {len(waiting)} other ranks wait for it"
    )
    if end.pid != first_rank.pid:
        text += f"; it waits for process {end.pid}: {evidence.doing(end)}"
    if end.retries:
        text += (
            "; it sleeps again and again, and what it reads and writes in between is no progress"
        )
    found = [
        Evidence(EvidenceKind.SINK, text),
        Evidence(EvidenceKind.TIME, f"that lasts for {waited_s:.1f} s"),
    ]
    cause = _CAUSES.get(first_rank.state, Cause.SLEEPING)
    return blame(snapshot, VerdictKind.UNKNOWN, cause, first_rank, found)


def _believed_s(snapshot: JobSnapshot, first_rank: RankSnapshot, end_rank: RankSnapshot) -> float:
    policy = snapshot.policy
    if end_rank.retries:
        # what it polls is not observed, as with a service that is asked once
        return min(policy.storage_patience_s, _named_after_s(snapshot, LONE_FLOOR_S))
    is_short = first_rank.state in (State.SLEEPING, State.MOVING)
    return policy.storage_patience_s if is_short else policy.quiet_cap_s


_CAUSES = {State.STORING: Cause.CHECKPOINT, State.CHILDREN: Cause.LOADING}


def _inert(first_rank: RankSnapshot) -> list[Evidence]:
    if first_rank.inert_s is None or first_rank.inert_s < INERT_S:
        return []
    text = (
        f"for {first_rank.inert_s:.0f} s it has not slept, read, written, used new memory or its device, "
        "or begun a thread or process: one computation, or a loop without an end"
    )
    return [Evidence(EvidenceKind.SINK, text)]
