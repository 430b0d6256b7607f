"""What NCCL's own RAS threads say about a job: operation counts of every rank. Pure.

NCCL 2.24 and later answers over TCP (nccl: src/ras/client_support.cc, user guide "RAS"); since
2.28.7 also as JSON. A report is believed only where its processes are the job's: in a shared
network namespace the answer may be another job's. Unequal counts alone mean nothing, for ranks are
never exactly together. Ranks launch operations in one order, so counts that do not move either lie one behind the
other, and the last has not joined; or two ranks are ahead of each other, and the program called different operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kcover_ebpf.dataclass import dataclass

REMOTE = "remote error"
"""`RasRank.error` of who only learned that a peer failed."""


class RasError(Exception):
    """The answer is not what the protocol promises; the message says what was wrong."""


@dataclass(frozen=True, slots=True)
class RasRank:
    """One rank of one communicator."""

    rank: int
    """In its communicator; -1 in the text report, for all ranks that are not listed."""
    host: str
    pid: int
    """As seen in the rank's own pid namespace."""
    counts: Mapping[str, int]
    """Operations launched, by kind; one entry "all" before 2.26 and in the text report."""
    missing: bool = False
    """Gave no answer to the other ranks."""
    gpu: int = 0
    """CUDA device; it distinguishes the ranks of one process."""
    error: str = ""
    """What its communicator failed of, in words; empty where it did not, and in the text report."""
    aborted: bool = False
    """It gave the communicator up."""
    many: int = 1
    """Ranks that it stands for, with rank -1, where not all of a large group are listed."""

    @property
    def total(self) -> int:
        """Operations launched, of all kinds."""
        return sum(self.counts.values())

    @property
    def who(self) -> tuple[str, int, int]:
        """The same for one rank in all communicators."""
        return self.host, self.pid, self.gpu


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator; the text report lists only the ranks that differ."""

    name: str
    size: int
    ranks: tuple[RasRank, ...]
    ending: bool = False
    """Some rank has begun to take it apart: its counts mean nothing any more."""

    @property
    def counts(self) -> dict[int, dict[str, int]]:
        """What each rank that answered has launched."""
        return {rank.rank: dict(rank.counts) for rank in self.ranks if not rank.missing}

    @property
    def answered_count(self) -> int:
        """Ranks that answered."""
        return weight([rank for rank in self.ranks if not rank.missing])

    @property
    def groups(self) -> list[tuple[RasRank, ...]]:
        """Ranks that answered, by what they have launched; the largest group first."""
        found: dict[frozenset[tuple[str, int]], list[RasRank]] = {}
        for rank in self.ranks:
            if not rank.missing:
                launched = frozenset(item for item in rank.counts.items() if item[1])
                found.setdefault(launched, []).append(rank)
        return sorted(map(tuple, found.values()), key=weight, reverse=True)

    def compared(self) -> RasComparison:
        """Which ranks are behind and which are at odds; none while it is taken apart."""
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
    """How many ranks these are, those included that others stand for."""
    return sum(rank.many for rank in ranks)


_MOST_GROUPS = 64
"""Each is compared with each; ranks of one step are in a handful."""


def _is_ahead(rank: RasRank, other_rank: RasRank) -> bool:
    """True if `rank` launched all that `other_rank` did, and more."""
    kinds = rank.counts.keys() | other_rank.counts.keys()
    pairs = [(rank.counts.get(kind, 0), other_rank.counts.get(kind, 0)) for kind in kinds]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


@dataclass(frozen=True, slots=True)
class RasComparison:
    """What the ranks of one communicator launched, compared."""

    behind: tuple[RasRank, ...] = ()
    """Another one launched all that these did, and more."""
    sides: tuple[tuple[RasRank, ...], ...] = ()
    """At odds: groups of which each launched something that another has not; the largest first."""
    equal: bool = True

    @property
    def odd(self) -> tuple[RasRank, ...]:
        """The few among those at odds; none where no side has most of them."""
        if not self.sides or 2 * weight(self.sides[0]) <= sum(map(weight, self.sides)):
            return ()
        return tuple(rank for side in self.sides[1:] for rank in side)


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer."""

    communicators: tuple[RasCommunicator, ...]
    whole: bool
    """All ranks are listed, or stood for (JSON); False: only those that differ (text)."""
    process_count: int | None = None
    """Processes and devices that answered; None: those that are listed."""

    def concerns(self, pids: Collection[int]) -> bool:
        """Whether any of its processes is one of `pids` (in the ranks' own numbering)."""
        return any(rank.pid in pids for comm in self.communicators for rank in comm.ranks)


_Pairs = tuple[tuple[RasRank, RasCommunicator], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What several answers say together."""

    moving: bool
    """Some count grew: the job continues."""
    behind: _Pairs = ()
    """Who launched fewer operations than others, moved no more, and waits for no rank itself."""
    missing: _Pairs = ()
    """Who gave no answer to the others, in all these answers."""
    failed: _Pairs = ()
    """Whose communicator failed: those with an error of their own, else those whose peer failed, else who gave up."""
    odd: _Pairs = ()
    """Who called another operation than most."""
    sides: tuple[tuple[RasRank, ...], ...] = ()
    """Of the largest communicator whose ranks called different operations: who called the same."""
    equal: bool = True
    """All ranks have launched the same in every communicator."""
    complete: bool = True
    """False: the answers do not list who is on time, so that equal counts cannot be recognized."""


def read(reports: Sequence[RasReport]) -> Reading | None:
    """What the answers say together; None for fewer than two: a rank is late for a moment always.

    A rank may be behind in one communicator because it waits in another one: who waits nowhere is
    named. If none is left so, the ranks wait for each other, and none is named.
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
    """Without those who only stand for others."""
    return tuple(pair for pair in found.values() if pair[0].rank >= 0)


def _failed(comms: Sequence[RasCommunicator], *, any_late: bool) -> _Pairs:
    wrong = {
        rank.who: (rank, comm)
        for comm in comms
        for rank in comm.ranks
        if rank.error or (rank.aborted and not comm.ending)
    }
    # a peer's failure is reported as "remote": it lies at the other end
    own = [pair for pair in wrong.values() if pair[0].error not in ("", REMOTE)]
    remote = [pair for pair in wrong.values() if pair[0].error == REMOTE]
    gave_up = [pair for pair in wrong.values() if not pair[0].error]
    if own or remote:
        return tuple(own or remote)
    # who waited in vain gives up by itself after its time-out, so that it is named only where none is late
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
