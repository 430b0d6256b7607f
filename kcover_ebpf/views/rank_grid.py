"""All ranks of a job by node and local rank: what each does, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from enum import Enum

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.process_state import STOPPED, STUCK, WAITING, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role


class CellState(Enum):
    """Coarse state of a rank, as shown by a colour; the value is the displayed word."""

    CULPRIT = "culprit"
    ENDED = "ended"
    STUCK = "cannot continue by itself"
    WAITING = "waits for others"
    WORKING = "works"
    UNSEEN = "not observed"


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """The ranks and pods that one node reported."""

    node: str
    ranks: tuple[RankSnapshot, ...] = ()
    pods: dict[str, str] = field(default_factory=dict)
    """Uid of a pod -> its name."""


@dataclass(frozen=True, slots=True)
class RankCell:
    """One rank with its state, for one cell of the grid."""

    rank: int | None
    state: CellState
    text: str = ""
    """What it does, as the sensor describes it."""
    age_s: float | None = None
    """Seconds in this state; None if the rank was not observed."""
    pid: int | None = None
    pod: str = ""

    @property
    def difference(self) -> tuple[CellState, str]:
        """Key that is equal for ranks that look the same to a user."""
        return self.state, self.text


@dataclass(frozen=True, slots=True)
class GridRow:
    """The ranks of one node, by local rank."""

    node: str
    cells: tuple[RankCell, ...]


@dataclass(frozen=True, slots=True)
class RankGrid:
    """All rows, by their lowest rank; ranks that no node reported have a row of their own."""

    rows: tuple[GridRow, ...]

    @property
    def cells(self) -> tuple[RankCell, ...]:
        return tuple(cell for row in self.rows for cell in row.cells)

    @property
    def usual(self) -> tuple[CellState, str] | None:
        """State of most ranks; None without ranks."""
        counts: dict[tuple[CellState, str], int] = {}
        for cell in self.cells:
            counts[cell.difference] = counts.get(cell.difference, 0) + 1
        return max(counts, key=lambda key: counts[key], default=None)

    def odd_rows(self) -> tuple[GridRow, ...]:
        """Rows with a rank whose state differs from `usual`."""
        usual = self.usual
        return tuple(
            row for row in self.rows if any(cell.difference != usual for cell in row.cells)
        )


def grid_of(nodes: Sequence[NodeRanks], culprits: Collection[int] = ()) -> RankGrid:
    """The grid of all nodes; `culprits`: ranks at fault."""
    rows, seen = [], set()
    world = 0
    for node_ranks in nodes:
        ranks = [rank for rank in node_ranks.ranks if rank.role is Role.RANK]
        cells = [_cell(rank, culprits, node_ranks.pods) for rank in ranks]
        cells.sort(key=lambda cell: (cell.rank is None, cell.rank or 0, cell.pid or 0))
        seen |= {cell.rank for cell in cells if cell.rank is not None}
        world = max([world, *(rank.world_size or 0 for rank in ranks)])
        if cells:
            rows.append(GridRow(node_ranks.node, tuple(cells)))
    rows.sort(key=lambda row: (row.cells[0].rank is None, row.cells[0].rank or 0, row.node))
    absent = [rank for rank in range(min(world, _MOST_RANKS)) if rank not in seen]
    if absent and seen:
        cells = [_absent(rank, culprits) for rank in absent]
        rows.append(GridRow("not reported", tuple(cells)))
    return RankGrid(tuple(rows))


_MOST_RANKS = 1 << 17
"""The largest world size taken into account: a number that a job made up must not fill the memory."""


def _absent(rank: int, culprits: Collection[int]) -> RankCell:
    state = CellState.CULPRIT if rank in culprits else CellState.UNSEEN
    return RankCell(rank, state, "no node reports it")


def _cell(rank_snapshot: RankSnapshot, culprits: Collection[int], pods: dict[str, str]) -> RankCell:
    text = rank_snapshot.state.text
    if rank_snapshot.exit is not None:
        text = f"ended with {rank_snapshot.exit}"
    state = _state(rank_snapshot)
    if rank_snapshot.rank is not None and rank_snapshot.rank in culprits:
        state = CellState.CULPRIT
    return RankCell(
        rank=rank_snapshot.rank,
        state=state,
        text=text,
        age_s=rank_snapshot.age_s,
        pid=rank_snapshot.pid,
        pod=pods.get(rank_snapshot.pod_uid, ""),
    )


_WAITS = WAITING | {State.CHILD, State.HELPED, State.OUTSIDE}
_ENDED = frozenset({State.LEFT, State.GONE, State.DUMPING})


def _state(rank: RankSnapshot) -> CellState:
    if rank.exit is not None or rank.state in _ENDED:
        return CellState.ENDED
    if rank.state in STOPPED or rank.state in STUCK:
        return CellState.STUCK
    return CellState.WAITING if rank.state in _WAITS else CellState.WORKING
