"""The looks of several nodes at one job become one."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.output.formatting import event_line
from kcover_ebpf.trace.records import Line, Row, Stack, parse, plain
from kcover_ebpf.trace.several_nodes import merge

QUIET = {"verdict": "WORKING", "cause": "starting", "culprit": None}
STOPPED = {
    "verdict": "HUNG",
    "cause": "stopped",
    "culprit": {"rank": 3, "pid": 13, "tid": 13, "pod": "pod-3"},
    "evidence": [{"kind": "sink", "text": "a"}, {"kind": "peers", "text": "b"}],
}


def node(
    ranks: dict[int, str], verdict: dict[str, Any], since_s: float = 9.0, **more: Any
) -> list[Line]:
    """A look at one node: its ranks, each with the place of its code."""
    rows = [
        Row(
            10 + rank,
            10 + rank,
            "python3",
            rank,
            "rank",
            f"pod-{rank}",
            "S",
            "futex",
            since_s=since_s,
            lead=True,
        )
        for rank in ranks
    ]
    stacks = [Stack(10 + rank, 10 + rank, rank, (place,)) for rank, place in ranks.items()]
    fields = {"headline": verdict["verdict"], "edges": [], "unobserved": []} | verdict | more
    return [
        parse(event_line("threads", 5.0, {"threads": [plain(row) for row in rows]})),
        parse(event_line("stacks", 5.0, {"stacks": [plain(each) for each in stacks]})),
        parse(event_line("verdict", 5.0, fields)),
    ]


SAME = {0: "allreduce", 1: "allreduce"}


def test_the_node_that_names_a_rank_speaks_for_all() -> None:
    merged = merge([node(SAME, QUIET), node({2: "allreduce", 3: "step"}, STOPPED)])
    assert merged["verdict"]["cause"] == "stopped"
    assert merged["verdict"]["culprit"]["rank"] == 3
    assert merged["verdict"]["victims"] == [0, 1, 2]
    assert len(merged["threads"]["threads"]) == len(merged["stacks"]["stacks"]) == 4


def named(rank: int) -> dict[str, Any]:
    """A node whose ranks wait for one that is at work."""
    return {"verdict": "UNKNOWN", "cause": "computing", "culprit": {"rank": rank}}


AT_WORK = {"verdict": "WORKING", "cause": "loading", "culprit": None}


@pytest.mark.parametrize(
    ("other", "rank"), [(QUIET, 3), (named(0), None), (AT_WORK, None), (STOPPED, 3)]
)
def test_who_is_waited_for_is_named_if_nobody_else_is_at_work(
    other: dict[str, Any], rank: int | None
) -> None:
    verdict = merge([node(SAME, other), node({2: "allreduce", 3: "allreduce"}, named(3))])[
        "verdict"
    ]
    culprit = verdict["culprit"]
    assert (None if culprit is None else culprit["rank"]) == rank


def test_the_odd_one_of_all_nodes_is_named_where_no_node_could() -> None:
    merged = merge([node(SAME, QUIET), node({2: "lock", 3: "allreduce"}, QUIET)])
    verdict = merged["verdict"]
    assert (verdict["verdict"], verdict["culprit"]["rank"], verdict["victims"]) == (
        "HUNG",
        2,
        [0, 1, 3],
    )
    assert verdict["culprit"]["pod"] == "pod-2"
    assert "rank 2" in verdict["headline"]


def test_nobody_is_odd_when_all_wait_in_the_same_place() -> None:
    merged = merge([node(SAME, QUIET), node({2: "allreduce", 3: "allreduce"}, QUIET)])
    assert merged["verdict"]["verdict"] == "WORKING"


def test_nobody_is_odd_in_two_halves() -> None:
    merged = merge([node(SAME, QUIET), node({2: "barrier", 3: "barrier"}, QUIET)])
    assert merged["verdict"]["verdict"] == "WORKING"


def test_nobody_is_odd_while_one_works() -> None:
    looks = [node(SAME, QUIET), node({2: "lock", 3: "allreduce"}, QUIET, since_s=0.2)]
    assert merge(looks)["verdict"]["verdict"] == "WORKING"


def test_what_the_other_node_sees_is_not_missing() -> None:
    blind = ["2 of 4 ranks are not on this host", "RDMA traffic"]
    looks = [node(SAME, QUIET, unobserved=blind), node({2: "a"}, QUIET, unobserved=blind)]
    assert merge(looks)["verdict"]["unobserved"] == ["RDMA traffic"]
    assert merge(looks[:1])["verdict"]["unobserved"] == blind


def test_no_look_is_no_verdict() -> None:
    assert merge([[], []])["verdict"].get("verdict") is None


def test_a_connection_between_nodes_gets_its_other_end() -> None:
    there = {"from": "rank 0", "to": None, "local": "a:1", "remote": "b:2"}
    here = {"from": "rank 2", "to": None, "local": "b:2", "remote": "a:1"}
    away = {"from": "rank 2", "to": None, "local": "b:3", "remote": "c:1"}
    looks = [node(SAME, QUIET, edges=[there]), node({2: "a"}, QUIET, edges=[here, away])]
    joined = merge(looks)["verdict"]["edges"]
    assert [each["to"] for each in joined] == ["rank 2", "rank 0", None]
