"""Wait graph over all nodes; ranks that wait for the same are one vertex. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.views.rank_grid import NodeRanks
from kcover_ebpf.views.rank_numbers import ranks_text

_MOST_RUNS = 6
_MOST_GROUPS = 24


@dataclass(frozen=True, slots=True)
class GraphGroup:
    """Ranks, or one process or place outside of them, shown as one vertex."""

    label: str
    count: int
    """Number of ranks in the group."""
    is_culprit: bool = False
    layer: int = 0
    """Edges from it to the end of the chain; 0: it waits for nothing that is known."""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """The ranks of one group wait for another; both are indexes into the groups of the graph."""

    source: int
    target: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The graph; groups with the shortest chains of waits come first."""

    groups: tuple[GraphGroup, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    left_out_count: int = 0
    """Number of groups left out for lack of space."""


_Wait = tuple[str, str, str]
"""(waiting vertex, vertex it waits for, reason)."""


def graph_of(
    nodes: Sequence[NodeRanks], culprit_rank: int | None = None, victims: Sequence[int] = ()
) -> WaitGraph:
    """The graph of the nodes' reports, completed by the victims that the verdict names."""
    waits = dict.fromkeys(_waits(nodes))
    known = {source for source, _, _ in waits}
    culprit = None if culprit_rank is None else f"rank {culprit_rank}"
    if culprit is not None:
        for victim in victims:
            if f"rank {victim}" not in known and victim != culprit_rank:
                waits[f"rank {victim}", culprit, ""] = None
    return _grouped(list(waits), culprit)


def _waits(nodes: Sequence[NodeRanks]) -> Iterator[_Wait]:
    listeners = {
        socket.local: _name(node_ranks.node, rank)
        for node_ranks in nodes
        for rank in node_ranks.ranks
        for socket in rank.sockets
    }
    for node_ranks in nodes:
        by_pid = {rank.pid: rank for rank in node_ranks.ranks}
        for rank in node_ranks.ranks:
            if rank.exit is not None:
                continue
            who = _name(node_ranks.node, rank)
            for pid in rank.waits_for:
                other_rank = by_pid.get(pid)
                if other_rank is not None and pid != rank.pid:
                    yield who, _name(node_ranks.node, other_rank), rank.state.text
            if rank.awaits is not None:
                yield who, listeners.get(rank.awaits, f"{rank.awaits}"), rank.state.text


def _name(node: str, rank: RankSnapshot) -> str:
    if rank.role is Role.RANK and rank.rank is not None:
        return f"rank {rank.rank}"
    owner = "" if rank.rank is None else f" of rank {rank.rank}"
    return f"{rank.role.value} {rank.pid}{owner} on {node}"


def _grouped(waits: Sequence[_Wait], culprit: str | None) -> WaitGraph:
    targets: dict[str, list[tuple[str, str]]] = {}
    for source, target, why in waits:
        targets.setdefault(source, []).append((target, why))
    awaited = {target for _, target, _ in waits}
    # ranks that no one waits for, and that wait for the same, are merged
    keys: dict[str, object] = {}
    for name in dict.fromkeys([*targets, *awaited]):
        alone = name in awaited or name == culprit
        keys[name] = name if alone else tuple(sorted(targets.get(name, ())))
    members: dict[object, list[str]] = {}
    for name, key in keys.items():
        members.setdefault(key, []).append(name)
    ordered = sorted(members, key=lambda key: -len(members[key]))
    shown = ordered[:_MOST_GROUPS]
    if culprit in members and culprit not in shown:
        shown[-1] = culprit
    places = {key: place for place, key in enumerate(shown)}
    edges = {
        (places[keys[source]], places[keys[target]]): why
        for source, target, why in waits
        if keys[source] in places and keys[target] in places and keys[source] != keys[target]
    }
    layers = _layers(len(shown), list(edges))
    groups = tuple(
        _group(members[key], layers[place], is_culprit=culprit in members[key])
        for place, key in enumerate(shown)
    )
    found = tuple(GraphEdge(source, target, why) for (source, target), why in edges.items())
    return WaitGraph(groups, found, len(ordered) - len(shown))


def _group(names: Sequence[str], layer: int, *, is_culprit: bool) -> GraphGroup:
    ranks = [int(name[5:]) for name in names if name.startswith("rank ") and name[5:].isdigit()]
    others = [name for name in names if not name.startswith("rank ")]
    words = []
    if ranks:
        words.append(f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks, _MOST_RUNS)}")
    words += others[:1] + ([f"{len(others) - 1} more"] if len(others) > 1 else [])
    return GraphGroup(", ".join(words), len(ranks), is_culprit, layer)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Length of the longest chain of waits from each group; a cycle ends after as many steps as there are groups."""
    layers = [0] * count
    for _ in range(min(count, 8)):
        changed = False
        for source, target in edges:
            if layers[source] < layers[target] + 1 <= 8:
                layers[source], changed = layers[target] + 1, True
        if not changed:
            break
    return layers
