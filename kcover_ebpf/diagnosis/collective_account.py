"""What a job's collective library knows of it, whoever said so: NCCL's counts, or PyTorch's recordings."""

from __future__ import annotations

from dataclasses import dataclass

from kcover_ebpf.diagnosis.recorders import Comparison, compare
from kcover_ebpf.diagnosis.snapshot import JobSnapshot
from kcover_ebpf.facts.host import CollectiveRank, CollectivesSeen
from kcover_ebpf.facts.recorders import RankRecord, RecordersSeen
from kcover_ebpf.ids import Pid

_SHOWN_UNREAD = 4


@dataclass(frozen=True, slots=True)
class CollectiveAccount:
    """Counts, and sentences of a recording about the same ranks."""

    seen: CollectivesSeen
    texts: tuple[str, ...] = ()
    """What the recordings say; empty where only counts are known."""
    crossed: tuple[str, ...] = ()
    """Where each rank waits, if they wait for each other in a circle of groups."""
    is_recorded: bool = False
    """There are no counts: `seen` is what the recordings say."""
    is_mismatch: bool = False
    """Ranks called different operations."""


def account(picture: JobSnapshot) -> CollectiveAccount | None:
    """Counts before recordings, for they are asked for again and again; None where neither is known.

    Recordings that name the same ranks as the counts add their sentences to them.
    """
    counted = picture.collectives
    recorded = _recorded(picture)
    if counted is None or counted.trouble:
        return recorded or (None if counted is None else CollectiveAccount(counted))
    agree = recorded is not None and bool(_named(counted) & _named(recorded.seen))
    texts = recorded.texts if recorded is not None and agree else ()
    return CollectiveAccount(counted, texts, is_mismatch=bool(counted.sides))


def _named(seen: CollectivesSeen) -> set[Pid | None]:
    return {each.pid for each in (*seen.behind, *seen.odd)} - {None}


def _recorded(picture: JobSnapshot) -> CollectiveAccount | None:
    seen = picture.recorders
    if seen is None or not seen.records or _has_moved(picture, seen):
        return None
    found = compare(seen.records, _world_size(picture))
    said = _seen(found, seen, len(picture.ranks))
    if found.named or found.mismatch or found.joined:
        return CollectiveAccount(said, found.texts, is_recorded=True, is_mismatch=found.mismatch)
    if not found.texts:
        return None
    return CollectiveAccount(said, crossed=found.texts, is_recorded=True)


def _has_moved(picture: JobSnapshot, seen: RecordersSeen) -> bool:
    """True if a rank has done something since it was asked: what it did then is not in its recording."""
    return any(
        picture.standings[pid].since_ns > seen.boottime_ns
        for pid in picture.ranks
        if pid in picture.standings
    )


def _world_size(picture: JobSnapshot) -> int | None:
    members = (view.member for view in picture.ranks.values())
    sizes = {each.world_size for each in members if each is not None} - {None}
    return sizes.pop() if len(sizes) == 1 else None


def _seen(found: Comparison, seen: RecordersSeen, here_count: int) -> CollectivesSeen:
    named = tuple(_rank(each, here_count) for each in found.named)
    return CollectivesSeen(
        seen.boottime_ns,
        seen.boottime_ns,
        answer_count=1,
        behind=() if found.mismatch else named,
        odd=named if found.mismatch else (),
        equal=found.joined,
    )


def _rank(record: RankRecord, size: int) -> CollectiveRank:
    return CollectiveRank(record.rank, size, "", record.pid)


def unread(seen: RecordersSeen | None) -> list[str]:
    """What is not known of recordings that were asked for."""
    if seen is None:
        return []
    texts = [
        f"the flight recorder of rank {each.rank}: {each.reason}"
        for each in seen.unread[:_SHOWN_UNREAD]
    ]
    more = len(seen.unread) - _SHOWN_UNREAD
    return [*texts, f"the flight recorders of {more} more ranks"] if more > 0 else texts
