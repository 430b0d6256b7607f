"""The planned end of a run: most ranks have exited with code 0, and nothing is restarted for the remaining ones."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.diagnosis.evidence import evidence, wait_chain
from kcover_ebpf.diagnosis.evidence.snapshot import Finding, JobSnapshot, blame
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.certainty import RUN_END_S


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
