"""Parses a RAS answer of any size as a stream, and merges its ranks into a few groups.

Pure. A job of 10,000 ranks answers with 40 MB. Ranks of a communicator that have launched the same form a group,
and a few ranks represent all of a large group (`RasRank.many`). So memory, and what is sent on, grows with the
number of communicators and of ranks that differ, not with the job.

A rank that differs in one communicator is kept in all of them, because it may be behind in one while it waits in
another. Any process may listen on the port, so every part has a bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from kcover_ebpf.collectives.ras import RasCommunicator, RasError, RasRank, RasReport
from kcover_ebpf.collectives.ras.answer import LOST_COMMA, communicator_of

_MOST_BYTES = 256 << 20
_MOST_RANKS = 1 << 18
"""Most entries of ranks in communicators: 32,768 ranks in eight."""
_MOST_COMMUNICATORS = 1 << 15
_MOST_VALUE = 16 << 10
"""Most bytes of one value: a rank has some 600, everything else of a communicator less."""
_MOST_FIELDS = 64
_BLOCK = 64 << 10
_MOST_APART = 512
"""Most ranks that differ from the rest of their communicator and are kept individually."""
_MOST_LISTED = 256
"""Most communicators kept individually; those whose ranks are all equal are merged into one."""
_SAMPLES = 2
"""Ranks listed even of a group of equals: if they move, the whole group does."""

_BEGIN = re.compile(r'"communicators"\s*+:\s*+\[')
_BLANK = re.compile(r"[\s,]*+")
_DECODER = json.JSONDecoder()
_LISTS = ("ranks", "missing_ranks")


class LargeAnswer:
    """Takes the bytes of one JSON report; raises `RasError` if they are something else."""

    def __init__(self, pids: Collection[int]) -> None:
        """`pids`: numbers of the job's own processes in the ranks' pid namespace; these are kept individually."""
        self._pids = frozenset(pids)
        self._text, self._at = "", 0
        self._blocks: list[bytes] = []
        self._waiting = self._size = self._rank_count = 0
        self._has_begun = self._is_over = False
        self._table: dict[str, Any] | None = None
        """Fields of the communicator that is being parsed, without its ranks."""
        self._list = ""
        self._ranks: list[RasRank] = []
        self._is_ending = False
        self._interned: dict[Any, Any] = {}
        self._found: list[RasCommunicator] = []

    def feed(self, block: bytes) -> None:
        """Parse the next bytes of the report; they may end anywhere."""
        self._size += len(block)
        if self._size > _MOST_BYTES:
            raise RasError(f"a report of more than {_MOST_BYTES >> 20} MiB")
        self._blocks.append(block)
        self._waiting += len(block)
        if self._waiting >= _BLOCK:
            self._read(is_last=False)

    def finish(self) -> RasReport:
        """The report, after all bytes were fed; raises `RasError` if it is incomplete."""
        self._read(is_last=True)
        if not self._is_over:
            raise RasError("not a RAS report: it ends too early")
        return _compact(self._found, self._pids)

    def _read(self, *, is_last: bool) -> None:
        # names and numbers are ASCII: decode one character per byte, whatever was sent
        self._text = self._text[self._at :] + b"".join(self._blocks).decode("latin-1")
        self._at, self._blocks, self._waiting = 0, [], 0
        if "\\u" in self._text:
            raise RasError("not a RAS report: escaped characters")
        try:
            while not self._is_over and self._step(is_last=is_last):
                pass
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise RasError(f"not a RAS report: {type(error).__name__} {str(error)[:80]}") from error
        except (RecursionError, MemoryError) as error:
            raise RasError(f"not a RAS report: {type(error).__name__}") from error
        if len(self._text) - self._at > _BLOCK + _MOST_VALUE:
            raise RasError("not a RAS report: a part that is too long")

    def _step(self, *, is_last: bool) -> bool:
        """Parse one part; False if it has not arrived completely."""
        if not self._has_begun:
            begin = _BEGIN.search(self._text)
            if begin is None:
                if is_last or len(self._text) > _BLOCK:
                    raise RasError("not a RAS report")
                return False
            self._has_begun, self._at = True, begin.end()
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank is not None else self._at
        if len(self._text) - self._at < _MOST_VALUE and not is_last:
            return False
        if self._at >= len(self._text):
            return False
        if self._list:
            self._in_list()
        elif self._table is not None:
            self._in_communicator(self._table)
        else:
            self._between()
        return True

    def _between(self) -> None:
        if self._take("]"):
            self._is_over = True
        elif self._take("{"):
            self._table, self._ranks, self._is_ending = {}, [], False
        else:
            raise RasError("not a RAS report: no communicator")

    def _in_communicator(self, table: dict[str, Any]) -> None:
        if self._take("}"):
            made = communicator_of(table, self._ranks)
            self._found.append(replace(made, ending=made.ending or self._is_ending))
            self._table = None
            if len(self._found) > _MOST_COMMUNICATORS:
                raise RasError("not a RAS report: more communicators than ranks would have")
            return
        key = self._value()
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank is not None else self._at
        if not isinstance(key, str) or not self._take(":"):
            raise RasError("not a RAS report: a field without a name")
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank is not None else self._at
        if key in _LISTS and self._take("["):
            self._list = key
        elif len(table) < _MOST_FIELDS:
            table[key] = self._value()
        else:
            raise RasError("not a RAS report: more fields than a communicator has")

    def _in_list(self) -> None:
        if self._take("]"):
            self._list = ""
            return
        entry = self._value()
        self._rank_count += 1
        if self._rank_count > _MOST_RANKS:
            raise RasError(f"a report of more than {_MOST_RANKS} ranks")
        read = communicator_of({"hash": "", "size": 0, self._list: [entry]}, ())
        self._is_ending |= read.ending
        self._ranks += [self._shared(rank) for rank in read.ranks]

    def _shared(self, rank: RasRank) -> RasRank:
        """The rank with fields shared between equal ranks: thousands of ranks have the same counts on few hosts."""
        key = tuple(rank.counts.items())
        counts = self._interned.setdefault(key, rank.counts)
        host = self._interned.setdefault(rank.host, rank.host)
        if len(self._interned) > _MOST_RANKS >> 2:
            raise RasError("not a RAS report: ranks that have nothing in common")
        return replace(rank, counts=counts, host=host)

    def _take(self, mark: str) -> bool:
        is_there = self._text.startswith(mark, self._at)
        self._at += is_there
        return is_there

    def _value(self) -> Any:
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
        except ValueError:
            part = self._text[self._at : self._at + _MOST_VALUE]
            rest = self._text[self._at + _MOST_VALUE :]
            self._text, self._at = LOST_COMMA.sub(r"\1,\2", part) + rest, 0
            value, self._at = _DECODER.raw_decode(self._text, 0)
        return value


def _compact(found: list[RasCommunicator], pids: frozenset[int]) -> RasReport:
    """The report without most of the ranks that equal the majority."""
    processes = {rank.who for comm in found for rank in comm.ranks}
    groups = [comm.groups for comm in found]
    apart = {rank.who for group in groups for others in group[1:] for rank in others[:_MOST_APART]}
    apart |= {
        rank.who
        for comm in found
        for rank in comm.ranks
        if rank.missing or rank.error or rank.aborted
    }
    if len(apart) > _MOST_APART:
        apart = set(sorted(apart)[:_MOST_APART])
    named = [
        _compact_communicator(comm, group, apart, pids)
        for comm, group in zip(found, groups, strict=True)
    ]
    if len(named) > _MOST_LISTED:
        named = _listed(named, groups, apart, pids)
    return RasReport(tuple(named), whole=True, process_count=len(processes))


def _compact_communicator(
    communicator: RasCommunicator,
    groups: list[tuple[RasRank, ...]],
    apart: Collection[tuple[str, int, int]],
    pids: Collection[int],
) -> RasCommunicator:
    kept = [rank for rank in communicator.ranks if rank.missing and rank.who in apart]
    for group in groups:
        own = [rank for rank in group if rank.who in apart or rank.pid in pids]
        chosen = {id(rank) for rank in (*own[:_MOST_APART], *group[:_SAMPLES])}
        listed = [rank for rank in group if id(rank) in chosen]
        kept += listed
        if len(listed) < len(group):
            kept.append(RasRank(-1, "", 0, group[0].counts, many=len(group) - len(listed)))
    return replace(communicator, ranks=tuple(kept))


def _listed(
    named: list[RasCommunicator],
    groups: list[list[tuple[RasRank, ...]]],
    apart: Collection[tuple[str, int, int]],
    pids: Collection[int],
) -> list[RasCommunicator]:
    """Communicators that differ or contain our processes; all others merged into one, with summed counts."""
    kept: list[RasCommunicator] = []
    sums: dict[str, int] = {}
    size = 0
    for comm, group in zip(named, groups, strict=True):
        is_plain = len(group) < 2 and not any(
            rank.who in apart or rank.pid in pids for rank in comm.ranks
        )
        if len(kept) < _MOST_LISTED and not is_plain:
            kept.append(comm)
            continue
        size += comm.size
        for kind, count in (_first_counts(group)).items():
            sums[kind] = sums.get(kind, 0) + count
    return [*kept, RasCommunicator("others", size, (RasRank(-1, "", 0, sums, many=size),))]


def _first_counts(groups: list[tuple[RasRank, ...]]) -> Mapping[str, int]:
    return groups[0][0].counts if groups else {}
