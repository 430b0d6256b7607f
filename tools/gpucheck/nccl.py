"""Part 4: the answers of NCCL's RAS and torch's Flight Recorder for a real communicator of one rank."""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

from testbed.ports import free_port
from tools.gpucheck import children
from tools.gpucheck.nccl_library import torch_problem
from tools.gpucheck.plan import Notes, NotPossible, Plan

READY_S = 45.0
"""Most of this is for loading torch's CUDA libraries from a cold disk."""
_RAS_S = 8.0
_DUMP_S = 10.0
"""The watchdog of torch checks its pipe once a second."""
_KEPT = 20_000


class _Inert(pickle.Unpickler):
    """Reads only plain data: names in a file are never imported, so never executed."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}")


def measure(plan: Plan, notes: Notes) -> None:
    for kind in ("library", "torch"):
        reason = torch_problem() if kind == "torch" else ""
        if reason:
            notes.add(kind, {"not possible here": reason})
            continue
        try:
            notes.add(kind, _communicator(kind, plan))
        except NotPossible as problem:
            notes.add(kind, {"not possible here": str(problem)})


def _communicator(kind: str, plan: Plan) -> dict[str, Any]:
    port, prefix = free_port(), plan.folder / "flight-recorder-"
    dump = Path(f"{prefix}dump-0")
    # an earlier run may have left one in the same folder
    dump.unlink(missing_ok=True)
    extra = {
        "NCCL_RAS_ENABLE": "1",
        "NCCL_RAS_ADDR": f"127.0.0.1:{port}",
        "NCCL_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{prefix}pipe-",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{prefix}dump-",
        "TORCH_FR_DUMP_TEMP_FILE": f"{prefix}dump-",
    }
    with children.talking(children.module("communicator", kind), extra) as child:
        child.await_line("ready", READY_S)
        facts: dict[str, Any] = {"RAS": {}}
        for form in ("json", "text"):
            try:
                facts["RAS"][form] = ask_ras(port, form)
            except OSError as error:
                facts["RAS"][form] = {"not possible here": str(error)}
        if kind == "torch":
            facts["Flight Recorder"] = _dump(Path(f"{prefix}pipe-0.pipe"), dump)
    return facts


def ask_ras(port: int, form: str) -> dict[str, Any]:
    """The whole conversation with the server; raises `OSError`, also if no answer arrives in time."""
    began_s = time.perf_counter()
    lines = []
    with socket.create_connection(("127.0.0.1", port), timeout=_RAS_S) as connection:
        stream = connection.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
        for line in ("CLIENT PROTOCOL 2", "TIMEOUT 5", f"SET FORMAT {form}"):
            stream.write(line + "\n")
            stream.flush()
            lines.append({"said": line, "answer": stream.readline().strip()})
        stream.write("VERBOSE STATUS\n")
        stream.flush()
        report = stream.read(1 << 20)
    took_ms = round((time.perf_counter() - began_s) * 1e3, 1)
    facts = {"conversation": lines, "report": report[:_KEPT], "took_ms": took_ms}
    return {**facts, **_understood(report)}


def _understood(report: str) -> dict[str, Any]:
    """The report as the sensor's own parser reads it."""
    try:
        from kcover_ebpf.collectives.ras.answer import parse
    except ImportError as error:
        return {"understood": f"not possible here: {error}"}
    from kcover_ebpf.collectives.ras import RasError

    try:
        return {"understood": repr(parse(report))}
    except RasError as error:
        return {"understood": f"no: {error}"}


def _dump(pipe: Path, dump: Path) -> dict[str, Any]:
    """Request a dump through the pipe, and summarise it."""
    began_s = time.monotonic()
    deadline_s = began_s + _DUMP_S
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        return {"not possible here": f"{pipe.name}: {error.strerror}"}
    try:
        os.write(descriptor, b"1\n")
    finally:
        os.close(descriptor)
    while not (dump.exists() and dump.stat().st_size):
        if time.monotonic() > deadline_s:
            return {"not possible here": f"no {dump.name} within {_DUMP_S:.0f} s"}
        time.sleep(0.05)
    took_s = round(time.monotonic() - began_s, 2)
    # the file grows while it is written; without parsing, its end cannot be recognised
    time.sleep(0.5)
    return {"took_s": took_s, **_contents(dump.read_bytes())}


def _contents(raw: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {"bytes": len(raw)}
    try:
        table = _Inert(io.BytesIO(raw)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as error:
        return {**facts, "understood": f"no: {error}"}
    if not isinstance(table, dict):
        return {**facts, "understood": f"no: a {type(table).__name__}"}
    entries = table.get("entries")
    last = entries[-1] if isinstance(entries, list) and entries else None
    return {
        **facts,
        "version": table.get("version"),
        "keys": sorted(map(str, table)),
        "entries": len(entries) if isinstance(entries, list) else None,
        "last entry": json.loads(json.dumps(last, default=str)),
        "groups": json.loads(json.dumps(table.get("pg_config"), default=str)),
    }
