"""`kcover-ebpf logs FILE`: what a kernel or container log says, line by line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click

from kcover_ebpf.cli.options import output_option
from kcover_ebpf.errors import UsageError
from kcover_ebpf.hardware.catalog.files import load as load_catalog
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.reader import LogReader, Match
from kcover_ebpf.output.formatting import printable

_BLOCK_BYTES = 1 << 20
_SOURCES = {"auto": Source.UNKNOWN, "kernel": Source.KERNEL, "container": Source.CONTAINER}


@click.command(name="logs")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@output_option("json: one object for each match.")
@click.option(
    "--source",
    type=click.Choice(list(_SOURCES)),
    default="auto",
    show_default=True,
    help="Source of lines without a dmesg, journal or container runtime prefix.",
)
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Your own rules, tried first: TOML, or a node-problem-detector log monitor (.json).",
)
def logs(file: Path, output: str, source: str, rules_file: Path | None) -> None:
    """Classify the lines of a kernel or container log FILE (- for standard input).

    Prints each line that matches a rule, with its meaning and advice. Lines in a kernel log that
    were written from user space are skipped: they may be forged.
    """
    reader = LogReader(rules.load(rules_file), load_catalog(), bare_lines=_SOURCES[source])
    show = _as_json if output == "json" else _as_text
    for match in _matches(reader, file):
        click.echo(show(match))


def _matches(reader: LogReader, path: Path) -> Iterator[Match]:
    with ExitStack() as stack:
        try:
            stream: BinaryIO = (
                sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
            )
        except OSError as error:
            raise UsageError(f"cannot read the log {path}: {error.strerror}") from error
        while block := stream.read(_BLOCK_BYTES):
            yield from reader.feed(block)
        yield from reader.finish()


def _as_json(match: Match) -> str:
    from kcover_ebpf.output.formatting import SCHEMA

    return json.dumps({"schema": SCHEMA, **asdict(match)}, ensure_ascii=True)


def _as_text(match: Match) -> str:
    head = f"{match.number}: {match.severity} {match.domain} {match.rule} ({match.concerns})"
    return f"{head}\n    {printable(match.line)}\n    means: {match.meaning}\n    do:    {match.advice}"
