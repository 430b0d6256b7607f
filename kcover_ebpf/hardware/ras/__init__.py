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
    host: str
    pid: int
    """As seen in the rank's own pid namespace."""
    counts: Mapping[str, int]
    """Operations launched, by kind; one entry "all" before 2.26 and in the text report."""
    missing: bool = False
    """Gave no answer to the other ranks."""
    dead: bool = False
    """The others gave it up."""

    @property
    def total(self) -> int:
        """Operations launched, of all kinds."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator; the text report lists only the ranks that stand out."""

    name: str
    size: int
    ranks: tuple[RasRank, ...]


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
class Laggard:
    """What several answers say together."""

    communicator: str
    behind: tuple[RasRank, ...]
    """Ranks that launched fewer operations than the others, and did not move."""
    missing: tuple[RasRank, ...]


def laggard(reports: Sequence[RasReport]) -> Laggard | None:
    """Who holds up the others, if no count moved from the first answer to the last; None if nobody.

    Needs two answers at least. All ranks equal and still is another trouble: nobody's by counts.
    """
    if len(reports) < 2:
        return None
    first, last = reports[0], reports[-1]
    before = {comm.name: comm for comm in first.communicators}
    for comm in last.communicators:
        missing = tuple(rank for rank in comm.ranks if rank.missing)
        earlier = before.get(comm.name)
        still = earlier is not None and _counts(earlier) == _counts(comm)
        behind = _behind(comm) if still else ()
        stays = missing and earlier is not None and any(rank.missing for rank in earlier.ranks)
        if behind or stays:
            return Laggard(comm.name, behind, missing if stays else ())
    return None


def _counts(comm: RasCommunicator) -> dict[int, dict[str, int]]:
    return {rank.rank: dict(rank.counts) for rank in comm.ranks if not rank.missing}


def _behind(comm: RasCommunicator) -> tuple[RasRank, ...]:
    present = [rank for rank in comm.ranks if not rank.missing]
    kinds = {kind for rank in present for kind in rank.counts}
    most = {kind: max(rank.counts.get(kind, 0) for rank in present) for kind in kinds}
    late = tuple(
        rank for rank in present if any(rank.counts.get(kind, 0) < most[kind] for kind in kinds)
    )
    return late if len(late) < len(present) else ()


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
    return RasCommunicator(str(table["hash"]), int(table["size"]), tuple(ranks))


def _rank(table: Mapping[str, Any]) -> RasRank:
    counts = table.get("collective_counts", {})
    if isinstance(counts, int):
        counts = {"all": counts}
    return RasRank(
        int(table["rank"]),
        str(table["host"]),
        int(table["pid"]),
        {str(kind): int(count) for kind, count in counts.items()},
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
    )


_BLOCK = re.compile(r"^\s*#(?P<name>\d+-\d+) \((?P<hash>[0-9a-f]+)\)(?P<flags>.*)$")
_LAUNCHED = re.compile(r"^\s*(?:\d+ ranks? ha(?:ve|s)) launched up to operation (\d+)")
_RANK = re.compile(r"^\s*Rank (\d+) -- GPU \S+ managed by process (\d+) on node (\S+)")
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
            who = RasRank(int(match[1]), match[3], int(match[2]), counts, missing=is_missing)
            found[name].append(who)
    comms = tuple(RasCommunicator(key, size, tuple(ranks)) for key, ranks in found.items())
    return RasReport(comms, whole=False)
