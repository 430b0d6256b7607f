"""Converts a reading of counts into the fact that is judged. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from kcover_ebpf.collectives.ras import RasCommunicator, RasRank, Reading, weight
from kcover_ebpf.facts.host import (
    CollectiveLag,
    CollectiveRank,
    CollectiveSide,
    CollectivesSeen,
    LaggingHost,
)
from kcover_ebpf.ids import Pid

_MOST_NAMED = 16
"""Most ranks named in a fact, which travels in a report. A longer list would only serve a human reader."""
_MOST_SIDES = 8
_MOST_LAGS = 4
_MOST_HOSTS = 64
"""Most hosts named in a fact; a rack has fewer. For more, only the number is reported."""
_MOST_SLOTS = 16


def fact(
    times_ns: tuple[int, int],
    reading: Reading,
    answers: int,
    here: Callable[[RasRank], Pid | None],
) -> CollectivesSeen:
    """The fact of `answers` answers between two boottimes; `here` maps a rank to its process on this host."""
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
        lags=_lags(reading.behind),
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


def _lags(behind: Sequence[tuple[RasRank, RasCommunicator]]) -> tuple[CollectiveLag, ...]:
    comms = Counter(comm.name for _, comm in behind)
    if not comms:
        return ()
    name, _ = comms.most_common(1)[0]
    comm = next(comm for _, comm in behind if comm.name == name)
    furthest = max((rank for rank in comm.ranks if not rank.missing), key=lambda rank: rank.total)
    groups: dict[tuple[int, str], list[RasRank]] = defaultdict(list)
    for rank, other in behind:
        if other.name == name:
            groups[_distance(rank, furthest)].append(rank)
    return tuple(
        CollectiveLag(distance, len(ranks), comm.size, kind, _hosts(ranks))
        for (distance, kind), ranks in sorted(groups.items(), reverse=True)[:_MOST_LAGS]
    )


def _distance(rank: RasRank, furthest_rank: RasRank) -> tuple[int, str]:
    """How many operations `rank` is behind, and their kind if it is only one."""
    short = {
        kind: count - rank.counts.get(kind, 0)
        for kind, count in furthest_rank.counts.items()
        if count > rank.counts.get(kind, 0)
    }
    kind = next(iter(short)) if len(short) == 1 and "all" not in short else ""
    return furthest_rank.total - rank.total, kind


def _hosts(ranks: Sequence[RasRank]) -> tuple[LaggingHost, ...]:
    slots: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        slots[rank.host].append(rank.gpu)
    return tuple(
        LaggingHost(host, len(found), tuple(sorted(found)[:_MOST_SLOTS]))
        for host, found in sorted(slots.items())[:_MOST_HOSTS]
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
