"""NCCL's counts over nodes: one word of many answers, and the verdict of a gang whose ranks all spin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import PodRef
from kcover_ebpf.facts.host import CollectiveRank
from kcover_ebpf.gang.collective_answers import CountsOfNode, joined
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict, NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.settings import Policy
from tests.unit.support.report_builders import LOCK, NOW_S, pod, rank, report

PER_NODE, WORLD = 8, 32
NAMES = tuple(f"n{number}" for number in range(WORLD // PER_NODE))
LATE = CollectiveRank(27, WORLD, "10.0.0.3", None, 6, 7, comm="0x1")
KNOWN = replace(LATE, pid=Pid(127))


def answer(counts: CollectiveCounts, index: int = 0, age_s: float = 1.0) -> CountsOfNode:
    return CountsOfNode(replace(counts, age_s=age_s), lambda pid: Pid(1000 * (index + 1) + pid))


def behind(*ranks: CollectiveRank, **more: object) -> CollectiveCounts:
    counts = CollectiveCounts(1.0, 2.0, 3, behind=ranks)
    return replace(counts, **more)  # type: ignore[arg-type]


def test_joined__without_an_answer() -> None:
    assert joined([]) is None


def test_joined__a_rank_is_known_by_the_node_that_it_is_on() -> None:
    seen = joined([answer(behind(LATE)), answer(behind(KNOWN), 3), answer(behind(LATE), 1)])
    assert seen is not None
    assert [(collective_rank.rank, collective_rank.pid) for collective_rank in seen.behind] == [
        (27, 4127)
    ]


INSIDE = replace(LATE, pid_inside=17)


def at(pid: int, address: str, inside: int = 17) -> RankSnapshot:
    end = Endpoint(address, 4000)
    socket = SocketSnapshot(end, end, "ESTABLISHED")
    return replace(rank(1), pid=Pid(pid), pid_inside=inside, sockets=(socket,))


@pytest.mark.parametrize(
    ("ranks", "pid"),
    [
        ([at(4127, "10.0.0.3"), at(3127, "10.0.0.2"), at(4128, "10.0.0.3", 18)], 4127),
        ([at(4127, "10.0.0.3"), at(4999, "10.0.0.3")], None),
        ([at(3127, "10.0.0.2")], None),
        ([], None),
    ],
    ids=["its address and number", "two pods share an address", "another node", "not reported"],
)
def test_joined__a_rank_of_a_node_that_did_not_ask_is_recognised(
    ranks: list[RankSnapshot], pid: int | None
) -> None:
    seen = joined([answer(behind(INSIDE))], ranks)
    assert seen is not None
    assert [collective_rank.pid for collective_rank in seen.behind] == [pid]


def test_joined__what_an_answer_does_not_cover_is_kept() -> None:
    seen = joined([answer(behind(LATE, unseen="NCCL answered for 3 of 8 ranks"))])
    assert seen is not None
    assert seen.unseen == "NCCL answered for 3 of 8 ranks"


def test_joined__the_same_number_in_two_communicators_is_two_ranks() -> None:
    other = replace(LATE, comm="0x2")
    seen = joined([answer(behind(LATE)), answer(behind(other), 1)])
    assert seen is not None
    assert len(seen.behind) == 2


@pytest.mark.parametrize(("moved_s", "moving"), [(1.1, False), (0.9, True)])
def test_joined__the_newest_word_says_whether_counts_move(moved_s: float, moving: bool) -> None:
    moved = CollectiveCounts(1.0, moving=True)
    seen = joined([answer(behind(LATE)), answer(moved, 1, moved_s)])
    assert seen is not None
    assert (seen.moving, bool(seen.behind)) == (moving, not moving)


def test_joined__no_answer_counts_only_where_none_has_one() -> None:
    silent = CollectiveCounts(0.0, trouble="timed out")
    seen = joined([answer(silent, age_s=0.5), answer(behind(LATE), 1)])
    assert seen is not None
    assert (seen.trouble, len(seen.behind)) == (None, 1)
    seen = joined([answer(silent), answer(silent, 1)])
    assert seen is not None
    assert seen.trouble == "timed out"


def gang(
    states: dict[int, State],
    counts: CollectiveCounts | None,
    silent: str = "",
    policy: Policy | None = None,
) -> GangVerdict:
    """32 ranks on four nodes of which all but those given spin and ask the clock."""
    seen: list[ReceivedReport] = []
    for index, name in enumerate(NAMES):
        numbers = range(index * PER_NODE, (index + 1) * PER_NODE)
        ranks = [spinning(number, states.get(number, State.COMPUTING)) for number in numbers]
        mine = counts
        if counts is not None and index == 27 // PER_NODE:
            mine = replace(
                counts,
                behind=tuple(
                    KNOWN if collective_rank == LATE else collective_rank
                    for collective_rank in counts.behind
                ),
            )
        if name != silent:
            seen.append(report(name, *ranks, collectives=mine, knows_waits=True))
    pods = tuple(replace(pod(number), node=NAMES[number // PER_NODE]) for number in range(WORLD))
    nodes = {name: NodeState(name) for name in NAMES}
    return merge(GangInput("ns/j", seen, pods, nodes, policy or Policy(), NOW_S))


def spinning(number: int, state: State) -> RankSnapshot:
    stack = LOCK if state is State.FUTEX else ()
    return rank(
        number, state, 40.0, pid=Pid(100 + number), world_size=WORLD, stack=stack, known_wait=False
    )


def test_gang_input__the_rank_that_never_joined_is_named_over_four_nodes() -> None:
    merged = gang({27: State.FUTEX}, behind(LATE))
    assert (merged.verdict.kind, merged.verdict.cause) == (
        VerdictKind.HUNG,
        Cause.NOT_IN_COLLECTIVE,
    )
    assert merged.culprit is not None
    assert (merged.culprit.rank, merged.culprit.pod, merged.culprit.node) == (27, "j-27", "n3")
    assert not merged.depends


@pytest.mark.parametrize("state", [State.COMPUTING, State.STORING, State.DEVICE, State.PEERS])
def test_gang_input__a_rank_that_may_be_at_work_on_another_node_is_believed(state: State) -> None:
    assert gang({27: state}, behind(LATE)).verdict.kind is VerdictKind.WORKING


def test_collective_counts__a_rank_whose_agent_is_silent_is_named_by_the_others_in_the_end() -> (
    None
):
    """What it does is not seen, so it is believed as long as one that waits for something outside."""
    assert gang({}, behind(LATE), silent="n3").verdict.kind is VerdictKind.WORKING
    merged = gang({}, behind(LATE), "n3", Policy(storage_patience_s=30.0))
    assert merged.culprit is not None
    assert (merged.verdict.cause, merged.culprit.rank) == (Cause.NOT_IN_COLLECTIVE, 27)
    assert (merged.culprit.host, merged.depends) == ("10.0.0.3", True)
    assert merged.verdict.unobserved == ("node n3 did not report",)


def test_gang_input__without_counts_no_rank_is_named() -> None:
    merged = gang({27: State.FUTEX}, None)
    assert merged.culprit is None


def all_on_their_devices(moved_s: float | None, hung_s: float = 40.0) -> VerdictKind:
    """Three nodes report that all wait; the first one asked NCCL, and reports no stall."""
    said = None if moved_s is None else CollectiveCounts(moved_s, moving=True)
    first = report(
        "n0", ranks=(), suspicious=False, collectives=said, pods=(PodRef("j-0", "uid-0"),)
    )
    others = [
        report(
            name,
            *(replace(spinning(number, State.ON_DEVICE), age_s=hung_s) for number in numbers),
            knows_cadence=True,
        )
        for name, numbers in (("n1", range(8, 16)), ("n2", range(16, 24)), ("n3", range(24, 32)))
    ]
    pods = tuple(replace(pod(number), node=NAMES[number // PER_NODE]) for number in range(WORLD))
    nodes = {name: NodeState(name) for name in NAMES}
    merged = merge(GangInput("ns/j", [first, *others], pods, nodes, Policy(), NOW_S))
    return merged.verdict.kind


def test_collective_counts__counts_that_move_are_known_to_all_though_one_node_asked() -> None:
    assert all_on_their_devices(None, hung_s=200.0) is VerdictKind.HUNG
    assert all_on_their_devices(30.0, hung_s=200.0) is VerdictKind.WORKING
    assert all_on_their_devices(130.0, hung_s=200.0) is VerdictKind.HUNG, "too long ago"
    assert all_on_their_devices(68.0, hung_s=70.0) is VerdictKind.HUNG, "launched ahead"
