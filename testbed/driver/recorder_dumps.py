"""Dumps of PyTorch's flight recorder as its source writes them (FlightRecorderDetail.hpp, version 2.10 of the dump).

Python's pickler at protocol 2 replaces the one in C++: for plain data they write the same instructions.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

MEMBERS = "[0, 1, 2, 3]"


def frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


LIBRARY = frame("all_reduce", "/usr/lib/python3/dist-packages/torch/distributed/x.py", 2906)


def call(
    sequence: int,
    operation: str = "all_reduce",
    *,
    state: str = "completed",
    line: int = 40,
    sizes: Sequence[Sequence[int]] = ((16, 4),),
    group: str = "0",
    purpose: str = "default_pg",
    record: int | None = None,
    message: bool = False,
) -> dict[str, Any]:
    """One entry; `record`: its number in the ring, None for the one that follows from its sequence number."""
    return {
        "frames": [
            LIBRARY,
            frame("step", "/jobs/train.py", line),
            frame("<module>", "/jobs/train.py", 90),
        ],
        "record_id": sequence - 1 if record is None else record,
        "pg_id": int(group) if group.isdigit() else 7,
        "process_group": (group, purpose),
        "thread_name": "python3",
        "thread_id": "139643807195648",
        "collective_seq_id": 0 if message else sequence,
        "p2p_seq_id": sequence if message else 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_795_366_733_095_299_301,
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": ["Float" for _ in sizes],
        "output_sizes": [list(size) for size in sizes],
        "output_dtypes": ["Float" for _ in sizes],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": message,
    }


def dump(
    calls: Sequence[dict[str, Any]],
    members: str = MEMBERS,
    groups: dict[str, tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """`groups`: name to purpose and members of those other than the default one."""
    known = {"0": ("default_pg", members), **(groups or {})}
    sequences = [entry["collective_seq_id"] for entry in calls if entry["process_group"][0] == "0"]
    done = [
        entry["collective_seq_id"]
        for entry in calls
        if entry["process_group"][0] == "0" and entry["state"] == "completed"
    ]
    status = {
        "last_enqueued_collective": max(sequences, default=-1),
        "last_started_collective": -1,
        "last_completed_collective": max(done, default=-1),
    }
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": purpose, "ranks": ranks}
            for name, (purpose, ranks) in known.items()
        },
        "comm_lib_version": "2.27.5",
        "pg_status": {"0": status},
        "entries": list(calls),
    }


def pickled(value: object) -> bytes:
    """As the rank writes it into its file."""
    return pickle.dumps(value, protocol=2)


def steps(count: int, *, ends: str | None = None, line: int = 40) -> list[dict[str, Any]]:
    """The given number of completed calls, and one more of this operation that has not completed."""
    found = [call(number) for number in range(1, count + 1)]
    return [*found, call(count + 1, ends, state="scheduled", line=line)] if ends else found
