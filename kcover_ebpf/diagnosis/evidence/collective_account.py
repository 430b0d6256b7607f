"""Knowledge of a job's collective library, from either source: NCCL's counts, or PyTorch's recordings."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis.evidence.recorders import RecorderComparison, compare
from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.facts.host import CollectiveRank
from kcover_ebpf.facts.recorders import RecordersSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts, Recordings

_SHOWN_UNREAD = 4


@dataclass(frozen=True, slots=True)
class CollectiveAccount:
    """Counts, and sentences of recordings about the same ranks."""

    counts: CollectiveCounts
    texts: tuple[str, ...] = ()
    """Sentences of the recordings; empty if only counts are known."""
    crossed: tuple[str, ...] = ()
    """Where each rank waits, if they wait for each other in a circle of groups."""
    is_recorded: bool = False
    """There are no counts: `counts` was derived from the recordings."""
    is_mismatch: bool = False
    """True if ranks called different operations."""


def account(snapshot: JobSnapshot) -> CollectiveAccount | None:
    """Counts if there are any, because they are updated; else recordings; None if neither is known.

    Recordings that name the same ranks as the counts add their sentences to them.
    """
    counted = snapshot.collectives
    recorded = _recorded(snapshot)
    if counted is None or counted.trouble:
        return recorded or (None if counted is None else CollectiveAccount(counted))
    agree = recorded is not None and bool(_named(counted) & _named(recorded.counts))
    texts = recorded.texts if recorded is not None and agree else ()
    return CollectiveAccount(counted, texts, is_mismatch=bool(counted.sides))


def _named(counts: CollectiveCounts) -> set[Pid | None]:
    return {rank.pid for rank in (*counts.behind, *counts.odd)} - {None}


def _recorded(snapshot: JobSnapshot) -> CollectiveAccount | None:
    recordings = snapshot.recordings
    # a recording does not contain what a rank did after the request
    if recordings is None or any(rank.age_s < recordings.age_s for rank in snapshot.ranks.values()):
        return None
    comparison = compare(recordings.records, _world_size(snapshot))
    counts = _counts(comparison, recordings, len(snapshot.ranks))
    if comparison.named or comparison.mismatch or comparison.joined:
        return CollectiveAccount(
            counts, comparison.texts, is_recorded=True, is_mismatch=comparison.mismatch
        )
    if not comparison.texts:
        return None
    return CollectiveAccount(counts, crossed=comparison.texts, is_recorded=True)


def _world_size(snapshot: JobSnapshot) -> int | None:
    sizes = {rank.world_size for rank in snapshot.ranks.values()} - {None}
    return sizes.pop() if len(sizes) == 1 else None


def _counts(
    comparison: RecorderComparison, recordings: Recordings, here_count: int
) -> CollectiveCounts:
    named = tuple(
        CollectiveRank(record.rank, here_count, "", record.pid) for record in comparison.named
    )
    return CollectiveCounts(
        recordings.age_s,
        answers=1,
        behind=() if comparison.mismatch else named,
        odd=named if comparison.mismatch else (),
        equal=comparison.joined,
    )


def unread(seen: RecordersSeen | None) -> list[str]:
    """Recordings that were requested and could not be read, each with the reason."""
    if seen is None:
        return []
    texts = [
        f"the flight recorder of rank {recorder.rank}: {recorder.reason}"
        for recorder in seen.unread[:_SHOWN_UNREAD]
    ]
    more = len(seen.unread) - _SHOWN_UNREAD
    return [*texts, f"the flight recorders of {more} more ranks"] if more > 0 else texts
