"""One rank computes and every other rank waits for it, longer than the job ever was silent: reported, never acted on.

That it computes, that all wait, and for how long, are readings of one clock. An evaluation, a checkpoint that is put
together in memory and a loop without end show the same, so the finding names the rank and is no fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis.evidence import evidence
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.diagnosis import INERT_S, LONE_FACTOR, LONE_FLOOR_S

_ADVICE = (
    "not known: whether that ends (an evaluation, a checkpoint in memory and an endless loop look alike); "
    "kcover-ebpf trace shows whether its stack advances"
)


def report(
    snapshot: JobSnapshot, working: Sequence[RankSnapshot], waiting: Sequence[RankSnapshot]
) -> Finding | None:
    """UNKNOWN with the rank that computes; None while other ranks may be at work, or it has not lasted long enough.

    `waiting`: ranks that wait for others or for their devices.
    """
    if len(working) != 1 or working[0].state is not State.COMPUTING:
        return None
    if snapshot.starting or not snapshot.all_seen:
        return None
    first, ranks = working[0], snapshot.ranks
    inert_s = first.inert_s or 0.0
    if not snapshot.cadence_known and inert_s < INERT_S:
        return None
    if not waiting or len(waiting) + 1 < len(ranks):
        return None
    waited_s = min(rank.age_s for rank in waiting)
    threshold_s = max(snapshot.threshold_s(pid) for pid in ranks)
    floor_s = INERT_S if inert_s >= INERT_S else LONE_FLOOR_S
    if min(waited_s, first.age_s) < max(floor_s, LONE_FACTOR * threshold_s):
        return None
    what = f"{evidence.name(first)} computes ({first.text}) while all {len(waiting)} other ranks wait for it"
    lasts = f"that lasts for {waited_s:.1f} s, and a silence of {threshold_s:.1f} s is a stall of this job"
    found = [
        Evidence(EvidenceKind.SINK, f"{what}; {_ADVICE}"),
        Evidence(EvidenceKind.TIME, lasts),
        *_inert(first),
        *evidence.peers(first, list(ranks.values())),
        *evidence.gpus(list(ranks.values()), first),
    ]
    return blame(snapshot, VerdictKind.UNKNOWN, Cause.COMPUTING, first, found)


def _inert(first_rank: RankSnapshot) -> list[Evidence]:
    if first_rank.inert_s is None or first_rank.inert_s < INERT_S:
        return []
    text = (
        f"for {first_rank.inert_s:.0f} s it has not slept, read, written, waited for a page or begun a thread: "
        "one computation, or a loop without an end"
    )
    return [Evidence(EvidenceKind.SINK, text)]
