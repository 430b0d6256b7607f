"""What the NCCL of several nodes' ranks said, as the one word that `diagnosis.nccl` judges by.

One agent asks, for its ranks answer for all that share a communicator with them; others do so later. Each knows the
processes of its own node only: those of other nodes are recognised by address and number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kcover_ebpf.diagnosis.collective_counts import CollectiveCounts
from kcover_ebpf.diagnosis.rank_snapshot import RankSnapshot
from kcover_ebpf.facts.host import CollectiveRank
from kcover_ebpf.ids import Pid

_Who = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CountsOfNode:
    """The word of one node, its age as of now."""

    said: CollectiveCounts
    pid: Callable[[int], Pid]
    """The number that a process of that node has in the gathered snapshot."""


def joined(
    answers: Sequence[CountsOfNode], ranks: Collection[RankSnapshot] = ()
) -> CollectiveCounts | None:
    """One answer for all; None while no node answered. `ranks`: of all nodes, as gathered."""
    spoken = [each for each in answers if not each.said.trouble]
    if not spoken:
        newest_s = min((each.said.age_s for each in answers), default=0.0)
        reasons = sorted({each.said.trouble or "" for each in answers})
        return CollectiveCounts(newest_s, trouble=reasons[0]) if reasons else None
    newest = min(spoken, key=lambda each: each.said.age_s).said
    if newest.moving:
        return CollectiveCounts(newest.age_s, newest.span_s, newest.answers, moving=True)
    still = [each for each in spoken if not each.said.moving]
    here = _here(still, ranks)
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
        unseen=newest.unseen,
    )


def _here(answers: Sequence[CountsOfNode], ranks: Collection[RankSnapshot]) -> dict[_Who, Pid]:
    """The process of each rank that is named: the node that asked knows its own, others are recognised."""
    named = [
        (each, rank)
        for each in answers
        for listed in (each.said.behind, each.said.missing, each.said.failed, each.said.odd)
        for rank in listed
    ]
    found = {_who(rank): pid for _, rank in named if (pid := _recognised(rank, ranks)) is not None}
    own = {_who(rank): each.pid(rank.pid) for each, rank in named if rank.pid is not None}
    return found | own


def _recognised(named: CollectiveRank, ranks: Collection[RankSnapshot]) -> Pid | None:
    """The one rank of that number in its pod whose connections have that address."""
    if not named.pid_inside or not named.host:
        return None
    found = [
        each.pid
        for each in ranks
        if each.pid_inside == named.pid_inside
        and any(socket.local.address == named.host for socket in each.sockets)
    ]
    return found[0] if len(found) == 1 else None


def _all(
    here: Mapping[_Who, Pid], lists: Sequence[Sequence[CollectiveRank]]
) -> tuple[CollectiveRank, ...]:
    """Each rank once, though every node names it."""
    found = {_who(rank): rank for ranks in lists for rank in ranks}
    return tuple(replace(rank, pid=here.get(who)) for who, rank in found.items())


def _who(rank: CollectiveRank) -> _Who:
    return rank.comm, rank.rank
