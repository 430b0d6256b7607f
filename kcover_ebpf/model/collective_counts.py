"""What the job's own NCCL reports about its collectives: ranks that are behind, failed, or called another operation."""

from __future__ import annotations

from dataclasses import fields

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import CollectiveAnswer, CollectivesSeen
from kcover_ebpf.facts.recorders import RankRecord, UnreadRecorder
from kcover_ebpf.ids import NS


@dataclass(frozen=True, slots=True)
class CollectiveCounts(CollectiveAnswer):
    """The last report of NCCL. If `trouble` is set, nothing else is known.

    A pid is that of the reporting node.
    """

    age_s: float
    """Seconds since NCCL answered."""
    span_s: float = 0.0
    """Seconds from the first of these answers to the last."""
    answers: int = 0
    equal: bool = False
    trouble: str | None = None
    """Why NCCL gave no answer; None if it did."""
    unseen: str | None = None
    """Which part of the counts is unknown although there is an answer; None if all are known."""


def counts_of(seen: CollectivesSeen, now_ns: int) -> CollectiveCounts:
    """The fact as of `now_ns` (CLOCK_BOOTTIME)."""
    return CollectiveCounts(
        age_s=(now_ns - seen.boottime_ns) / NS,
        span_s=(seen.boottime_ns - seen.since_ns) / NS,
        answers=seen.answer_count,
        **{field.name: getattr(seen, field.name) for field in fields(CollectiveAnswer)},
        equal=seen.equal,
        trouble=seen.trouble or None,
        unseen=seen.unseen or None,
    )


@dataclass(frozen=True, slots=True)
class Recordings:
    """Content of the flight recorders of a job's ranks. A pid is that of the reporting node."""

    age_s: float
    """Seconds since the recorders were asked."""
    records: tuple[RankRecord, ...] = ()
    unread: tuple[UnreadRecorder, ...] = ()
