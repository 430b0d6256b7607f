"""Converts the counts of the probes into the form of NCCL's own RAS report.

Pure. One comparison then serves both (`collectives.ras.read`). All ranks of a communicator launch the same
collectives. For messages, one rank sends what another receives. So each direction between two ranks becomes a
communicator of two members here, in which both launch messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

from kcover_ebpf.collectives.ras import RasCommunicator, RasRank, RasReport
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.ids import Pid

MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Birth:
    """How a communicator was created, which identifies it across ranks."""

    identity: int
    """Equal on all ranks and hosts; 0: created before the probes were attached, so unknown."""
    size: int
    """Number of ranks; 0 if unknown."""
    rank: int
    """Rank number; for a split, the number in the parent communicator."""
    key: int = 0
    is_split: bool = False


@dataclass(frozen=True, slots=True)
class Launched:
    """The operations that one process launched on one communicator."""

    pid: Pid
    birth: Birth
    counts: Mapping[str, int]
    """Kind of collective -> number of launches; kinds never launched are absent."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages between one process and one rank of a communicator."""

    pid: Pid
    identity: int
    peer: int
    sent_count: int
    received_count: int


@dataclass(frozen=True, slots=True)
class Counted:
    """One reading of the tables, for the processes of one job."""

    launched: Sequence[Launched] = ()
    waiting: Sequence[tuple[Pid, Birth]] = ()
    """Communicators that were created but not used yet."""
    messages: Sequence[Messages] = ()
    lost: Mapping[Pid, int] = field(default_factory=dict)
    """Process -> communicators and peers that did not fit into the tables; only processes that lost
    some."""


@dataclass(frozen=True, slots=True)
class Account:
    """A reading in the form that can be compared."""

    report: RasReport
    hidden: frozenset[Pid] = frozenset()
    """Processes that are only partly observed: one that seems behind may wait in something that is
    not counted."""
    unseen: str = ""
    """Which part of the counts is unknown; empty if none."""


def account(counted: Counted, host: str, *, all_here: bool) -> Account:
    """`host`: the name of this one; `all_here`: every rank of the job is among the counted processes."""
    members, hidden = _members(counted)
    older_count = len(hidden)
    crowded = [name for name, ranks in members.items() if _is_crowded(ranks)]
    for name in crowded:
        hidden |= {pid for pid, _, _ in members.pop(name)}
    for ranks in members.values():
        if len(ranks) != ranks[0][1].size and not (ranks[0][1].is_split and all_here):
            hidden |= {pid for pid, _, _ in ranks}
    hidden |= counted.lost.keys()
    comms = [_communicator(host, name, ranks, all_here) for name, ranks in members.items()]
    comms += _pairs(host, members, counted.messages, all_here)
    report = RasReport(tuple(comms), whole=bool(comms) and not hidden)
    return Account(report, frozenset(hidden), _unseen(counted, older_count, crowded))


def _is_crowded(ranks: Sequence[_Member]) -> bool:
    return len({pid for pid, _, _ in ranks}) < len(ranks)


_Member = tuple[Pid, Birth, Mapping[str, int]]


def _members(counted: Counted) -> tuple[dict[int, list[_Member]], set[Pid]]:
    """The ranks of each communicator, and the processes that use an unidentified one."""
    members: dict[int, list[_Member]] = defaultdict(list)
    for launched in counted.launched:
        if launched.birth.identity:
            members[launched.birth.identity].append((launched.pid, launched.birth, launched.counts))
    older = {launched.pid for launched in counted.launched if not launched.birth.identity}
    for pid, birth in counted.waiting:
        # what a process launches on an unidentified communicator may be the operation it waits for
        if pid not in older:
            members[birth.identity].append((pid, birth, {}))
    return dict(members), older


def _numbers(ranks: Sequence[_Member], *, all_here: bool) -> Mapping[Pid, int] | None:
    """The number of each process in a communicator; None for a split of which not all ranks are observed."""
    if not ranks[0][1].is_split:
        return {pid: birth.rank for pid, birth, _ in ranks}
    if not all_here:
        return None
    order = sorted(ranks, key=lambda rank: (rank[1].key, rank[1].rank))
    return {pid: number for number, (pid, _, _) in enumerate(order)}


def _communicator(
    host: str, name: int, ranks: Sequence[_Member], all_here: bool
) -> RasCommunicator:
    numbers = _numbers(ranks, all_here=all_here) or {pid: birth.rank for pid, birth, _ in ranks}
    size = ranks[0][1].size or len(ranks)
    listed = tuple(RasRank(numbers[pid], host, pid, counts) for pid, _, counts in ranks)
    return RasCommunicator(f"{name:016x}", size, listed)


def _pairs(
    host: str, members: Mapping[int, list[_Member]], messages: Sequence[Messages], all_here: bool
) -> Iterator[RasCommunicator]:
    """A communicator for each direction of messages between two counted processes."""
    exchanged: dict[int, list[Messages]] = defaultdict(list)
    for message in messages:
        exchanged[message.identity].append(message)
    for name in exchanged.keys() & members.keys():
        ranks = members[name]
        numbers = _numbers(ranks, all_here=all_here) or {}
        counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for exchange in exchanged[name]:
            here = numbers.get(exchange.pid)
            if here is not None and here != exchange.peer:
                counts[here, exchange.peer][0] = exchange.sent_count
                counts[exchange.peer, here][1] = exchange.received_count
        pids = {number: pid for pid, number in numbers.items()}
        for (sender, receiver), both in sorted(counts.items()):
            if {sender, receiver} <= pids.keys() and any(both):
                yield RasCommunicator(
                    f"{name:016x} {sender}>{receiver}",
                    ranks[0][1].size or len(ranks),
                    tuple(
                        RasRank(number, host, pids[number], {MESSAGES: count} if count else {})
                        for number, count in zip((sender, receiver), both, strict=True)
                    ),
                )


def _unseen(counted: Counted, older_count: int, crowded: Collection[int]) -> str:
    texts = []
    if older_count:
        texts.append(
            f"{older_count} ranks use communicators that were created before counting began"
        )
    if crowded:
        texts.append("several ranks of one process are not distinguished")
    if counted.lost:
        texts.append(
            f"{sum(counted.lost.values())} communicators or peers did not fit into the tables"
        )
    return "; ".join(texts)
