"""Operations of the process that reads threads: calls, stacks, mappings and descriptors of ranks from /proc.

Separate from the agent's side (`ranks`), because every import here costs memory in one more process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from kcover_ebpf.agent.reader.program import Note, Operation, decode, encode
from kcover_ebpf.facts.host import ReadingRequest
from kcover_ebpf.host import open_files
from kcover_ebpf.host.thread_reader import ThreadReadings
from kcover_ebpf.ids import Pid


def operations() -> Mapping[str, Operation]:
    """Operation name -> function that carries it out."""
    readings = ThreadReadings(os.uname().machine)
    return {
        "thread": partial(_thread, readings),
        "wait": partial(_wait, readings),
        "open_files": _open_files,
    }


def _thread(readings: ThreadReadings, given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    for pid in given["forget"]:
        readings.forget(Pid(pid))
    request = decode(ReadingRequest, given["request"])
    note(f"pid {request.pid}")
    return encode(readings.reading(request))


def _open_files(given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    note(f"open files of {len(given['pids'])} processes")
    found = open_files.read([Pid(pid) for pid in given["pids"]], frozenset(given["paths"]))
    return {str(pid): sorted(paths) for pid, paths in found.items()}


def _wait(readings: ThreadReadings, given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    request = decode(ReadingRequest, given["request"])
    note(f"pid {request.pid}")
    return encode(readings.wait(request))
