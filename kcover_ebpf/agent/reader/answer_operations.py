"""Operations of the process that reads answers: flight recorders, NCCL over an agent's connection, ELF files.

Separate from the agent's side (`ranks`), because every import here costs memory in one more process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from kcover_ebpf.agent.reader.program import Note, Operation, decode, encode
from kcover_ebpf.collectives.ras import RasError, client
from kcover_ebpf.collectives.ras.client import RasPatience, RasPlace
from kcover_ebpf.collectives.recorder import dump_request
from kcover_ebpf.collectives.recorder.dump_request import RankRecorder, RequestError
from kcover_ebpf.host.elf_functions import ElfError, function_offsets
from kcover_ebpf.ids import Pid


def operations() -> Mapping[str, Operation]:
    """Operation name -> function that carries it out."""
    return {
        "record_request": _record_request,
        "record_fetch": _record_fetch,
        "ras_report": _ras_report,
        "ras_dead": _ras_dead,
        "functions": _functions,
        "slow_collectives": _slow_collectives,
    }


def _record_request(given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    recorder = decode(RankRecorder, given["recorder"])
    note(f"recorder of pid {recorder.pid}")
    try:
        return {"mark": dump_request.request(recorder)}
    except RequestError as error:
        return {"refused": str(error)}


def _record_fetch(given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    recorder = decode(RankRecorder, given["recorder"])
    note(f"recorder of pid {recorder.pid}")
    before = given["before"]
    try:
        mark, found = dump_request.fetch(recorder, None if before is None else tuple(before))
    except RequestError as error:
        return {"refused": str(error)}
    if isinstance(found, str):
        return {"mark": mark, "text": found}
    return {"mark": mark, "record": encode(found)}


def _place(given: Mapping[str, Any]) -> tuple[RasPlace, RasPatience]:
    pids = {inside: Pid(here) for inside, here in given["pids"]}
    # the address is that of the connection
    return RasPlace(("", 0), Pid(given["pid"]), pids), decode(RasPatience, given["patience"])


def _ras_report(given: Mapping[str, Any], descriptors: list[int], note: Note) -> Any:
    place, patience = _place(given)
    note(f"NCCL of pid {place.pid}")
    with _connection(descriptors) as connection:
        try:
            return {"report": encode(client.report_over(connection, place, patience))}
        except (OSError, RasError) as error:
            return {"refused": str(error) or type(error).__name__}


def _ras_dead(given: Mapping[str, Any], descriptors: list[int], note: Note) -> Any:
    place, patience = _place(given)
    note(f"NCCL of pid {place.pid}")
    with _connection(descriptors) as connection:
        lines = client.listen_over(connection, place, patience, float(given["seconds"]))
    return {"dead": client.dead_peers(lines)}


def _connection(descriptors: list[int]) -> socket.socket:
    return socket.socket(fileno=descriptors.pop())


def _functions(given: Mapping[str, Any], descriptors: list[int], note: Note) -> Any:
    file = descriptors[0]
    with contextlib.suppress(OSError):
        note(f"file {os.fstat(file).st_ino}")
    try:
        return {"offsets": function_offsets(file, given["names"])}
    except (ElfError, OSError) as error:
        return {"refused": str(error)}


def _slow_collectives(given: Mapping[str, Any], _: list[int], note: Note) -> Any:
    # most jobs have none of these files
    from kcover_ebpf.collectives.inspector.ranks import slow_at

    pids = [Pid(pid) for pid in given["pids"]]
    note(f"files of NCCL Inspector of pid {pids[0] if pids else 0}")
    return {"slow": [encode(slow) for slow in slow_at(pids)]}
