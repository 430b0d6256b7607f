"""Parses one line of NCCL Inspector, which describes one collective of one rank.

Pure. The format (v4.0) is that of ext-profiler/inspector in NVIDIA/nccl: each line is a JSON object with header,
metadata and coll_perf. A dump of a communicator contains only its last collective, so a file may skip some.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kcover_ebpf.dataclass import dataclass

_MOST_TEXT = 256
_MOST_NUMBER = 1 << 62
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class CollectiveRun:
    """One collective operation as one rank recorded it."""

    communicator: str
    """NCCL's hash of the communicator, equal on all of its ranks."""
    rank: int
    """Rank number within the communicator."""
    rank_count: int
    host: str
    pid: int
    """Process id in the pid namespace of the process."""
    kind: str
    """NCCL's name of the operation, such as AllReduce."""
    number: int
    """Sequence number of the operation in the communicator, equal on all ranks."""
    message_bytes: int
    duration_s: float
    """Seconds from when this rank entered until the operation ended: a rank that arrives late has
    the shortest."""


def runs(lines: Iterable[bytes]) -> Iterator[CollectiveRun | None]:
    """The collective in each line; None for a truncated line or one without a collective."""
    for line in lines:
        if line.strip():
            yield run_of(line)


def run_of(line: bytes) -> CollectiveRun | None:
    """The collective in one line; None as in `runs`."""
    try:
        whole = json.loads(line)
        header, written, measured = (whole[key] for key in ("header", "metadata", "coll_perf"))
        rank, rank_count = _whole(header, "rank"), _whole(header, "n_ranks", _MOST_RANKS)
        if rank >= rank_count:
            return None
        return CollectiveRun(
            _text(header, "id"),
            rank,
            rank_count,
            _text(written, "hostname"),
            _whole(written, "pid"),
            _text(measured, "coll"),
            _whole(measured, "coll_sn"),
            _whole(measured, "coll_msg_size_bytes"),
            _whole(measured, "coll_exec_time_us") / 1e6,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _whole(fields: Mapping[str, Any], key: str, most: int = _MOST_NUMBER) -> int:
    value = fields[key]
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(key)
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT:
        raise ValueError(key)
    return value
