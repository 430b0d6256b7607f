"""Files as NCCL Inspector writes them, for jobs of a chosen shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIZE_BYTES = 64 << 20
TRANSFER_S = 0.010


def line(  # noqa: PLR0917 - a field of the record each
    communicator: str,
    rank: int,
    rank_count: int,
    host: str,
    pid: int,
    number: int,
    duration_s: float,
    **more: Any,
) -> dict[str, Any]:
    """One record, as the plug-in's README shows it (format v4.0)."""
    measured = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": SIZE_BYTES,
        "coll_exec_time_us": round(duration_s * 1e6),
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 277.2,
        "coll_busbw_gbs": 485.1,
    }
    return {
        "header": {"id": communicator, "rank": rank, "n_ranks": rank_count, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_748_030_377_000_000 + number * 1000,
            "hostname": host,
            "pid": pid,
        },
        "coll_perf": measured | more,
    }


Duration = Callable[[int, int], float]
"""Seconds of the operation with a number, of a rank of the communicator."""


def group(
    communicator: str, ranks: range, duration: Duration, count: int = 60, per_host: int = 4
) -> Iterator[tuple[int, str]]:
    """(rank of the job, line) of all operations of one communicator over these ranks of the job."""
    for number in range(count):
        for at, rank in enumerate(ranks):
            host = f"node-{rank // per_host}"
            record = line(
                communicator, at, len(ranks), host, 100 + rank, number, duration(number, at)
            )
            yield rank, json.dumps(record)


def late(rank: int, wait_s: float) -> Duration:
    """One rank comes later than all others."""
    return lambda number, at: (
        TRANSFER_S + 2e-5 * ((at * 7 + number) % 3) + (0.0 if at == rank else wait_s)
    )


def even(number: int, at: int) -> float:
    """All come within some microseconds, now one and now another last."""
    return TRANSFER_S + 2e-5 * ((at * 7 + number * 5) % 11)


def write(folder: Path, *groups: Iterator[tuple[int, str]]) -> Path:
    """A file for each process."""
    by_rank: dict[int, list[str]] = {}
    for lines in groups:
        for rank, text in lines:
            by_rank.setdefault(rank, []).append(text)
    folder.mkdir(exist_ok=True)
    for rank, texts in by_rank.items():
        (folder / f"host-pid{100 + rank}.log").write_text("\n".join(texts) + "\n")
    return folder
