"""Ranks that are behind, by the largest part of the cluster that they are all of."""

from __future__ import annotations

from collections.abc import Mapping

from kcover_ebpf.collectives.ras import RasCommunicator, RasRank, RasReport, read, said
from kcover_ebpf.facts.host import CollectiveLag, LaggingHost
from kcover_ebpf.views.lag_groups import JobPlaces, sentences

NODES, RANKS, RACK = 12, 8, 4
PLACES = JobPlaces(
    {f"10.0.0.{node}": f"n{node}" for node in range(NODES)},
    {f"n{node}": RANKS for node in range(NODES)},
    {f"n{node}": f"r{node // RACK}" for node in range(NODES)},
)


def lag(by: int, slots: Mapping[int, tuple[int, ...]], kind: str = "AllReduce") -> CollectiveLag:
    places = tuple(
        LaggingHost(f"10.0.0.{node}", len(found), found) for node, found in slots.items()
    )
    count = sum(place.rank_count for place in places)
    return CollectiveLag(by, count, NODES * RANKS, kind, places)


ALL = tuple(range(RANKS))


def test_lag_groups__all_of_a_rack() -> None:
    lagging = lag(2, dict.fromkeys(range(4, 8), ALL))
    assert sentences([lagging], PLACES) == (
        "all of rack r1 (32 ranks on 4 nodes) is 2 all-reduces behind",
    )


def test_lag_groups__nodes_of_a_rack_that_is_not_behind_as_a_whole() -> None:
    lagging = lag(1, {4: ALL, 5: ALL, 9: (3,)})
    assert sentences([lagging], PLACES) == (
        "all 8 ranks of node n4 are 1 all-reduce behind",
        "all 8 ranks of node n5 are 1 all-reduce behind",
    )


def test_lag_groups__one_rail() -> None:
    rail = dict.fromkeys(range(NODES), (3,))
    assert sentences([lag(1, rail, "")], PLACES) == (
        "local rank 3 of all nodes is 1 operation behind",
    )
    rail.pop(0)
    assert sentences([lag(5, rail)], PLACES) == (
        "local rank 3 of 11 nodes is 5 all-reduces behind",
    )


def test_lag_groups__single_ranks_and_unknown_hosts_have_no_sentence() -> None:
    assert sentences([lag(1, {2: (1,)})], PLACES) == ()
    assert sentences([lag(1, {2: (1,), 3: (5,)})], PLACES) == ()
    unknown = CollectiveLag(1, 8, 96, "AllReduce", (LaggingHost("192.0.2.1", 8, ALL),))
    assert sentences([unknown], PLACES) == ()


def test_lag_groups__without_racks_nodes_are_named() -> None:
    bare = JobPlaces(PLACES.node_of, PLACES.ranks_of, {})
    assert sentences([lag(2, {4: ALL})], bare) == (
        "all 8 ranks of node n4 are 2 all-reduces behind",
    )


def test_lags__how_far_a_rack_is_behind_comes_from_nccls_counts() -> None:
    ranks = tuple(
        RasRank(
            node * RANKS + slot,
            f"10.0.0.{node}",
            100 + slot,
            {"AllReduce": 40 if node // RACK == 1 else 42, "AllGather": 7},
            gpu=slot,
        )
        for node in range(NODES)
        for slot in range(RANKS)
    )
    report = RasReport((RasCommunicator("world", NODES * RANKS, ranks),), whole=True)
    reading = read([report, report])
    assert reading is not None
    seen = said.fact((0, 1), reading, 2, lambda _: None)
    assert sentences(seen.lags, PLACES) == (
        "all of rack r1 (32 ranks on 4 nodes) is 2 all-reduces behind",
    )
