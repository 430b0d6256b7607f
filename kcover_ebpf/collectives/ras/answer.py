"""Parses an answer of NCCL's RAS, JSON or text.

Pure. Any process that owns the port decides what the answer contains. So its parts are counted before anything is
built of them: one byte of JSON can become thirty in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kcover_ebpf.collectives.ras import REMOTE, RasCommunicator, RasError, RasRank, RasReport

_MOST_CONTAINERS = 24_000
_MOST_COMMAS = 80_000
"""A rank has 3 objects and 15 commas in some 600 bytes, a missing one 2 and 7 in 260; this is what
fits into `REPORT_BYTES`."""
_MOST_LINES = 16_000
"""Most lines of a text report, which lists only ranks that differ."""
_MOST_KINDS = 32
"""NCCL counts five kinds of operations (src/init.cc: ncclFuncStr)."""
_MOST_NUMBER = 1 << 63
_HOST_TEXT = 64
"""Most characters of an address; `inet_ntop` writes at most 45."""
_KIND_TEXT = 32

# nccl.h: ncclResult_t, as the JSON report numbers them; 0 is success, 7 an operation that continues
_RESULTS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: REMOTE,
}
_FINE = (0, 7)


def parse(answer: str) -> RasReport:
    """The report in either format; raises `RasError`."""
    text = answer.lstrip()
    if not text:
        raise RasError("empty answer")
    try:
        return parse_json(text) if text.startswith("{") else parse_text(text)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RasError(f"not a RAS report: {type(error).__name__} {str(error)[:80]}") from error
    except (RecursionError, MemoryError) as error:
        raise RasError(f"not a RAS report: {type(error).__name__}") from error


# 2.28.9 omits a comma between the fields of a missing rank
LOST_COMMA = re.compile(r'("|\d|\}|true|false)([ \t\r]*+\n\s*+")')


def parse_json(text: str) -> RasReport:
    """The report in JSON; raises `RasError`, or errors that `parse` converts to it."""
    if text.count("{") + text.count("[") > _MOST_CONTAINERS or text.count(",") > _MOST_COMMAS:
        raise RasError("not a RAS report: more parts than ranks would have")
    if "\\u" in text:
        # no name in it needs an escape, and one escape makes each character of its string take four
        # bytes
        raise RasError("not a RAS report: escaped characters")
    table = _loads(text)
    return RasReport(
        tuple(communicator_of(communicator) for communicator in table["communicators"]), whole=True
    )


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(LOST_COMMA.sub(r"\1,\2", text))


def communicator_of(
    table: Mapping[str, Any], read_ranks: Sequence[RasRank] = ()
) -> RasCommunicator:
    """One communicator of a JSON report; `read_ranks`: ranks of it that were parsed before.

    Raises the errors of indexing if `table` is not a table.
    """
    ranks = [*read_ranks, *(_rank(rank) for rank in table.get("ranks", ()))]
    absent = table.get("missing_ranks", ())
    ranks += [_missing_rank(item) for item in absent if _gave_no_answer(item)]
    states = [rank.get("status", {}) for rank in table.get("ranks", ())]
    ending = any(state.get("finalize_called") or state.get("destroy_flag") for state in states)
    # a process that answers but no longer knows the communicator has destroyed it
    ending = ending or not all(_gave_no_answer(item) for item in absent)
    name = str(table["hash"])[:_KIND_TEXT]
    return RasCommunicator(name, _number(table["size"]), tuple(ranks), ending)


def _gave_no_answer(table: Mapping[str, Any]) -> bool:
    status = table.get("status", {})
    return bool(status.get("unresponsive", True) or status.get("considered_dead"))


def _rank(table: Mapping[str, Any]) -> RasRank:
    counts = table.get("collective_counts", {})
    if isinstance(counts, int):
        counts = {"all": counts}
    if len(counts) > _MOST_KINDS:
        raise RasError(f"not a RAS report: {len(counts)} kinds of operations")
    status = table.get("status", {})
    return RasRank(
        _number(table["rank"]),
        str(table["host"])[:_HOST_TEXT],
        _number(table["pid"]),
        {str(kind)[:_KIND_TEXT]: _number(count) for kind, count in counts.items()},
        gpu=_number(table.get("cuda_dev", 0)),
        error=_error(status.get("async_error", 0)),
        aborted=bool(status.get("abort_flag")),
    )


def _error(result: object) -> str:
    """The name of an ncclResult_t; empty for success."""
    if isinstance(result, int):
        return "" if result in _FINE else _RESULTS.get(result, f"error {_number(result)}")
    fine = str(result).upper() in ("SUCCESS", "NCCLSUCCESS", "NCCLINPROGRESS", "NONE")
    return "" if fine else str(result)[:_KIND_TEXT]


def _number(raw: Any) -> int:
    number = int(raw)
    # -1 is "unknown"; numbers beyond NCCL's counters cannot be real either
    if not -1 <= number < _MOST_NUMBER:
        raise RasError("not a RAS report: a number out of range")
    return number


def _missing_rank(table: Mapping[str, Any]) -> RasRank:
    return RasRank(
        _number(table["rank"]),
        str(table.get("host", ""))[:_HOST_TEXT],
        _number(table.get("pid", 0)),
        {},
        missing=True,
        gpu=_number(table.get("cuda_dev", 0)),
    )


_BLOCK = re.compile(r"^\s*#(?P<name>\d+-\d+) \((?P<hash>[0-9a-f]{1,16})\)(?P<flags>.*)$")
_LAUNCHED = re.compile(r"^\s*(?:\d+ ranks? ha(?:ve|s)) launched up to operation (\d{1,18})")
_RANK = re.compile(
    r"^\s*Rank (\d{1,9}) -- GPU (\d{1,9})\S* managed by process (\d{1,9}) on node (\S{1,64})"
)
_SIZE = re.compile(r"^\s*\d+\s+\d+\s+\d+\s+\d+\s+(?P<size>\d{1,9})\s+\d+\s+[A-Z]+")


def parse_text(text: str) -> RasReport:
    """The human-readable report (before 2.28.7), which lists only ranks that differ; raises `RasError`."""
    if "summary" not in text and "Communicators" not in text:
        raise RasError("not a RAS report")
    if text.count("\n") > _MOST_LINES:
        raise RasError(f"a report of more than {_MOST_LINES} lines")
    found: dict[str, list[RasRank]] = {}
    most: dict[str, int] = {}
    name, launched, is_missing = "", 0, False
    size = 0
    for line in text.split("\n"):
        if match := _SIZE.match(line):
            size = max(size, int(match["size"]))
        elif match := _BLOCK.match(line):
            name, is_missing, launched = match["hash"], "INCOMPLETE" in match["flags"], 0
            found.setdefault(name, [])
        elif match := _LAUNCHED.match(line):
            launched = int(match[1])
            if name:
                most[name] = max(most.get(name, 0), launched)
        elif name and (match := _RANK.match(line)):
            counts = {} if is_missing else {"all": launched}
            rank, gpu, pid, host = int(match[1]), int(match[2]), int(match[3]), match[4]
            found[name].append(RasRank(rank, host, pid, counts, is_missing, gpu=gpu))
    return RasReport(tuple(_from_text(key, size, found[key], most) for key in found), whole=False)


def _from_text(
    name: str, size: int, listed: Sequence[RasRank], most: Mapping[str, int]
) -> RasCommunicator:
    ranks = list(listed)
    if name in most:
        # most ranks are not listed: one entry represents them, so that the few can be compared
        ranks.append(RasRank(-1, "", 0, {"all": most[name]}))
    return RasCommunicator(name, size, tuple(ranks))
