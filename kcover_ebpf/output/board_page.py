"""The board of all jobs as one page of HTML: complete without a script, and bounded. Pure.

All text is escaped: names come from jobs, and texts from programs. In addition, its content security policy
(`HEADERS`) allows no script and no request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import time
from collections.abc import Iterator, Sequence

from kcover_ebpf.output.board_text import SIGNS
from kcover_ebpf.output.formatting import printable, span
from kcover_ebpf.output.job_board import BoardJob, BoardNode, Cell, Mark
from kcover_ebpf.tunables.cli import PAGE_EVERY_S

MOST_JOBS, MOST_CELLS, MOST_JOB_CELLS = 500, 10_000, 4_096
"""Limits of one page; the rest is only counted. 10,000 ranks that all wait are 1.5 MB."""
_NAMED_CELLS = 16
_WIDEST = 400
_STYLE = """
:root{color-scheme:light dark;font:14px/1.4 system-ui,sans-serif}body{margin:1.5rem;max-width:110rem}
h1{font-size:1.2rem}h2{font-size:1rem;margin:1.4rem 0 .2rem}p{margin:.2rem 0}code{font-size:.9em}
table{border-collapse:collapse;margin:.3rem 0}th{font-weight:400;text-align:left;padding:0 1rem 0 0;vertical-align:top}
td{font-family:monospace;word-break:break-all}b{font-weight:400;padding:0 .15em;margin:0 .1em;display:inline-block}
.m0{background:#b00020;color:#fff;font-weight:700}.m1{background:#7a1f1f;color:#fff}.m2{background:#ffd98a;color:#222}
.m3{background:#d9c2f0;color:#222}.m4{background:#bfe6ef;color:#222}.m5{background:#cdeccd;color:#222}
.soft{opacity:.75}
"""
HEADERS = (
    ("Content-Type", "text/html; charset=utf-8"),
    (
        "Content-Security-Policy",
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-"
        + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
        + "'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
_WORDS = {
    Mark.CULPRIT: "culprit",
    Mark.STOPPED: "stopped",
    Mark.WAITS: "waits",
    Mark.UNKNOWN: "not reported",
    Mark.STARTS: "starts",
    Mark.TRAINS: "trains",
}


def page_of(jobs: Sequence[BoardJob], now_s: float) -> str:
    """The page; `now_s`: unix seconds of the shown state. Jobs with a fault come first."""
    bad = sum(not job.is_well for job in jobs)
    moment = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_s))
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="refresh" content="{PAGE_EVERY_S:.0f}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{bad} of {len(jobs)} jobs with a fault - kcover-ebpf</title><style>{_STYLE}</style></head><body>",
            f"<h1>{len(jobs)} jobs, {bad} with a fault or of unknown health</h1>",
            f'<p class="soft">{moment}, again every {PAGE_EVERY_S:.0f} s. {_legend()}</p>',
            *_jobs(jobs),
            "</body></html>\n",
        )
    )


def _legend() -> str:
    return " ".join(f'<b class="m{mark.value}">{SIGNS[mark]}</b> {_WORDS[mark]}' for mark in Mark)


def _jobs(jobs: Sequence[BoardJob]) -> Iterator[str]:
    left, shown = MOST_CELLS, 0
    for job in jobs[:MOST_JOBS]:
        if left <= 0:
            break
        cells = sum(len(node.cells) for node in job.nodes)
        yield from _job(job, cells, min(left, MOST_JOB_CELLS))
        left -= min(cells, MOST_JOB_CELLS)
        shown += 1
    if shown < len(jobs):
        yield f'<p class="soft">and {len(jobs) - shown} more jobs</p>'


def _job(job: BoardJob, cells: int, most_cells: int) -> Iterator[str]:
    name = _text(f"{job.namespace}/{job.name}")
    yield f"<h2>{name} <span class=soft>{_text(job.kind)}, {cells} ranks on {len(job.nodes)} nodes</span> "
    yield f"{_text(job.state)}</h2>"
    if job.text:
        yield f"<p>{_text(job.text)}</p>"
    if job.incident is not None:
        asked = f"kubectl kcover explain {job.incident} -n {job.namespace}"
        yield f"<p class=soft>next: <code>{_text(asked)}</code></p>"
    yield "<table>"
    left = most_cells
    for node in job.nodes:
        if left <= 0:
            break
        yield _row(node, left)
        left -= len(node.cells)
    yield "</table>"
    if cells > most_cells:
        yield f'<p class="soft">and {cells - most_cells} more ranks</p>'


def _row(node: BoardNode, most_cells: int) -> str:
    is_named = len(node.cells) <= _NAMED_CELLS
    cells = "".join(_cell(cell, is_named=is_named) for cell in node.cells[:most_cells])
    return f"<tr><th scope=row>{_text(node.node)}</th><td>{cells}</td></tr>"


def _cell(cell: Cell, *, is_named: bool) -> str:
    words = f"{cell.name}: {_WORDS[cell.mark]}"
    if cell.age_s is not None:
        words += f", no progress for {span(cell.age_s)}, {cell.doing}"
    shown = f"{_text(cell.name)}{SIGNS[cell.mark]}" if is_named else SIGNS[cell.mark]
    return f'<b class="m{cell.mark.value}" title="{_text(words)}">{shown}</b>'


def _text(words: str) -> str:
    """Text escaped for an element or a quoted attribute; control and direction characters are made visible."""
    return html.escape(printable(words)[:_WIDEST], quote=True)
