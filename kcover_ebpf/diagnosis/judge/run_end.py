"""The planned end of a run: ranks have exited with code 0, and nothing is restarted for the remaining ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcover_ebpf.diagnosis.evidence import evidence, wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Certainty, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.certainty import LEFT_SINCE_S, RUN_END_S


def at_run_end(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> Finding | None:
    """WORKING while the last ranks end; UNKNOWN with the rank that delays the end, after `RUN_END_S` of silence.

    That rank saves, uploads, or hangs at its exit. None before the end of a run.
    """
    left = sum(rank.state is State.LEFT for rank in snapshot.left.values())
    if not ranks or left <= len(ranks):
        return None
    first = max(ranks, key=lambda rank: rank.age_s)
    is_at_work = any(wait_chain.is_effort(snapshot, rank) for rank in ranks)
    if is_at_work or min(rank.age_s for rank in ranks) < RUN_END_S:
        return Finding(VerdictKind.WORKING, Cause.ENDING, snapshot.now_ns)
    text = f"{evidence.name(first)} is left of {left + len(ranks)} ranks: {first.text}, {evidence.ago(first)}"
    found = [
        Evidence(EvidenceKind.SINK, text),
        Evidence(EvidenceKind.PEERS, f"{left} ranks have ended with code 0: nothing is restarted"),
    ]
    return blame(snapshot, VerdictKind.UNKNOWN, Cause.ENDING, first, found)


def left_at_stall(snapshot: JobSnapshot, ranks: Sequence[RankSnapshot]) -> list[RankSnapshot]:
    """The ranks that left at most a step before these ranks stopped: they have not trained on without them."""
    step_s = max((snapshot.threshold_s(rank.pid) for rank in ranks), default=0.0)
    stopped_s = max((rank.age_s for rank in ranks), default=0.0)
    return [
        rank
        for rank in snapshot.left.values()
        if rank.state is not State.DUMPING and rank.age_s <= stopped_s + step_s + LEFT_SINCE_S
    ]


def at_first_exits(
    snapshot: JobSnapshot, finding: Finding, ranks: Sequence[RankSnapshot]
) -> Finding:
    """The finding, or UNKNOWN with its culprit if ranks have just ended well: that may be the end of the run.

    Who is inferred to hang may save or upload, and the others wait for it. That a rank left while the others wait for
    it in a collective is a finding about the exit itself, and stays.
    """
    is_inferred = finding.certainty is Certainty.INFERRED and finding.cause is not Cause.LEFT_EARLY
    left = [rank for rank in left_at_stall(snapshot, ranks) if rank.state is State.LEFT]
    if not is_inferred or not left:
        return finding
    text = f"{len(left)} ranks have just ended with code 0: this may be the end of the run"
    found = (*finding.evidence, Evidence(EvidenceKind.EVENT, text))
    return replace(finding, kind=VerdictKind.UNKNOWN, cause=Cause.ENDING, evidence=found)
