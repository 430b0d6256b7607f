"""What NCCL's own RAS threads report about a job: operation counts of every rank.

Pure. NCCL 2.24 and later answers over TCP (nccl: src/ras/client_support.cc, user guide "RAS"); since 2.28.7 also as
JSON. A report counts only if its processes are the job's: in a shared network namespace another job may answer.

Unequal counts alone prove nothing, because ranks are never exactly in step. But all ranks launch operations in the
same order. So once counts stop moving, there are two cases. Either the counts lie behind one another, and the rank
with the lowest has not joined; or two ranks are each ahead of the other in some kind, and the program called
different operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kcover_ebpf.dataclass import dataclass

REMOTE = "remote error"
"""`RasRank.error` of a rank that failed only because a peer did."""


class RasError(Exception):
    """The answer breaks the protocol; the message says how."""


@dataclass(frozen=True, slots=True)
class RasRank:
    """One rank of one communicator, as RAS reports it."""

    rank: int
    """Rank number in the communicator; -1 in the text report, for all ranks that are not listed."""
    host: str
    pid: int
    """Process id in the rank's own pid namespace."""
    counts: Mapping[str, int]
    """Kind -> operations launched; a single entry "all" before 2.26 and in the text report."""
    missing: bool = False
    """It did not answer the other ranks."""
    gpu: int = 0
    """CUDA device number, which distinguishes the ranks of one process."""
    error: str = ""
    """Why its communicator failed; empty if it did not, and in the text report."""
    aborted: bool = False
    """True if the rank aborted the communicator."""
    many: int = 1
    """Number of ranks represented by this entry (with rank -1), if not all of a large group are listed."""

    @property
    def total(self) -> int:
        """Operations launched, summed over all kinds."""
        return sum(self.counts.values())

    @property
    def who(self) -> tuple[str, int, int]:
        """Identity of the rank, equal in all of its communicators."""
        return self.host, self.pid, self.gpu


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator; the text report lists only the ranks that differ."""

    name: str
    size: int
    ranks: tuple[RasRank, ...]
    ending: bool = False
    """Some rank has begun to destroy it, so its counts mean nothing any more."""

    @property
    def counts(self) -> dict[int, dict[str, int]]:
        """Rank number -> launched operations, for each rank that answered."""
        return {rank.rank: dict(rank.counts) for rank in self.ranks if not rank.missing}

    @property
    def answered_count(self) -> int:
        """Number of ranks that answered, including represented ones."""
        return weight([rank for rank in self.ranks if not rank.missing])

    @property
    def groups(self) -> list[tuple[RasRank, ...]]:
        """Ranks that answered, grouped by equal counts; the largest group first."""
        found: dict[frozenset[tuple[str, int]], list[RasRank]] = {}
        for rank in self.ranks:
            if not rank.missing:
                launched = frozenset(item for item in rank.counts.items() if item[1])
                found.setdefault(launched, []).append(rank)
        return sorted(map(tuple, found.values()), key=weight, reverse=True)

    def compared(self) -> RasComparison:
        """Which ranks are behind and which differ; empty while the communicator is being destroyed."""
        groups = self.groups
        if self.ending or len(groups) < 2:
            return RasComparison()
        if len(groups) > _MOST_GROUPS:
            return RasComparison(equal=False)
        late = [group for group in groups if any(_is_ahead(other[0], group[0]) for other in groups)]
        ahead = tuple(group for group in groups if group not in late)
        behind = tuple(rank for group in late for rank in group)
        return RasComparison(behind, ahead if len(ahead) > 1 else (), equal=False)


def weight(ranks: Sequence[RasRank]) -> int:
    """Number of ranks, including those that an entry represents."""
    return sum(rank.many for rank in ranks)


_MOST_GROUPS = 64
"""Each group is compared with each; the ranks of one training step form a handful."""


def _is_ahead(rank: RasRank, other_rank: RasRank) -> bool:
    """True if `rank` launched all that `other_rank` did, and more."""
    kinds = rank.counts.keys() | other_rank.counts.keys()
    pairs = [(rank.counts.get(kind, 0), other_rank.counts.get(kind, 0)) for kind in kinds]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


@dataclass(frozen=True, slots=True)
class RasComparison:
    """How the launched operations of the ranks in one communicator differ."""

    behind: tuple[RasRank, ...] = ()
    """Some other rank launched everything that these did, and more."""
    sides: tuple[tuple[RasRank, ...], ...] = ()
    """Groups that each launched something that another group did not; the largest first."""
    equal: bool = True

    @property
    def odd(self) -> tuple[RasRank, ...]:
        """The minority among `sides`; empty if no side has most of the ranks."""
        if not self.sides or 2 * weight(self.sides[0]) <= sum(map(weight, self.sides)):
            return ()
        return tuple(rank for side in self.sides[1:] for rank in side)


@dataclass(frozen=True, slots=True)
class RasReport:
    """One report of RAS, about all communicators that the answering process knows."""

    communicators: tuple[RasCommunicator, ...]
    whole: bool
    """True (JSON): all ranks are listed or represented; False (text): only those that differ."""
    process_count: int | None = None
    """Processes and devices that answered; None: count those that are listed."""

    def concerns(self, pids: Collection[int]) -> bool:
        """Whether any of its processes is one of `pids` (numbers in the ranks' own pid namespace)."""
        return any(rank.pid in pids for comm in self.communicators for rank in comm.ranks)


_Pairs = tuple[tuple[RasRank, RasCommunicator], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """The conclusions from several consecutive answers."""

    moving: bool
    """True if some count grew, i.e. the job makes progress."""
    behind: _Pairs = ()
    """Ranks with fewer operations than others whose counts do not move and that wait for no other rank."""
    missing: _Pairs = ()
    """Ranks that answered the others in none of these reports."""
    failed: _Pairs = ()
    """Ranks whose communicator failed: those with their own error, else those whose peer failed,
    else those that aborted."""
    odd: _Pairs = ()
    """Ranks that called a different operation from most."""
    sides: tuple[tuple[RasRank, ...], ...] = ()
    """The groups of ranks that called the same, in the largest communicator with different operations."""
    equal: bool = True
    """All ranks have launched the same in every communicator."""
    complete: bool = True
    """False: the answers omit ranks that are in step, so equal counts cannot be recognised."""


def read(reports: Sequence[RasReport]) -> Reading | None:
    """The conclusions from several answers; None for fewer than two, because every rank is late for a moment.

    A rank may be behind in one communicator because it waits in another. So only ranks that wait nowhere are named.
    If none is left, the ranks wait for each other, and none is named.
    """
    if len(reports) < 2:
        return None
    first = {comm.name: comm for comm in reports[0].communicators}
    last = [comm for comm in reports[-1].communicators if comm.name in first]
    complete = all(report.whole for report in reports)
    if any(first[comm.name].counts != comm.counts for comm in last):
        return Reading(moving=True, complete=complete)
    compared = [(comm, comm.compared()) for comm in last]
    behind = [(rank, comm) for comm, comparison in compared for rank in comparison.behind]
    late = {(comm.name, rank.who) for rank, comm in behind}
    waiting = {
        rank.who
        for comm, comparison in compared
        if not comparison.equal
        for rank in comm.ranks
        if not rank.missing and (comm.name, rank.who) not in late
    }
    sinks = {rank.who: (rank, comm) for rank, comm in behind if rank.who not in waiting}
    odd = {rank.who: (rank, comm) for comm, comparison in compared for rank in comparison.odd}
    sides = [comparison.sides for _, comparison in compared]
    at_odds = max(sides, key=lambda side: sum(map(weight, side)), default=())
    missing = _missing(reports)
    return Reading(
        moving=False,
        behind=_listed(sinks),
        missing=missing,
        failed=_failed(last, any_late=bool(behind or missing or at_odds)),
        odd=_listed(odd),
        sides=at_odds,
        equal=all(comparison.equal for _, comparison in compared),
        complete=complete,
    )


def _listed(found: Mapping[tuple[str, int, int], tuple[RasRank, RasCommunicator]]) -> _Pairs:
    """Without the entries that only represent other ranks."""
    return tuple(pair for pair in found.values() if pair[0].rank >= 0)


def _failed(comms: Sequence[RasCommunicator], *, any_late: bool) -> _Pairs:
    wrong = {
        rank.who: (rank, comm)
        for comm in comms
        for rank in comm.ranks
        if rank.error or (rank.aborted and not comm.ending)
    }
    # a failure reported as "remote" happened at the peer
    own = [pair for pair in wrong.values() if pair[0].error not in ("", REMOTE)]
    remote = [pair for pair in wrong.values() if pair[0].error == REMOTE]
    gave_up = [pair for pair in wrong.values() if not pair[0].error]
    if own or remote:
        return tuple(own or remote)
    # a rank that waited in vain gives up after its time-out, so it is named only if no rank is late
    return () if any_late else tuple(gave_up)


def _missing(reports: Sequence[RasReport]) -> _Pairs:
    found = [
        {
            rank.who: (rank, comm)
            for comm in report.communicators
            for rank in comm.ranks
            if rank.missing
        }
        for report in reports
    ]
    always = set.intersection(*(set(entry) for entry in found))
    return tuple(pair for who, pair in found[-1].items() if who in always)
