"""Ranks that wait for their devices: the finding if all of them do, and the evidence against the one that does not."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis.evidence import evidence
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import (
    CYCLE_FACTOR,
    CYCLE_FLOOR_S,
    DEVICE_WAIT_OTHERS,
    LONGEST_STEP_S,
)


def elsewhere(
    snapshot: JobSnapshot, rank: RankSnapshot, ranks: Sequence[RankSnapshot]
) -> list[Evidence]:
    """Evidence that all others wait for their devices and this rank does not, once its own wait had time to end.

    It may wait for something outside the job, and then continue. Empty if others do not wait for their devices.
    """
    others = [other for other in ranks if other.pid != rank.pid]
    waiting = [other for other in others if other.state is State.ON_DEVICE]
    if len(waiting) < DEVICE_WAIT_OTHERS or len(waiting) < len(others):
        return []
    found = _network_threads(rank, ranks)
    if rank.age_s < snapshot.policy.storage_patience_s:
        return found
    text = (
        f"{evidence.name(rank)} is elsewhere; all {len(others)} other ranks wait for their devices"
    )
    return [Evidence(EvidenceKind.STACK, text), *found]


def all_wait(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Finding | None:
    """The finding if every rank waits, some or all of them for their devices; None while that may well be a step.

    A healthy job looks the same, so no rank is named unless the network threads show which one has not joined.
    """
    silent_s = min(rank_snapshot.age_s for rank_snapshot in ranks)
    needed_s = max(
        CYCLE_FLOOR_S,
        CYCLE_FACTOR * max(snapshot.threshold_s(rank_snapshot.pid) for rank_snapshot in ranks),
    )
    if silent_s < (needed_s if snapshot.cadence_known else max(LONGEST_STEP_S, needed_s)):
        return None
    on_device = sum(rank_snapshot.state is State.ON_DEVICE for rank_snapshot in ranks)
    text = (
        f"{on_device} of {len(ranks)} ranks wait for their devices, the others for them; "
        f"none has made progress for {silent_s:.1f} s"
    )
    found = [Evidence(EvidenceKind.TIME, text), *evidence.gpus(ranks)]
    since_ns = snapshot.oldest_ns
    victims = tuple(rank_snapshot.pid for rank_snapshot in ranks)
    if not snapshot.cadence_known:
        kind = VerdictKind.UNKNOWN
        return Finding(kind, Cause.DEVICE_WAIT, since_ns, evidence=tuple(found), victims=victims)
    for rank in ranks:
        if idle := _network_threads(rank, ranks):
            kind = VerdictKind.UNKNOWN if _may_come(snapshot, rank, silent_s) else VerdictKind.HUNG
            return blame(snapshot, kind, Cause.NOT_IN_COLLECTIVE, rank, [*idle, *found])
    kind = VerdictKind.HUNG if silent_s >= LONGEST_STEP_S else VerdictKind.UNKNOWN
    return Finding(kind, Cause.DEVICE_WAIT, since_ns, evidence=tuple(found), victims=victims)


def _may_come(snapshot: JobSnapshot, rank: RankSnapshot, silent_s: float) -> bool:
    """True while a rank's activity before its next operation is given more time."""
    if rank.state is State.ON_DEVICE:
        # its own device, as in an evaluation, which may take as long as any other work
        return silent_s < snapshot.policy.quiet_cap_s
    # it polls, and not its peers
    return rank.state is State.NAPPING and silent_s < snapshot.policy.storage_patience_s


def _network_threads(rank: RankSnapshot, ranks: Sequence[RankSnapshot]) -> list[Evidence]:
    """Evidence that NCCL's network thread is idle on this rank alone: it spins wherever an operation was launched.

    Used only for threads that were seen spinning before; ranks of one host may need none. It names a rank and ends no
    job by itself: that the threads behave like this is known from NCCL's source (src/proxy.cc), not measured on a
    GPU.
    """
    busy = {other.pid: other.network_busy for other in ranks}
    others = [busy[other.pid] for other in ranks if other.pid != rank.pid]
    if busy[rank.pid] is not False or len(others) < DEVICE_WAIT_OTHERS or not all(others):
        return []
    text = (
        f"NCCL's network thread is idle on {evidence.name(rank)} and busy on the {len(others)} others: "
        "it has not launched the operation they are in"
    )
    return [Evidence(EvidenceKind.PEERS, text)]
