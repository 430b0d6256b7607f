"""Which ranks are behind the others, by the largest part of the cluster that contains them: rack, node, local rank.

A failing switch delays all ranks of its rack, a board those of a node, a slot or a rail those with one local rank.
One sentence about that part is clearer than a list of ranks. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import CollectiveLag

_SHOWN = 4
"""The most sentences; more differences than that have no common place."""
_LEAST_NODES = 2


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """Location of the ranks of a job."""

    node_of: Mapping[str, str]
    """Address used by ranks -> name of the node."""
    ranks_of: Mapping[str, int]
    """Name of a node -> number of the job's ranks on it."""
    rack_of: Mapping[str, str]
    """Node -> rack; nodes without one are left out."""

    def nodes_in(self, rack: str) -> set[str]:
        """The nodes of the job in a rack."""
        return {node for node in self.ranks_of if self.rack_of.get(node) == rack}


def sentences(lags: Sequence[CollectiveLag], places: JobPlaces) -> tuple[str, ...]:
    """One for each part of the cluster whose ranks of the job are all behind by the same; empty if there is none."""
    return tuple(text for lag in lags for text in _of_lag(lag, places))[:_SHOWN]


def _of_lag(lag: CollectiveLag, places: JobPlaces) -> list[str]:
    counts: dict[str, int] = defaultdict(int)
    for place in lag.places:
        node = places.node_of.get(place.host)
        if node is not None:
            counts[node] += place.rank_count
    whole = {node for node, count in counts.items() if count >= places.ranks_of.get(node, count)}
    by = f"{lag.behind} {_plural(lag.kind, lag.behind)} behind"
    found = []
    for rack in sorted({places.rack_of[node] for node in whole if node in places.rack_of}):
        nodes = places.nodes_in(rack)
        # a rack in which the job has one node shows no more than that node
        if len(nodes) >= _LEAST_NODES and nodes <= whole:
            ranks = sum(places.ranks_of[node] for node in nodes)
            found.append(f"all of rack {rack} ({ranks} ranks on {len(nodes)} nodes) is {by}")
            whole -= nodes
            counts = defaultdict(int, {n: c for n, c in counts.items() if n not in nodes})
    found += [
        f"all {places.ranks_of.get(node, counts[node])} ranks of node {node} are {by}"
        for node in sorted(whole)
        if counts[node] > 1
    ]
    return [*found, *_of_column(lag, places, set(counts) - whole, by)]


def _of_column(lag: CollectiveLag, places: JobPlaces, nodes: set[str], by: str) -> list[str]:
    """Ranks with the same local rank on several nodes, if no other ranks of these nodes are behind."""
    slots = {
        place.slots
        for place in lag.places
        if places.node_of.get(place.host) in nodes and place.rank_count == 1
    }
    if len(nodes) < _LEAST_NODES or len(slots) != 1 or len(next(iter(slots))) != 1:
        return []
    (slot,) = next(iter(slots))
    of = "all" if nodes >= set(places.ranks_of) else str(len(nodes))
    return [f"local rank {slot} of {of} nodes is {by}"]


def _plural(kind: str, count: int) -> str:
    """NCCL's word for an operation, in the plural."""
    words = {
        "AllReduce": "all-reduce",
        "AllGather": "all-gather",
        "ReduceScatter": "reduce-scatter",
    }
    word = words.get(kind, kind.lower() if kind else "operation")
    return word if count == 1 else f"{word}s"
