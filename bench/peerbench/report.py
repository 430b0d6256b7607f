"""Tables and chart of the comparison with other tools, from its result files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.faultbench.plots import frame, text, x_of
from bench.peerbench.attempt import FAULTS
from bench.peerbench.figures import Record, typical
from bench.peerbench.ways import WAYS
from tools.pages import ROOT, data_file

SVG = ROOT / "docs/bench/peers.svg"
ROW, TOP = 18, 50
COLOURS = dict(zip(WAYS, ("#8a8a8a", "#c46210", "#4b8b3b", "#8e2a5b", "#1b6ca8"), strict=True))


def seconds(value: float | None) -> str:
    """For a table."""
    return "never" if value is None else f"{value:.1f}"


def cell(rows: Sequence[Record]) -> str:
    """Noticed / right rank named / trains again, medians in seconds."""
    if not rows:
        return "-"
    if FAULTS[rows[0]["fault"]].is_quiet:
        ended = sum(row["ended_healthy"] for row in rows)
        return f"**ended {ended} of {len(rows)}**" if ended else "left alone"
    wrong = sum(row["named_wrong"] for row in rows)
    named = typical(rows, "named_s")
    name = f"wrong {wrong} of {len(rows)}" if wrong and named is None else seconds(named)
    return f"{seconds(typical(rows, 'detected_s'))} / {name} / {seconds(typical(rows, 'again_s'))}"


def table(records: Sequence[Record]) -> str:
    """A line for each fault, a column for each way."""
    ways = [way for way in WAYS if any(record["way"] == way for record in records)]
    lines = ["| fault | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for fault in FAULTS.values():
        cells = [
            cell(
                [
                    record
                    for record in records
                    if (record["way"], record["fault"]) == (way, fault.name)
                ]
            )
            for way in ways
        ]
        if any(text != "-" for text in cells):
            lines.append(f"| {fault.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def costs(records: Sequence[Record], daemons: Sequence[Record]) -> str:
    """CPU and memory of each way, and of the daemons."""
    lines = ["| way | CPU, % of a core | resident, MB |", "|---|---|---|"]
    for way in WAYS.values():
        rows = [record for record in records if record["way"] == way.name]
        if not rows or not (way.watcher or way.prefix):
            continue
        lines.append(
            _cost(way.title, typical(rows, "cores"), max(row["resident_bytes"] for row in rows))
        )
    lines += [_cost(daemon["way"], daemon["cores"], daemon["resident_bytes"]) for daemon in daemons]
    return "\n".join(lines)


def _cost(title: str, cores: float | None, resident: float) -> str:
    return f"| {title} | {100 * (cores or 0):.2f} | {resident / 1e6:.0f} |"


def chart(records: Sequence[Record]) -> str:
    """Until the job trains again, a bar for each fault and way, as SVG."""
    parts, y = [], float(TOP)
    for fault in FAULTS.values():
        if fault.is_quiet:
            continue
        y += ROW / 2
        parts.append(text(8, y + ROW, fault.title.split(" from ")[0][:34]))
        for way, colour in COLOURS.items():
            rows = [
                record
                for record in records
                if (record["way"], record["fault"]) == (way, fault.name)
            ]
            again_s = typical(rows, "again_s") if rows else None
            y += ROW
            if rows:
                end, words = (
                    (x_of(100.0), f"{way}: never")
                    if again_s is None
                    else (x_of(again_s), f"{way}: {again_s:.0f} s")
                )
                light = ' fill-opacity="0.25"' if again_s is None else ""
                left = x_of(0.03)
                place = f'x="{left}" y="{y - 12}" width="{end - left:g}" height="13"'
                parts.append(f'<rect {place} fill="{colour}"{light}/>')
                parts.append(text(left + 6, y - 2, words))
    return frame(y + 40, "From the fault until all ranks train again (median)", parts, y + 6)


def words_of(daemons: Sequence[Record]) -> str:
    """What the daemons reported."""
    lines = []
    for daemon in daemons:
        found = "; ".join(sorted(set(daemon["reported"]))) or "nothing"
        unasked = (
            f" (it could not be asked at the end: {daemon['problem']})" if daemon["problem"] else ""
        )
        lines.append(f"- {daemon['way']}, {daemon['hours']} hours: {found}{unasked}")
    return "\n".join(lines)


def write(results: Path) -> int:
    """Write the lines and docs/bench/peers.svg, and print the tables for peers.md; 2 without results."""
    found: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in sorted(results.glob("*.json"))
    ]
    records = [entry for entry in found if "fault" in entry]
    if not records:
        print(f"peerbench: no results in {results}; run tools/peerbench/run first", file=sys.stderr)
        return 2
    daemons = [entry for entry in found if "fault" not in entry]
    lines = "".join(json.dumps(entry) + "\n" for entry in found)
    data_file("peers.jsonl").write_text(lines)
    SVG.write_text(chart(records))
    print(table(records), costs(records, daemons), words_of(daemons), sep="\n\n")
    return 0
