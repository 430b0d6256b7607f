"""Writes docs/bench/fuzz.md, and .bench/data/fuzz.json, of which it is made."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata

from tests.fuzz.campaign import INPUT_S, MEMORY_MB, ROOT, Result
from tests.fuzz.one import TARGETS

_TABLE, _RAW = ROOT / "docs/bench/fuzz.md", ROOT / ".bench/data/fuzz.json"
_PAGE = """\
# Fuzzing

<!-- Written by `python -m tests.fuzz --report`. -->

Every parser of bytes or text under coverage-guided fuzzing ([how](../fuzzing.md)): {count} targets,
{minutes:.0f} minutes of wall time and {cpu:.0f} of CPU time in total, {executions:,} inputs, {crashes}.
One input may take {input_s} s and the process {memory_mb} MB; the largest was {peak_mb} MB.
{date}, {machine}, Python {python}, atheris {atheris}, at low priority beside other work.

| target | bound (bytes) | wall (s) | CPU (s) | inputs | edges | corpus | peak (MB) | crash |
|---|---|---|---|---|---|---|---|---|
"""


def write(results: Sequence[Result]) -> None:
    """Both files; the page has one row for each target."""
    crashed = [result for result in results if result.crash]
    about = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "atheris": metadata.version("atheris"),
    }
    table = {**about, "targets": [asdict(result) for result in results]}
    _RAW.parent.mkdir(parents=True, exist_ok=True)
    _RAW.write_text(json.dumps(table, indent=1) + "\n")
    head = _PAGE.format(
        **about,
        count=len(results),
        minutes=sum(result.seconds for result in results) / 60,
        cpu=sum(result.cpu_s for result in results) / 60,
        executions=sum(result.executions for result in results),
        crashes=f"{len(crashed)} crashes" if crashed else "no crash",
        input_s=INPUT_S,
        memory_mb=MEMORY_MB,
        peak_mb=max(result.peak_mb for result in results),
    )
    _TABLE.write_text(head + "".join(map(_row, results)))


def _row(result: Result) -> str:
    bound = TARGETS[result.name].most_bytes
    crash = result.crash.replace("|", "/") or "none"
    return (
        f"| `{result.name}` | {bound:,} | {result.seconds} | {result.cpu_s:.0f} | {result.executions:,} | {result.edges} "  # noqa: E501
        f"| {result.corpus_count} | {result.peak_mb} | {crash} |\n"
    )
