"""Merges the answers that NCCL gave on several nodes into the one that `diagnosis.judge.nccl` uses.

Usually one agent asks: its ranks answer for all that share a communicator with them. Other agents ask later. Each agent
knows only the processes of its own node; a process of another node is identified by address and pid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import CollectiveRank
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.rank_snapshot import RankSnapshot

_Who = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CountsOfNode:
    """Answer of one node, with its age at the present moment."""

    counts: CollectiveCounts
    pid: Callable[[int], Pid]
    """Maps a pid of that node to the pid of the same process in the gathered snapshot."""


def joined(
    answers: Sequence[CountsOfNode], ranks: Collection[RankSnapshot] = ()
) -> CollectiveCounts | None:
    """One answer for all nodes; None while no node answered. `ranks`: the ranks of all nodes, as gathered."""
    spoken = [answer for answer in answers if not answer.counts.trouble]
    if not spoken:
        newest_s = min((answer.counts.age_s for answer in answers), default=0.0)
        reasons = sorted({answer.counts.trouble or "" for answer in answers})
        return CollectiveCounts(newest_s, trouble=reasons[0]) if reasons else None
    newest = min(spoken, key=lambda node: node.counts.age_s).counts
    if newest.moving:
        return CollectiveCounts(newest.age_s, newest.span_s, newest.answers, moving=True)
    still = [node for node in spoken if not node.counts.moving]
    here = _here(still, ranks)
    return CollectiveCounts(
        newest.age_s,
        newest.span_s,
        newest.answers,
        behind=_all(here, [node.counts.behind for node in still]),
        missing=_all(here, [node.counts.missing for node in still]),
        failed=_all(here, [node.counts.failed for node in still]),
        odd=_all(here, [node.counts.odd for node in still]),
        sides=newest.sides or next((node.counts.sides for node in still if node.counts.sides), ()),
        lags=newest.lags or next((node.counts.lags for node in still if node.counts.lags), ()),
        equal=all(node.counts.equal for node in still),
        unseen=newest.unseen,
    )


def _here(answers: Sequence[CountsOfNode], ranks: Collection[RankSnapshot]) -> dict[_Who, Pid]:
    """Named ranks and their processes: the node that asked knows its own, others are identified by address and pid."""
    named = [
        (answer, rank)
        for answer in answers
        for listed in (
            answer.counts.behind,
            answer.counts.missing,
            answer.counts.failed,
            answer.counts.odd,
        )
        for rank in listed
    ]
    found = {_who(rank): pid for _, rank in named if (pid := _recognised(rank, ranks)) is not None}
    own = {_who(rank): node.pid(rank.pid) for node, rank in named if rank.pid is not None}
    return found | own


def _recognised(rank: CollectiveRank, ranks: Collection[RankSnapshot]) -> Pid | None:
    """The one rank with this pid in its own namespace and this address; None unless there is exactly one."""
    if not rank.pid_inside or not rank.host:
        return None
    found = [
        rank_snapshot.pid
        for rank_snapshot in ranks
        if rank_snapshot.pid_inside == rank.pid_inside
        and any(socket.local.address == rank.host for socket in rank_snapshot.sockets)
    ]
    return found[0] if len(found) == 1 else None


def _all(
    here: Mapping[_Who, Pid], lists: Sequence[Sequence[CollectiveRank]]
) -> tuple[CollectiveRank, ...]:
    """Each rank once, though several nodes may name it."""
    found = {_who(rank): rank for ranks in lists for rank in ranks}
    return tuple(replace(rank, pid=here.get(who)) for who, rank in found.items())


def _who(rank: CollectiveRank) -> _Who:
    return rank.comm, rank.rank
