"""What a reading of counts says of a job's ranks, as the fact that is judged. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcover_ebpf.collectives.ras import RasCommunicator, RasRank, Reading, weight
from kcover_ebpf.facts.host import CollectiveRank, CollectiveSide, CollectivesSeen
from kcover_ebpf.ids import Pid

_MOST_NAMED = 16
"""More than one is a list for people only, and it travels in a report."""
_MOST_SIDES = 8


def fact(
    times_ns: tuple[int, int],
    reading: Reading,
    answers: int,
    here: Callable[[RasRank], Pid | None],
) -> CollectivesSeen:
    """The fact of `answers` answers between two boottimes; `here`: the process of this host that a rank is."""
    behind, missing, failed, odd = (
        tuple(_rank(*pair, here) for pair in pairs[:_MOST_NAMED])
        for pairs in (reading.behind, reading.missing, reading.failed, reading.odd)
    )
    since_ns, now_ns = times_ns
    return CollectivesSeen(
        now_ns,
        since_ns,
        answer_count=answers,
        behind=behind,
        missing=missing,
        failed=failed,
        odd=odd,
        sides=_sides(reading.sides),
        equal=reading.equal,
    )


def _rank(
    rank: RasRank, communicator: RasCommunicator, here: Callable[[RasRank], Pid | None]
) -> CollectiveRank:
    most = max(
        (ras_rank.total for ras_rank in communicator.ranks if not ras_rank.missing), default=0
    )
    return CollectiveRank(
        rank.rank,
        communicator.size,
        rank.host,
        here(rank),
        launched=rank.total,
        most_launched=most,
        comm=communicator.name,
        pid_inside=rank.pid,
        trouble=rank.error or ("given up" if rank.aborted else ""),
    )


def _sides(sides: Sequence[Sequence[RasRank]]) -> tuple[CollectiveSide, ...]:
    kinds = sorted({kind for side in sides for kind in side[0].counts})
    differ = [kind for kind in kinds if len({side[0].counts.get(kind, 0) for side in sides}) > 1]
    return tuple(
        CollectiveSide(
            ", ".join(f"{kind} {side[0].counts.get(kind, 0)}" for kind in differ[:_MOST_SIDES]),
            weight(side),
            tuple(sorted(rank.rank for rank in side if rank.rank >= 0)[:_MOST_SIDES]),
        )
        for side in sides[:_MOST_SIDES]
    )
