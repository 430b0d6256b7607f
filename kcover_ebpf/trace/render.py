"""Displays the records of a trace as text or Markdown, whether live, from another node or from a file. Pure."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

from kcover_ebpf.model.traced import Stack
from kcover_ebpf.output import formatting
from kcover_ebpf.trace import grouping, tcp_connections
from kcover_ebpf.trace.records import Conclusion, Line, TracedThread, TraceHeader
from kcover_ebpf.views import stack_tree as all_stacks
from kcover_ebpf.views.rank_numbers import ranks_text

_TITLES = ("RANK", "ROLE", "PID/TID", "NAME", "S", "FOR", "CPU", "WAITS IN")
_MOST_SIDE_ROWS = 20
_MOST_EDGES = 12
_FEW_RANKS = 4
"""Fewer ranks than this are compared without a tree."""
_FRAMES = {"python": 12, "native": 10, "kernel": 8}


class TextView:
    """Prints each record as it arrives: the table first, the verdict last."""

    def __init__(self, *, every_thread: bool = False) -> None:
        self._every, self._shown = every_thread, False

    def show(self, line: Line) -> list[str]:
        """Lines to print for one record."""
        if line.header is not None:
            return [title(line.header, line.time_s)]
        if line.event == "threads":
            # the second table of a run differs only in CPU shares, and would scroll the first one away
            if self._shown:
                return []
            self._shown = True
            return [*table(line.rows, every_thread=self._every), ""]
        if line.event == "stacks":
            return [*stacks(line.stacks), *stack_tree(line.stacks)]
        if line.conclusion is not None:
            return [*connections(line.conclusion), *conclusion(line.conclusion)]
        return []


class LiveView:
    """A screen that is redrawn at each table and verdict."""

    def __init__(self, *, every_thread: bool = False) -> None:
        self._every = every_thread
        self._title, self._table, self._end = "", [""], ["tracing ..."]

    def show(self, line: Line) -> list[str]:
        """The whole screen; empty if nothing changed."""
        if line.header is not None:
            self._title = title(line.header, line.time_s)
            return []
        if line.event == "threads":
            self._table = table(line.rows, every_thread=self._every)
        elif line.conclusion is not None:
            self._end = conclusion(line.conclusion)
        else:
            return []
        clock = time.strftime("%H:%M:%S", time.localtime(line.time_s))
        return [f"{self._title}, now {clock}", *self._table, "", *self._end]


class MarkdownView:
    """A report to paste into an issue, written when the trace ends."""

    def __init__(self, *, every_thread: bool = False) -> None:
        self._every = every_thread
        self._first_line: Line | None = None
        self._rows: Sequence[TracedThread] = ()
        self._stacks: Sequence[Stack] = ()
        self._conclusion: Conclusion | None = None

    def show(self, line: Line) -> list[str]:
        """Nothing before the last record; then the report."""
        match line.event:
            case "trace":
                self._first_line = line
            case "threads":
                self._rows = line.rows
            case "stacks":
                self._stacks = line.stacks
            case "verdict":
                self._conclusion = line.conclusion
            case _:
                return self._text()
        return []

    def _text(self) -> list[str]:
        found_conclusion = self._conclusion
        lines = []
        if self._first_line is not None and self._first_line.header is not None:
            lines += [f"## {title(self._first_line.header, self._first_line.time_s)}", ""]
        if found_conclusion is not None:
            lines += [
                f"**{found_conclusion.headline}**",
                "",
                *fenced(conclusion(found_conclusion)[1:]),
            ]
        lines += ["### Threads", "", *fenced(table(self._rows, every_thread=self._every))]
        if self._stacks:
            lines += ["### Frames", "", *fenced(stacks(self._stacks))]
            if tree := stack_tree(self._stacks):
                lines += ["### Frames by rank", "", *fenced(tree)]
        if found_conclusion is not None and found_conclusion.edges:
            lines += ["### Connections", "", *fenced(tcp_connections.table(found_conclusion.edges))]
        return lines


def fenced(lines: Sequence[str]) -> list[str]:
    """Lines as a block of code, whatever characters they contain."""
    return ["~~~~~~", *lines, "~~~~~~", ""]


def merged(lines: Iterable[Line]) -> str:
    """The whole trace as one JSON object: the verdict's, with the threads and stacks."""
    fields: dict[str, object] = {}
    threads: object = []
    found: object = []
    for line in lines:
        if line.event == "threads":
            threads = line.fields["threads"]
        elif line.event == "stacks":
            found = line.fields["stacks"]
        elif line.event == "verdict":
            fields = dict(line.fields)
    whole = fields | {"threads": threads, "stacks": found}
    return json.dumps(whole, allow_nan=False, separators=(",", ":"))


def title(header: TraceHeader, time_s: float) -> str:
    """What was observed, where and when."""
    place = header.node or header.host
    pods = f" ({', '.join(header.pods)})" if header.pods else ""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    return formatting.printable(f"{header.job}{pods} on {place}, {clock}")


def table(rows: Sequence[TracedThread], *, every_thread: bool = False) -> list[str]:
    """The threads of interest, identical waits in one line, the odd one out first."""
    if every_thread:
        return _aligned([_cells([row]) for row in rows])
    by_tid = {row.tid: row for row in rows}
    leads = [row for row in rows if row.lead and row.role != "helper"]
    leads = leads or [row for row in rows if row.lead]
    holders = grouping.lock_holders(rows)
    sides = [row for row in rows if row not in leads]
    notable = [row for row in sides if row.tid in holders or grouping.interesting(row, by_tid)]
    shown = grouping.together(leads, grouping.wait_key)
    shown += grouping.together(notable, grouping.wait_key)[:_MOST_SIDE_ROWS]
    counted = {(row.pid, row.tid) for group in shown for row in group}
    rest = [row for row in rows if (row.pid, row.tid) not in counted]
    return [*_aligned([_cells(group) for group in shown]), *_rest(rest)]


def _aligned(cells: list[tuple[str, ...]]) -> list[str]:
    return formatting.aligned([_TITLES, *cells]) if cells else ["no threads"]


def _cells(group: Sequence[TracedThread]) -> tuple[str, ...]:
    first = group[0]
    number = str(first.pid) if first.lead else f"{first.pid}/{first.tid}"
    number += f" +{len(group) - 1}" if len(group) > 1 else ""
    spans = [row.since_s for row in group if row.since_s is not None]
    shares = [row.cpu_share for row in group if row.cpu_share is not None]
    pods = sorted({row.pod for row in group if row.pod})
    return (
        ranks_text([row.rank for row in group]),
        first.role if first.lead else f"{first.role} thread",
        number,
        first.comm if len({row.comm for row in group}) == 1 else f"{first.comm}, ...",
        first.state,
        _spans(spans),
        _percent(shares),
        first.text + (f"  in {', '.join(pods[:3])}" if len(pods) > 1 else ""),
    )


def _spans(spans: Sequence[float]) -> str:
    if not spans:
        return "-"
    low, high = formatting.span(min(spans)), formatting.span(max(spans))
    return low if low == high else f"{low}-{high}"


def _percent(shares: Sequence[float]) -> str:
    return f"{100 * max(shares):.0f}%" if shares else "-"


def _rest(rows: Sequence[TracedThread]) -> list[str]:
    if not rows:
        return []
    kinds = grouping.together(rows, lambda row: row.call or "running")
    names = [f"{len(group)} in {group[0].call or 'user space'}" for group in reversed(kinds)]
    more = "" if len(names) <= 6 else ", ..."
    return [f"and {len(rows)} other threads: {', '.join(names[:6])}{more}  (--all shows them)"]


def stacks(found: Sequence[Stack]) -> list[str]:
    """The frames of the threads of interest, identical ones once, the odd one out first."""
    lines = []
    for group in grouping.together(found, grouping.stack_key):
        first = group[0]
        if not (first.python or first.native or first.kernel):
            continue
        who = ranks_text([stack.rank for stack in group])
        named = f"rank {who}" if len(group) == 1 else f"ranks {who}"
        where = f"{'' if who == '-' else named + ': '}thread {first.tid}"
        where += f" and {len(group) - 1} more at the same place" if len(group) > 1 else ""
        lines.append(where)
        for kind, most in _FRAMES.items():
            frames: tuple[str, ...] = getattr(first, kind)
            lines += _frames(kind, frames, most)
        lines.append("")
    return [formatting.printable(line) for line in lines]


def stack_tree(found: Sequence[Stack]) -> list[str]:
    """Where the ranks diverge, as one tree of their frames; no lines if they do not, or there are few of them."""
    tree = all_stacks.tree_of(stack for stack in found if stack.rank is not None)
    if len(tree.stacks) < _FEW_RANKS or len(tree.groups) < 2:
        return []
    head = f"the frames of {len(tree.stacks)} threads as one tree, and the ranks in them:"
    return [head, *(f"  {formatting.printable(line)}" for line in all_stacks.as_text(tree)), ""]


def _frames(kind: str, frames: Sequence[str], most: int) -> list[str]:
    if not frames:
        return []
    labels = [kind, *[""] * (len(frames) - 1)]
    lines = [f"  {label:7} {frame}" for label, frame in zip(labels, frames, strict=True)][:most]
    more = len(frames) - most
    return lines + ([f"          ... {more} more"] if more > 0 else [])


def connections(found_conclusion: Conclusion) -> list[str]:
    """The stuck connections; the others are only counted."""
    stuck = [connection for connection in found_conclusion.edges if connection.is_queued]
    rest = len(found_conclusion.edges) - min(len(stuck), _MOST_EDGES)
    lines = tcp_connections.table(stuck[:_MOST_EDGES])
    if not found_conclusion.edges:
        return []
    if rest:
        what = "other connections" if stuck else "connections, nothing queued on any"
        lines.append(f"{rest} {what}")
    return [*lines, ""]


def conclusion(found_conclusion: Conclusion) -> list[str]:
    """The verdict with its evidence, doubts, what was not observed, and the next step."""
    lines = [
        found_conclusion.headline,
        *(f"  {reason}" for reason in found_conclusion.reasons if reason.startswith("- ")),
    ]
    lines += [
        f"  {reason}"
        for reason in found_conclusion.reasons
        if not reason.startswith(("- ", "not observed"))
    ]
    blind = found_conclusion.verdict.get("unobserved", [])
    if isinstance(blind, list) and blind:
        lines.append(f"  not observable: {'; '.join(map(str, blind))}")
    if found_conclusion.doubt:
        lines.append(f"  doubt: {'; '.join(found_conclusion.doubt)}")
    if found_conclusion.next_step:
        lines.append(f"  next: {found_conclusion.next_step}")
    return [formatting.printable(line) for line in lines]
