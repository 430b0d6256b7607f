"""The board of all jobs as lines for a terminal, with or without colours, or as lines about changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from kcover_ebpf.output.formatting import printable, span
from kcover_ebpf.output.job_board import BoardJob, BoardNode, Cell, Mark

SIGNS = {
    Mark.CULPRIT: "!",
    Mark.STOPPED: "x",
    Mark.WAITS: "~",
    Mark.UNKNOWN: "?",
    Mark.STARTS: ":",
    Mark.TRAINS: ".",
}
LEGEND = "! culprit  x stopped  ~ waits  ? not reported  : starts  . trains"
_COLOURS = {
    Mark.CULPRIT: "\x1b[1;97;41m",
    Mark.STOPPED: "\x1b[31m",
    Mark.WAITS: "\x1b[33m",
    Mark.UNKNOWN: "\x1b[35m",
    Mark.STARTS: "\x1b[36m",
    Mark.TRAINS: "\x1b[32m",
}
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_NAMED_CELLS = 16
"""Up to this many ranks of a node are shown by number; more are shown as one sign each."""
_BESIDE_ROWS = 4
"""Lines of a job in addition to those of its nodes."""
_MOST_WELL = 2
"""The most fault-free nodes that are shown of a job with a fault."""


def lines_of(
    jobs: Sequence[BoardJob], width: int, height: int | None = None, *, colours: bool = False
) -> list[str]:
    """The board; `width` and `height` in characters, None: unlimited.

    If there is too little room, fault-free nodes and then fault-free jobs are counted instead of shown.
    """
    bad = sum(not job.is_well for job in jobs)
    head = f"{len(jobs)} jobs, {bad} with a fault or of unknown health   {LEGEND}"
    lines = [head[:width], ""]
    room = None if height is None else max(height - len(lines) - 1, 1)
    shown = 0
    for index, job in enumerate(jobs):
        block = list(_block(job, width, _rows(jobs[index:], room), colours=colours))
        if room is not None:
            if room <= 0:
                break
            block = block[:room]
            room -= len(block)
        lines += block
        shown += 1
    if shown < len(jobs):
        lines.append(f"and {len(jobs) - shown} more jobs")
    return lines


def _rows(left: Sequence[BoardJob], room: int | None) -> int | None:
    """Lines that nodes of the first of these jobs may take, so that each job with a fault keeps its two lines."""
    if room is None:
        return None
    others = sum(2 for job in left[1:] if not job.is_well)
    return max(1, room - _BESIDE_ROWS - others)


def lines_of_one(job: BoardJob, width: int, height: int, *, colours: bool = False) -> list[str]:
    """One job with all its ranks, even if it is healthy, as lines for a terminal; sizes in characters."""
    found = list(_block(job, width, max(height - _BESIDE_ROWS - 1, 1), colours=colours, whole=True))
    return [*found[: height - 1], LEGEND[:width]]


def _block(
    job: BoardJob, width: int, rows: int | None, *, colours: bool, whole: bool = False
) -> Iterator[str]:
    cells = sum(len(node.cells) for node in job.nodes)
    nodes = f" on {len(job.nodes)} nodes" if job.namespace else ""
    name = f"{job.namespace}/{job.name}" if job.namespace else job.name
    title = printable(f"{name} {job.kind}  {cells} ranks{nodes}  {job.state}")[:width]
    yield f"{_BOLD}{title}{_PLAIN}" if colours and not job.is_well else title
    if job.is_well and not whole:
        return
    if job.text:
        yield f"  {printable(job.text)}"[:width]
    if (oldest := _oldest(job)) is not None:
        yield f"  {printable(oldest)}"[:width]
    bad = [node for node in job.nodes if node.order[0] < Mark.STARTS]
    well = job.nodes[len(bad) :][: None if whole else _MOST_WELL]
    shown = [*bad, *well][: rows if rows is not None else None]
    label = max((len(node.node) for node in shown), default=0)
    for node in shown:
        yield _row(node, label, width, colours=colours)
    if (left := len(job.nodes) - len(shown)) > 0:
        yield f"  and {left} more rows" if whole else f"  and {left} more nodes"


def _oldest(job: BoardJob) -> str | None:
    """The culprit, else the rank that has waited longest, and since when it makes no progress."""
    aged = [cell for node in job.nodes for cell in node.cells if cell.age_s is not None]
    if not aged:
        return None
    worst = min(aged, key=lambda cell: (cell.mark is not Mark.CULPRIT, -(cell.age_s or 0.0)))
    who = "culprit" if worst.mark is Mark.CULPRIT else "longest"
    return f"{who}: {worst.name}, no progress for {span(worst.age_s or 0.0)}, {worst.doing}"


def _row(node: BoardNode, label: int, width: int, *, colours: bool) -> str:
    named = len(node.cells) <= _NAMED_CELLS
    start = f"  {printable(node.node).ljust(label)}  "
    used, parts = len(start), [start]
    for cell in node.cells:
        text = f"{printable(cell.name)}{SIGNS[cell.mark]}" if named else SIGNS[cell.mark]
        gap = " " if named else ""
        if used + len(text) + len(gap) > width:
            break
        used += len(text) + len(gap)
        parts.append(f"{_COLOURS[cell.mark]}{text}{_PLAIN}{gap}" if colours else text + gap)
    return "".join(parts).rstrip()


def changes(before: Iterable[BoardJob], now: Iterable[BoardJob]) -> list[str]:
    """One line for each job whose state changed, for output that is not a terminal."""
    known = {(job.namespace, job.name): _said(job) for job in before}
    lines = []
    for job in now:
        said = known.pop((job.namespace, job.name), None)
        if said != _said(job):
            culprits = [
                cell.name for node in job.nodes for cell in node.cells if cell.mark is Mark.CULPRIT
            ]
            who = f" culprit {', '.join(culprits)}" if culprits else ""
            lines.append(f"{job.namespace}/{job.name} {job.state}{who}  {job.text}".rstrip())
    lines += [f"{namespace}/{name} is gone" for namespace, name in known]
    return [printable(line) for line in lines]


def _said(job: BoardJob) -> tuple[object, ...]:
    return job.state, job.incident, _culprits(job)


def _culprits(job: BoardJob) -> tuple[Cell, ...]:
    return tuple(
        Cell(cell.name, cell.mark)
        for node in job.nodes
        for cell in node.cells
        if cell.mark is Mark.CULPRIT
    )


def object_of(job: BoardJob) -> dict[str, Any]:
    """The job as JSON; the mark of a rank is a word."""
    raw = asdict(job)
    for node in raw["nodes"]:
        for cell in node["cells"]:
            cell["mark"] = Mark(cell["mark"]).name.lower()
    return raw
