"""What NCCL's own RAS threads say about a job: operation counts of every rank. Pure.

NCCL 2.24 and later answers over TCP (nccl: src/ras/client_support.cc, user guide "RAS"); since
2.28.7 also as JSON. A report is believed only where its processes are the job's: in a shared
network namespace the answer may be another job's. Unequal counts alone mean nothing, for ranks are
never exactly together; unequal counts that do not move name the rank that never joined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


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
    dead: bool = False
    """The others gave it up."""
    gpu: int = 0
    """CUDA device; it tells the ranks of one process apart."""
    error: str = ""
    """What its communicator failed of, in words; empty where it did not, and in the text report."""
    aborted: bool = False
    """It gave the communicator up."""

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
    """One communicator; the text report lists only the ranks that stand out."""

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
    def behind(self) -> tuple[RasRank, ...]:
        """Ranks that launched fewer operations of some kind than another; none if all lack some."""
        present = [rank for rank in self.ranks if not rank.missing]
        kinds = {kind for rank in present for kind in rank.counts}
        most = {kind: max(rank.counts.get(kind, 0) for rank in present) for kind in kinds}
        late = tuple(
            rank for rank in present if any(rank.counts.get(kind, 0) < most[kind] for kind in kinds)
        )
        return late if len(late) < len(present) and not self.ending else ()


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer."""

    communicators: tuple[RasCommunicator, ...]
    whole: bool
    """All ranks are listed (JSON); False: only those that stand out (text)."""

    def concerns(self, pids: Collection[int]) -> bool:
        """Whether any of its processes is one of `pids` (in the ranks' own numbering)."""
        return any(rank.pid in pids for comm in self.communicators for rank in comm.ranks)


@dataclass(frozen=True, slots=True)
class Reading:
    """What several answers say together."""

    moving: bool
    """Some count grew: the job goes on."""
    behind: tuple[tuple[RasRank, RasCommunicator], ...] = ()
    """Who launched fewer operations than others, moved no more, and waits for nobody itself."""
    missing: tuple[tuple[RasRank, RasCommunicator], ...] = ()
    """Who gave no answer to the others, in all these answers."""
    complete: bool = True
    """False: the answers do not list who is on time, so that equal counts cannot be told."""


def read(reports: Sequence[RasReport]) -> Reading | None:
    """What the answers say together; None for fewer than two: a rank is late for a moment always.

    A rank may be behind in one communicator because it waits in another one: who waits nowhere is
    named. If nobody is left so, the ranks wait for each other, and none is named.
    """
    if len(reports) < 2:
        return None
    first = {comm.name: comm for comm in reports[0].communicators}
    last = [comm for comm in reports[-1].communicators if comm.name in first]
    complete = all(report.whole for report in reports)
    if any(first[comm.name].counts != comm.counts for comm in last):
        return Reading(moving=True, complete=complete)
    behind = [(rank, comm) for comm in last for rank in comm.behind]
    late = {(comm.name, rank.who) for rank, comm in behind}
    unequal = [comm for comm in last if comm.behind]
    waiting = {
        rank.who
        for comm in unequal
        for rank in comm.ranks
        if not rank.missing and (comm.name, rank.who) not in late
    }
    sinks = {rank.who: (rank, comm) for rank, comm in behind if rank.who not in waiting}
    return Reading(
        moving=False,
        behind=tuple(sinks.values()),
        missing=_missing(reports),
        complete=complete,
    )


def _missing(reports: Sequence[RasReport]) -> tuple[tuple[RasRank, RasCommunicator], ...]:
    found = [
        {
            rank.who: (rank, comm)
            for comm in report.communicators
            for rank in comm.ranks
            if rank.missing
        }
        for report in reports
    ]
    always = set.intersection(*(set(each) for each in found))
    return tuple(pair for who, pair in found[-1].items() if who in always)
