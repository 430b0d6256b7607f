"""Positions of the shapes in the page's drawings; only numbers, the template has the text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.views.rank_grid import CellState, GridRow, RankCell, RankGrid
from kcover_ebpf.views.timeline import TimelineEvent
from kcover_ebpf.views.wait_graph import GraphEdge, GraphGroup, WaitGraph

_BIG, _BIG_HEIGHT, _LABEL, _GAP = 58, 34, 150, 4
_SMALL, _SMALL_ROW = 7, 128
"""Map of a large job: pixels per cell, cells per row."""
_FEW_ROWS = 40
_BOX, _BOX_HEIGHT, _COLUMN, _LINE = 220, 40, 300, 56
_LANE, _WIDE, _LANE_LABEL = 26, 860, 92


@dataclass(frozen=True, slots=True)
class CellBox:
    """Position, state and label of one rank."""

    cell: RankCell
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class RowBox:
    """Position of one node and its ranks."""

    row: GridRow
    y: int
    cells: tuple[CellBox, ...]


@dataclass(frozen=True, slots=True)
class GridDrawing:
    """One row per node, with every rank named."""

    width: int
    height: int
    rows: tuple[RowBox, ...]
    left_out_count: int = 0
    """Number of rows (nodes) that are not drawn."""
    cell_width: int = _BIG - _GAP
    cell_height: int = _BIG_HEIGHT - _GAP


def grid_drawing(rows: Sequence[GridRow], per_line: int = 16) -> GridDrawing:
    """`per_line`: most ranks of one node next to each other; the others follow below."""
    boxes, y, widest = [], 0, 1
    for row in rows[:_FEW_ROWS]:
        shown = row.cells[: 4 * per_line]
        cells = tuple(
            CellBox(cell, _LABEL + _BIG * (place % per_line), y + _BIG_HEIGHT * (place // per_line))
            for place, cell in enumerate(shown)
        )
        widest = max(widest, min(per_line, len(shown)))
        boxes.append(RowBox(row, y, cells))
        y += _BIG_HEIGHT * max(1, -(-len(shown) // per_line)) + 2
    return GridDrawing(_LABEL + widest * _BIG, max(y, 1), tuple(boxes), len(rows) - len(boxes))


@dataclass(frozen=True, slots=True)
class RankMap:
    """All ranks of a large job by number, with one SVG path per state."""

    width: int
    height: int
    paths: tuple[tuple[CellState, int, str], ...]
    """(state, number of ranks, path data)."""
    per_row: int = _SMALL_ROW


def rank_map(grid: RankGrid) -> RankMap:
    """One small square per rank; adjacent ranks with the same state form one rectangle."""
    runs: dict[CellState, list[str]] = {}
    counts: dict[CellState, int] = {}
    cells = grid.cells
    for begin in range(0, len(cells), _SMALL_ROW):
        row = cells[begin : begin + _SMALL_ROW]
        y, place = _SMALL * (begin // _SMALL_ROW), 0
        while place < len(row):
            state, first = row[place].state, place
            while place < len(row) and row[place].state is state:
                place += 1
            length = place - first
            counts[state] = counts.get(state, 0) + length
            width = _SMALL * length - 1
            runs.setdefault(state, []).append(
                f"M{_SMALL * first} {y}h{width}v{_SMALL - 1}h-{width}z"
            )
    height = _SMALL * -(-len(cells) // _SMALL_ROW)
    paths = tuple(
        (state, counts[state], "".join(runs[state])) for state in CellState if state in runs
    )
    return RankMap(_SMALL * _SMALL_ROW, max(height, 1), paths)


@dataclass(frozen=True, slots=True)
class GroupBox:
    """Position of one group of ranks in the wait graph."""

    group: GraphGroup
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """Groups in columns; the beginning of the longest chain of waits is on the left."""

    width: int
    height: int
    boxes: tuple[GroupBox, ...]
    paths: tuple[tuple[GraphEdge, str], ...]
    left_out_count: int
    box_width: int = _BOX
    box_height: int = _BOX_HEIGHT


def graph_drawing(graph: WaitGraph) -> GraphDrawing:
    """Each edge runs from the right side of the waiting group to the left side of the awaited one."""
    last = max((group.layer for group in graph.groups), default=0)
    filled: dict[int, int] = {}
    boxes = []
    for group in graph.groups:
        line = filled.get(group.layer, 0)
        filled[group.layer] = line + 1
        boxes.append(GroupBox(group, 2 + _COLUMN * (last - group.layer), 2 + _LINE * line))
    paths = tuple((edge, _path(boxes[edge.source], boxes[edge.target])) for edge in graph.edges)
    height = 4 + _LINE * max(filled.values(), default=1)
    return GraphDrawing(
        4 + _COLUMN * last + _BOX, height, tuple(boxes), paths, graph.left_out_count
    )


def _path(source_box: GroupBox, target_box: GroupBox) -> str:
    begin_x, begin_y = source_box.x + _BOX, source_box.y + _BOX_HEIGHT // 2
    end_x, end_y = target_box.x - 6, target_box.y + _BOX_HEIGHT // 2
    middle = (begin_x + end_x) // 2
    if end_x < begin_x:
        # to a group on the left or in the same column: below both boxes
        low = max(begin_y, end_y) + _BOX_HEIGHT // 2 + 8
        return f"M{begin_x} {begin_y}C{begin_x + 30} {low} {end_x - 30} {low} {end_x} {end_y}"
    return f"M{begin_x} {begin_y}C{middle} {begin_y} {middle} {end_y} {end_x} {end_y}"


@dataclass(frozen=True, slots=True)
class TimeMark:
    """Position of one event in its lane."""

    event: TimelineEvent
    number: int
    """Line number of the event in the table."""
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class TimelineDrawing:
    """One lane per source of events."""

    width: int
    height: int
    lanes: tuple[tuple[str, int], ...]
    marks: tuple[TimeMark, ...]
    ticks: tuple[tuple[int, float], ...]
    """(x, seconds since the zero of the time axis)."""
    label_width: int = _LANE_LABEL


def timeline_drawing(
    events: Sequence[TimelineEvent], zero_s: float | None = None
) -> TimelineDrawing | None:
    """None for fewer than two events; `zero_s`: zero of the time axis, None: the first event."""
    if len(events) < 2:
        return None
    begin_s = events[0].time_s
    ahead_s = 0.0 if zero_s is None else begin_s - zero_s
    length_s = max(events[-1].time_s - begin_s, 0.001)
    lanes = list(dict.fromkeys(event.source for event in events))
    scale = (_WIDE - _LANE_LABEL - 20) / length_s
    marks = tuple(
        TimeMark(
            event,
            number,
            round(_LANE_LABEL + 8 + (event.time_s - begin_s) * scale),
            _LANE * lanes.index(event.source) + _LANE // 2,
        )
        for number, event in enumerate(events, start=1)
    )
    ticks = tuple(
        (round(_LANE_LABEL + 8 + length_s * part / 4 * scale), ahead_s + length_s * part / 4)
        for part in range(5)
    )
    named = tuple((lane, _LANE * place + _LANE // 2) for place, lane in enumerate(lanes))
    return TimelineDrawing(_WIDE, _LANE * len(lanes) + 22, named, marks, ticks)
