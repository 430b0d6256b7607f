"""What the job's own NCCL says of its collectives: which ranks are behind, failed, or called something else."""

from __future__ import annotations

from dataclasses import fields

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import CollectiveAnswer, CollectivesSeen
from kcover_ebpf.facts.recorders import RankRecord, UnreadRecorder
from kcover_ebpf.ids import NS


@dataclass(frozen=True, slots=True)
class CollectiveCounts(CollectiveAnswer):
    """The last report of NCCL; as long as `trouble` is set nothing else is known.

    A pid is that of the reporting node.
    """

    age_s: float
    """Since it was said."""
    span_s: float = 0.0
    """From the first of these answers to the last."""
    answers: int = 0
    equal: bool = False
    trouble: str | None = None
    """Why there is no answer."""
    unseen: str | None = None
    """What of the counts is not known although there is an answer."""


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
    """What the flight recorders of a job's ranks hold. A pid is that of the reporting node."""

    age_s: float
    """Since they were asked."""
    records: tuple[RankRecord, ...] = ()
    unread: tuple[UnreadRecorder, ...] = ()
