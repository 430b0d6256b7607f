"""`kcover-ebpf collectives`: finds late ranks and slow links in the files that NCCL Inspector wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kcover_ebpf.cli.options import output_option
from kcover_ebpf.collectives.inspector import folder
from kcover_ebpf.collectives.inspector.findings import slow_in
from kcover_ebpf.collectives.inspector.folder import InspectorRead
from kcover_ebpf.errors import CannotObserve, UsageError
from kcover_ebpf.facts.inspector import SlowCollective
from kcover_ebpf.ids import Pid

_EXAMPLES = """
\b
Examples:
  kcover-ebpf collectives /var/log/nccl-inspector
  kcover-ebpf collectives --pid 4711 --pid 4712 -o json

\b
Exit codes:
  0 nothing is slow; 1 something is; 2 wrong usage; 3 the files contain too little data
"""
_FOUND = 1


@click.command(name="collectives", epilog=_EXAMPLES)
@click.argument(
    "folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(path_type=Path, file_okay=False)
)
@click.option(
    "--pid",
    "pids",
    multiple=True,
    type=click.IntRange(min=1),
    help="Read the folder to which NCCL Inspector writes in this process; may be repeated.",
)
@output_option("json: one object for each finding.")
def collectives(folders: tuple[Path, ...], pids: tuple[int, ...], output: str) -> int:
    """Find the rank that is late, and the groups and hosts whose links are slow.

    Reads what NCCL Inspector (NCCL's profiler plug-in) wrote to each FOLDER.
    """
    if not folders and not pids:
        raise UsageError(
            "name a folder of NCCL Inspector's files, or --pid of a rank that writes them"
        )
    reads = [_read(path) for path in folders] + [_of_process(Pid(pid)) for pid in pids]
    found_runs = [run for one in reads for run in one.runs]
    if not found_runs:
        files = sum(one.file_count for one in reads)
        raise CannotObserve(f"no collective is recorded in {files} files: does NCCL Inspector run?")
    found = slow_in(found_runs)
    for slow in found:
        click.echo(json.dumps(as_json(slow)) if output == "json" else as_text(slow))
    if output == "text":
        click.echo(_summary(reads, len(found_runs), len(found)))
    return _FOUND if found else 0


def _read(path: Path) -> InspectorRead:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return _closed(descriptor)


def _of_process(pid: Pid) -> InspectorRead:
    return _closed(folder.opened_by(pid))


def _closed(descriptor: int) -> InspectorRead:
    try:
        return folder.read(descriptor)
    finally:
        os.close(descriptor)


def as_json(slow: SlowCollective) -> dict[str, Any]:
    """The stable JSON form of a finding; durations are seconds."""
    from kcover_ebpf.output.formatting import SCHEMA

    return {
        "schema": SCHEMA,
        "finding": slow.kind.value,
        "communicator": slow.communicator,
        "collective": slow.collective,
        "bytes": slow.message_bytes,
        "ranks_of_group": slow.rank_count,
        "operations": slow.count,
        "lasts_s": slow.lasts_s,
        "usual_s": slow.usual_s,
        "members": [
            {
                "rank": member.rank,
                "job_rank": member.job_rank,
                "host": member.host,
                "pid": member.pid,
            }
            for member in slow.members
        ],
        "hosts": list(slow.hosts),
    }


def as_text(slow: SlowCollective) -> str:
    """A finding as one readable line."""
    from kcover_ebpf.output.formatting import printable

    return printable(slow.text)


def _summary(reads: Sequence[InspectorRead], run_count: int, found_count: int) -> str:
    files, bad = sum(one.file_count for one in reads), sum(one.bad_count for one in reads)
    left_out = sum(one.left_out for one in reads)
    words = [f"{found_count} findings in {run_count} records of {files} files"]
    words += [f"{bad} lines could not be read"] if bad else []
    words += [f"{left_out} files were left out"] if left_out else []
    return "; ".join(words)
