"""Cuts a report to the size that the API server accepts, and notes in it what was cut. Pure.

etcd accepts 1.5 MiB for one request. The least informative and most numerous parts of each rank go first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sized
from dataclasses import replace

from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.model.rank_snapshot import RankSnapshot

MOST_BYTES = 900_000
"""Bytes of the whole report: under 1 MB with its metadata, so that neither etcd nor a proxy refuses it."""
_STEPS = ((64, 32), (16, 32), (4, 32), (4, 8), (0, 8), (0, 0))
"""Connections and stack frames that each rank may keep, step by step; the first is the most that a snapshot
contains."""
_RANK_BYTES = 600
"""Bytes of one rank without its texts and lists, with all numbers at their longest."""
_SOCKET_BYTES = 300
_NUMBER_BYTES = 12
_FIELDS: dict[str, Callable[[RankSnapshot], Sized]] = {
    "connections": lambda rank: rank.sockets,
    "frames": lambda rank: rank.stack,
}


def fitted(report: FaultReport, most_bytes: int = MOST_BYTES) -> FaultReport:
    """The report, or as much of it as fits; `unobserved` of its verdict names what is missing."""
    sizes = [_bytes_of(rank) for rank in report.ranks]
    if sum(sizes) <= most_bytes // 8:
        return report  # nearly all: the rest of a report has its own bounds
    left_bytes = most_bytes - len(json.dumps(REPORT.encode(replace(report, ranks=()))))
    ranks = report.ranks
    for sockets, frames in _STEPS:
        if sum(sizes) <= left_bytes:
            break
        ranks = tuple(
            replace(rank, sockets=rank.sockets[:sockets], stack=rank.stack[:frames])
            for rank in ranks
        )
        sizes = [_bytes_of(rank) for rank in ranks]
    # the highest ranks, and helpers, are last
    while sum(sizes) > left_bytes and sizes:
        sizes.pop()
    # which ports are no rank's is known only beside all connections of the ranks
    is_whole = ranks is report.ranks and len(sizes) == len(ranks)
    listens = report.listens if is_whole else ()
    return _said(replace(report, ranks=ranks[: len(sizes)], listens=listens), report)


def _bytes_of(rank: RankSnapshot) -> int:
    """Upper bound of its size in JSON, in bytes."""
    words = (kind.value for kind in rank.discounted)
    texts = sum(len(json.dumps(text)) + 2 for text in (*rank.stack, *words, rank.text or ""))
    numbers = _NUMBER_BYTES * len(rank.waits_for)
    return _RANK_BYTES + texts + numbers + _SOCKET_BYTES * len(rank.sockets)


def _said(cut_report: FaultReport, whole_report: FaultReport) -> FaultReport:
    counts = [("ranks", len(cut_report.ranks), len(whole_report.ranks))]
    counts += [
        (name, _count(cut_report, field), _count(whole_report, field))
        for name, field in _FIELDS.items()
    ]
    words = [f"{count} of {total} {name}" for name, count, total in counts if count < total]
    if not words or cut_report.verdict is None:
        return cut_report
    text = f"truncated to fit the report size limit; included: {', '.join(words)}"
    return replace(
        cut_report,
        verdict=replace(cut_report.verdict, unobserved=(text, *cut_report.verdict.unobserved)[:64]),
    )


def _count(report: FaultReport, field: Callable[[RankSnapshot], Sized]) -> int:
    return sum(len(field(rank)) for rank in report.ranks)
