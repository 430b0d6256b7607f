"""The grid of ranks, the graph of their waits and the timeline."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.views.rank_grid import CellState, NodeRanks, grid_of
from kcover_ebpf.views.timeline import TimelineEvent, chrome_trace, in_order
from kcover_ebpf.views.wait_graph import graph_of
from tests.unit.support import report_builders as build


def rank(number: int, state: State = State.FUTEX, **more) -> RankSnapshot:
    return build.rank(number, state, pid=Pid(1000 + number), tid=1000 + number, **more)


def nodes(*odd: RankSnapshot, count: int = 8) -> list[NodeRanks]:
    """Two nodes with four ranks each; those in `odd` take the place of others."""
    ranks = {number: rank(number, world_size=count) for number in range(8)}
    ranks |= {found.rank: found for found in odd if found.rank is not None}
    return [
        NodeRanks("b", tuple(ranks[number] for number in (7, 6, 5, 4)), {"uid-4": "j-4"}),
        NodeRanks("a", tuple(ranks[number] for number in range(4))),
    ]


def test_grid_of__rows_are_nodes_and_columns_local_ranks() -> None:
    grid = grid_of(nodes(rank(5, State.STOPPED, age_s=30.0)), {5})
    assert [row.node for row in grid.rows] == ["a", "b"]
    assert [cell.rank for cell in grid.rows[1].cells] == [4, 5, 6, 7]
    cell = grid.rows[1].cells[1]
    assert (cell.state, cell.text, cell.age_s) == (CellState.CULPRIT, "stopped", 30.0)
    assert grid.rows[1].cells[0].pod == "j-4"
    assert grid.usual == (CellState.WAITING, State.FUTEX.text)
    assert [row.node for row in grid.odd_rows()] == ["b"]


def test_grid_of__ranks_that_no_node_reports_are_shown_as_not_observed() -> None:
    grid = grid_of(nodes(rank(0, world_size=10)), {9})
    last = grid.rows[-1]
    assert last.node == "not reported"
    assert [(cell.rank, cell.state) for cell in last.cells] == [
        (8, CellState.UNSEEN),
        (9, CellState.CULPRIT),
    ]


def test_grid_of__a_rank_that_ended_and_a_stuck_one_differ_from_one_that_works() -> None:
    odd = rank(1, exit="signal 9"), rank(2, State.STORAGE), rank(3, State.COMPUTING)
    states = [cell.state for cell in grid_of(nodes(*odd)).rows[0].cells]
    assert states == [CellState.WAITING, CellState.ENDED, CellState.STUCK, CellState.WORKING]
    helper = rank(0, role=Role.HELPER)
    assert len(grid_of([NodeRanks("a", (helper,))]).cells) == 0


def test_graph_of__ranks_that_wait_for_the_same_are_one_group() -> None:
    link = build.wire(0, 5)
    far = replace(link, local=link.remote, remote=link.local)
    waiting = rank(0, awaits=far.local, sockets=(link,))
    culprit = rank(5, State.CHILD, sockets=(far,), waits_for=(Pid(1700),))
    loader = rank(5, State.STOPPED, role=Role.LOADER)
    loader = replace(loader, pid=Pid(1700))
    found = nodes(waiting, culprit)
    found[0] = replace(found[0], ranks=(*found[0].ranks, loader))
    graph = graph_of(found, 5, victims=range(8))
    labels = {group.label: group for group in graph.groups}
    assert labels["rank 5"].is_culprit
    assert labels["ranks 1-4,6,7"].count == 6
    edges = {
        (graph.groups[edge.source].label, graph.groups[edge.target].label) for edge in graph.edges
    }
    assert edges == {
        ("rank 0", "rank 5"),
        ("ranks 1-4,6,7", "rank 5"),
        ("rank 5", "loader 1700 of rank 5 on b"),
    }
    layers = [labels[label].layer for label in ("ranks 1-4,6,7", "rank 5")]
    assert layers == [2, 1]


def test_graph_of__a_circle_of_waits_is_drawn_and_ends() -> None:
    one, two = rank(0, waits_for=(Pid(1001),)), rank(1, waits_for=(Pid(1000),))
    graph = graph_of(nodes(one, two))
    assert {(edge.source, edge.target) for edge in graph.edges} == {(0, 1), (1, 0)}
    assert max(group.layer for group in graph.groups) <= 8


def test_chrome_trace__one_track_for_each_rank_and_one_for_the_incident() -> None:
    events = in_order(
        [
            TimelineEvent(12.0, "incident", "ShuttingDown"),
            TimelineEvent(10.0, "log", "NCCL timeout"),
        ]
    )
    assert [event.time_s for event in events] == [10.0, 12.0]
    file = chrome_trace(events, [(found, 100.0) for found in nodes()])
    tracks = [entry for entry in file["traceEvents"] if entry["name"] == "thread_name"]
    assert len(tracks) == 8
    spans = [entry for entry in file["traceEvents"] if entry["ph"] == "X"]
    assert [entry["dur"] for entry in spans] == [6_000_000] * 8
    assert {entry["ts"] + entry["dur"] for entry in spans} == {100_000_000}
    marks = [entry for entry in file["traceEvents"] if entry["ph"] == "i"]
    assert [entry["ts"] for entry in marks] == [10_000_000, 12_000_000]
