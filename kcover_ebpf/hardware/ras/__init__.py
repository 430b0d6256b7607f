"""What NCCL's own RAS threads say about a job: operation counts of every rank. Pure.

NCCL 2.24 and later answers over TCP (nccl: src/ras/client_support.cc, user guide "RAS"); since
2.28.7 also as JSON. A report is believed only where its processes are the job's: in a shared
network namespace the answer may be another job's. Unequal counts alone mean nothing, for ranks are
never exactly together; unequal counts that do not move name the rank that never joined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


def parse(answer: str) -> RasReport:
    """A report in either format; raises `RasError`."""
    text = answer.lstrip()
    if not text:
        raise RasError("empty answer")
    return parse_json(text) if text.startswith("{") else parse_text(text)


# 2.28.9 forgets a comma between the fields of a missing rank
_LOST_COMMA = re.compile(r'("|\d|\}|true|false)(\s*\n\s*")')


def parse_json(text: str) -> RasReport:
    """The JSON report; raises `RasError`."""
    try:
        table = _loads(text)
        return RasReport(tuple(_communicator(each) for each in table["communicators"]), whole=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RasError(f"not a RAS report: {type(error).__name__} {error}") from error


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_LOST_COMMA.sub(r"\1,\2", text))


def _communicator(table: Mapping[str, Any]) -> RasCommunicator:
    ranks = [_rank(each) for each in table.get("ranks", ())]
    ranks += [_missing_rank(each) for each in table.get("missing_ranks", ())]
    states = [each.get("status", {}) for each in table.get("ranks", ())]
    ending = any(each.get("finalize_called") or each.get("destroy_flag") for each in states)
    return RasCommunicator(str(table["hash"]), int(table["size"]), tuple(ranks), ending)


def _rank(table: Mapping[str, Any]) -> RasRank:
    counts = table.get("collective_counts", {})
    if isinstance(counts, int):
        counts = {"all": counts}
    return RasRank(
        int(table["rank"]),
        str(table["host"]),
        int(table["pid"]),
        {str(kind): int(count) for kind, count in counts.items()},
        gpu=int(table.get("cuda_dev", 0)),
    )


def _missing_rank(table: Mapping[str, Any]) -> RasRank:
    status = table.get("status", {})
    return RasRank(
        int(table["rank"]),
        str(table.get("host", "")),
        int(table.get("pid", 0)),
        {},
        missing=True,
        dead=bool(status.get("considered_dead")),
        gpu=int(table.get("cuda_dev", 0)),
    )


_BLOCK = re.compile(r"^\s*#(?P<name>\d+-\d+) \((?P<hash>[0-9a-f]+)\)(?P<flags>.*)$")
_LAUNCHED = re.compile(r"^\s*(?:\d+ ranks? ha(?:ve|s)) launched up to operation (\d+)")
_RANK = re.compile(r"^\s*Rank (\d+) -- GPU (\d+)\S* managed by process (\d+) on node (\S+)")
_SIZE = re.compile(r"^\s*\d+\s+\d+\s+\d+\s+\d+\s+(?P<size>\d+)\s+\d+\s+[A-Z]+")


def parse_text(text: str) -> RasReport:
    """The report for people (before 2.28.7), which lists outliers only; raises `RasError`."""
    if "summary" not in text and "Communicators" not in text:
        raise RasError("not a RAS report")
    found: dict[str, list[RasRank]] = {}
    name, launched, most, is_missing = "", 0, 0, False
    size = 0
    for line in text.splitlines():
        if match := _SIZE.match(line):
            size = max(size, int(match["size"]))
        elif match := _BLOCK.match(line):
            name, is_missing = match["hash"], "INCOMPLETE" in match["flags"]
            launched = most = 0
            found.setdefault(name, [])
        elif match := _LAUNCHED.match(line):
            launched = int(match[1])
            most = max(most, launched)
            if launched == most and name:
                # the many are not listed: one stands for them, so that the few can be seen behind
                found[name] = [r for r in found[name] if r.rank >= 0]
                found[name].append(RasRank(-1, "", 0, {"all": most}))
        elif name and (match := _RANK.match(line)):
            counts = {} if is_missing else {"all": launched}
            rank, gpu, pid, host = int(match[1]), int(match[2]), int(match[3]), match[4]
            found[name].append(RasRank(rank, host, pid, counts, is_missing, gpu=gpu))
    comms = tuple(RasCommunicator(key, size, tuple(ranks)) for key, ranks in found.items())
    return RasReport(comms, whole=False)
