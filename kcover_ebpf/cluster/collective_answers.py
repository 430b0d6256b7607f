"""What the NCCL of several nodes' ranks said, as the one word that `diagnosis.nccl` judges by.

Each agent asks its own ranks, which answer for all that share a communicator with them: so the answers are
alike, but an agent knows the processes of its own node only, and all may not reach the same ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kcover_ebpf.diagnosis.collective_counts import CollectiveCounts
from kcover_ebpf.facts.host import CollectiveRank
from kcover_ebpf.ids import Pid

_Who = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """The word of one node, its age as of now."""

    said: CollectiveCounts
    pid: Callable[[int], Pid]
    """The number that a process of that node has in the gathered snapshot."""


def joined(answers: Sequence[Answer]) -> CollectiveCounts | None:
    """One word for all; None while nobody said anything."""
    spoken = [each for each in answers if not each.said.trouble]
    if not spoken:
        newest_s = min((each.said.age_s for each in answers), default=0.0)
        troubles = sorted({each.said.trouble or "" for each in answers})
        return CollectiveCounts(newest_s, trouble=troubles[0]) if troubles else None
    newest = min(spoken, key=lambda each: each.said.age_s).said
    if newest.moving:
        return CollectiveCounts(newest.age_s, newest.span_s, newest.answers, moving=True)
    still = [each for each in spoken if not each.said.moving]
    here = _here(still)
    return CollectiveCounts(
        newest.age_s,
        newest.span_s,
        newest.answers,
        behind=_all(here, [each.said.behind for each in still]),
        missing=_all(here, [each.said.missing for each in still]),
        failed=_all(here, [each.said.failed for each in still]),
        odd=_all(here, [each.said.odd for each in still]),
        sides=newest.sides or next((each.said.sides for each in still if each.said.sides), ()),
        equal=all(each.said.equal for each in still),
    )


def _here(answers: Sequence[Answer]) -> dict[_Who, Pid]:
    """The process of each rank that some node knows as its own."""
    return {
        _who(rank): each.pid(rank.pid)
        for each in answers
        for ranks in (each.said.behind, each.said.missing, each.said.failed, each.said.odd)
        for rank in ranks
        if rank.pid is not None
    }


def _all(
    here: Mapping[_Who, Pid], lists: Sequence[Sequence[CollectiveRank]]
) -> tuple[CollectiveRank, ...]:
    """Each rank once, though every node names it."""
    found = {_who(rank): rank for ranks in lists for rank in ranks}
    return tuple(replace(rank, pid=here.get(who)) for who, rank in found.items())


def _who(rank: CollectiveRank) -> _Who:
    return rank.comm, rank.rank
