"""`kcover-ebpf logs FILE`: explains lines of a kernel or container log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from kcover_ebpf.api.job_rules import JobRule, of_table
from kcover_ebpf.api.log_report import JobRuleReading
from kcover_ebpf.cli.options import output_option
from kcover_ebpf.devices.catalog.files import load as load_catalog
from kcover_ebpf.errors import UsageError
from kcover_ebpf.logs import lines, rules
from kcover_ebpf.logs.job_rule_watch import JobRuleWatch
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.normal import NormalLines
from kcover_ebpf.logs.reader import LogReader, Match
from kcover_ebpf.output.formatting import printable
from kcover_ebpf.settings import read_table

if TYPE_CHECKING:
    from io import BufferedReader

_EXAMPLES = """
\b
Examples:
  dmesg | kcover-ebpf logs -
  kcover-ebpf logs /var/log/pods/ml_train-0_UID/train/0.log -o json
  kcover-ebpf logs crash.log --source container --rules own.toml

\b
Exit codes:
  0 the log was read to its end, with or without matches; 2 wrong usage
"""
_BLOCK_BYTES = 1 << 20
_SOURCES = {"auto": Source.UNKNOWN, "kernel": Source.KERNEL, "container": Source.CONTAINER}


@click.command(name="logs", epilog=_EXAMPLES)
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
    "--job-rules",
    "job_rules_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with rules of a job; also print which of them a container's log breaks, as of its last line.",
)
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with your own rules, tried first: TOML, or a node-problem-detector log monitor (.json).",
)
def logs(
    file: Path, output: str, source: str, job_rules_file: Path | None, rules_file: Path | None
) -> None:
    """Classify the lines of a kernel or container log FILE (- for standard input).

    Prints each line that matches a rule, with its meaning and advice. Lines in a kernel log that
    were written from user space are skipped: they may be forged.
    """
    reader = LogReader(rules.load(rules_file), load_catalog(), source=_SOURCES[source])
    expected = None
    if job_rules_file is not None:
        table = read_table(job_rules_file, "job rules")
        expected = _Expected(of_table(table, f"job rules {job_rules_file}"))
    show = _as_json if output == "json" else _as_text
    for match in _matches(reader, file, expected):
        click.echo(show(match))
    for reading in expected.readings() if expected is not None else ():
        click.echo(_rule_as_json(reading) if output == "json" else _rule_as_text(reading))


class _Expected:
    """Evaluates the rules of a job on a saved log, as of its last line with a time."""

    def __init__(self, expected: tuple[JobRule, ...]) -> None:
        self._lines, self._watch = NormalLines(), JobRuleWatch(expected)
        self._begun = False
        self._last_s = 0.0

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the log."""
        self._take(self._lines.feed(block))

    def finish(self) -> None:
        """Take the end of the log."""
        self._take(self._lines.finish())

    def _take(self, whole: bytes) -> None:
        for line in whole.splitlines():
            if (time_s := lines.time_s_of(line)) is None:
                continue
            if not self._begun:
                self._begun = True
                self._watch.begin(time_s)
            self._last_s = max(self._last_s, time_s)
        self._watch.feed(whole, self._last_s)

    def readings(self) -> list[JobRuleReading]:
        """Readings of the rules that are broken."""
        if not self._begun:
            raise UsageError("job rules need a log whose lines have times, as the kubelet keeps it")
        return [reading for reading in self._watch.readings(self._last_s) if reading.broken]


def _rule_as_json(reading: JobRuleReading) -> str:
    from kcover_ebpf.output.formatting import SCHEMA

    return json.dumps({"schema": SCHEMA, "job_rule": asdict(reading)}, ensure_ascii=True)


def _rule_as_text(reading: JobRuleReading) -> str:
    if reading.wrong_count:
        value = "no finite number" if reading.value is None else f"{reading.value:g}"
        return (
            f"job rule {reading.rule}: broken, {reading.wrong_count} numbers in a row are outside the limits; "
            f"the last is {value}"
        )
    since = (
        f"the last line came {reading.age_s:.0f} s before the end"
        if reading.age_s is not None
        else f"no line within {reading.started_age_s or 0.0:.0f} s"
    )
    return f"job rule {reading.rule}: broken, {since}"


def _matches(reader: LogReader, path: Path, expected: _Expected | None) -> Iterator[Match]:
    with ExitStack() as stack:
        try:
            stream = (
                cast("BufferedReader", sys.stdin.buffer)
                if str(path) == "-"
                else stack.enter_context(path.open("rb"))
            )
        except OSError as error:
            raise UsageError(f"cannot read the log {path}: {error.strerror}") from error
        # what is there: a pipe from `dmesg -w` never ends, and a fault in it must show at once
        while block := stream.read1(_BLOCK_BYTES):
            yield from reader.feed(block)
            if expected is not None:
                expected.feed(block)
        yield from reader.finish()
        if expected is not None:
            expected.finish()


def _as_json(match: Match) -> str:
    from kcover_ebpf.output.formatting import SCHEMA

    return json.dumps({"schema": SCHEMA, **asdict(match)}, ensure_ascii=True)


def _as_text(match: Match) -> str:
    head = f"{match.number}: {match.severity} {match.domain} {match.rule} ({match.concerns})"
    return f"{head}\n    {printable(match.line)}\n    means: {match.meaning}\n    do:    {match.advice}"
