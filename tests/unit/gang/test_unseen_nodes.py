"""Four nodes with eight ranks each, of which some cannot be seen: what is said, and what is acted on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.gang.gang_input import GangInput, NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.recovery.restart.guards import decide
from kcover_ebpf.settings import Policy
from tests.unit.support.guard_inputs import ask, world
from tests.unit.support.report_builders import NOW_S, pod, rank, report, wire

NODES = ("n0", "n1", "n2", "n3")
UP = {name: NodeState(name) for name in NODES}
LOST = {**UP, "n3": NodeState("n3", ready=False)}


def reports(
    *numbers: int, state: State = State.FUTEX, age_s: float = 40.0, **more
) -> list[ReceivedReport]:
    """What these nodes report of their eight ranks each."""
    return [
        report(
            NODES[number],
            *(
                rank(other_number, state, age_s, pid=100 + other_number, world_size=32)
                for other_number in range(8 * number, 8 * number + 8)
            ),
            **more,
        )
        for number in numbers
    ]


def calm(number: int, age_s: float = 5.0, **more) -> ReceivedReport:
    """A node that reports no stall, so no snapshot."""
    (seen,) = reports(number, suspicious=False, **more)
    return ReceivedReport(replace(seen.report, ranks=()), NOW_S - age_s)


def job(seen: list[ReceivedReport], nodes: dict[str, NodeState] = UP) -> GangInput:
    pods = tuple(
        replace(pod(number), node=NODES[number // 8], address=f"10.0.0.{number}")
        for number in range(32)
    )
    return GangInput("ns/j", seen, pods, nodes, Policy(), NOW_S)


# --- a node that is not ready


def test_gang_input__a_node_that_is_gone_while_all_others_wait_is_named():
    merged = merge(job(reports(0, 1, 2), LOST))
    assert merged.culprit is not None
    assert (merged.verdict.cause, merged.culprit.node) == (Cause.PEER_GONE, "n3")
    assert merged.verdict.is_announced
    assert [evidence.text for evidence in merged.evidence] == [
        "node n3 is not ready, and there is no report from its agent",
        "all 24 ranks on 3 other nodes have waited for at least 40 s",
    ]


@pytest.mark.parametrize(
    "seen",
    [
        reports(0, 1, 2, state=State.COMPUTING, age_s=3000.0),
        [calm(0), calm(1), calm(2)],
        [*reports(0, 1), calm(2)],
        reports(0, 1),
        [*reports(0, 1), *reports(2, state=State.STORING)],
        [*reports(0, 1), *reports(2, state=State.MOVING)],
        [*reports(0, 1), *reports(2, age_s=5.0)],
        [*reports(0, 1, 2), calm(3, 20.0)],
        [*reports(0, 1), *reports(2, age_s=3000.0, suspicious=False)],
    ],
    ids=[
        "all compute", "all continue", "one node continues", "one more cannot be seen", "one writes",
        "one moves", "not for long", "its agent was heard 20 s ago",
        "it is unknown whether the ranks of one continue",
    ],
)  # fmt: skip
def test_gang_input__a_node_that_lost_its_path_to_the_server_is_left_alone(seen):
    merged = merge(job(seen, LOST))
    assert merged.verdict.cause is not Cause.PEER_GONE
    assert merged.depends or not merged.verdict.kind.is_fault


def test_gang_input__a_snapshot_without_ranks_says_nothing_about_a_node_that_is_gone():
    helpers = [
        replace(
            received,
            report=replace(
                received.report,
                ranks=tuple(replace(rank, role=Role.HELPER) for rank in received.report.ranks),
            ),
        )
        for received in reports(0, 1, 2)
    ]
    assert not merge(job(helpers, LOST)).verdict.kind.is_fault


# --- a node whose ranks continue


def test_gang_input__ranks_that_continue_explain_for_a_minute_why_others_wait():
    seen = [*reports(1, 2, 3), calm(0)]
    assert merge(job(seen)).verdict.kind is VerdictKind.WORKING
    seen = [*reports(1, 2, 3, age_s=70.0), calm(0)]
    merged = merge(job(seen))
    assert merged.verdict.kind is VerdictKind.UNKNOWN, "what it does is not seen"
    assert merged.depends
    assert merged.verdict.unobserved == ("node n0 reports that its ranks have not stalled",)


def test_gang_input__a_rank_that_was_stopped_is_named_though_another_node_continues():
    (n1,) = reports(1)
    first, *others = n1.report.ranks
    first = replace(first, state=State.STOPPED, age_s=5.0)
    n1 = replace(n1, report=replace(n1.report, ranks=(first, *others)))
    merged = merge(job([n1, *reports(2, 3), calm(0)]))
    assert (merged.verdict.cause, merged.depends) == (Cause.STOPPED, False)


@pytest.mark.parametrize(
    ("stopped_s", "heard_s", "found"),
    [
        (8.0, 1.0, "HUNG stopped"),
        (8.0, 30.0, "UNKNOWN stopped"),
        (8.0, 7.0, "UNKNOWN stopped"),
        (3.0, 0.5, "UNKNOWN stopped"),
    ],
    ids=["heard since", "heard before it stopped", "it may stop as well", "not for long"],
)
def test_merge__a_node_that_reports_no_stopped_rank_has_none_however_long_its_ranks_may_be_silent(
    stopped_s, heard_s, found
):
    """A gang that serves: idle for minutes, so that no rank has stalled when one of them is stopped."""
    ranks = [rank(number, State.STOPPED, stopped_s, pid=100 + number) for number in range(8)]
    seen = [report(NODES[0], *ranks), *(calm(number, heard_s) for number in (1, 2, 3))]
    merged = merge(job(seen))
    assert f"{merged.verdict.kind.value} {merged.verdict.cause.value}" == found
    assert not merged.depends


def test_gang_input__ranks_that_have_not_begun_to_train_explain_nothing():
    merged = merge(job([*reports(1, 2, 3), calm(0, trained=False)]))
    assert merged.depends
    assert merged.verdict.unobserved == ("node n0 reports that its ranks have not begun to train",)


# --- a hung rank whose agent is dead


def connected(age_s: float) -> list[ReceivedReport]:
    """Three nodes, of which one has a connection to a rank on the fourth."""
    first, *others = reports(0, 1, 2, age_s=age_s)
    ranks = first.report.ranks
    talks = replace(ranks[0], sockets=(wire(0, 24, sent_age_s=age_s),))
    return [replace(first, report=replace(first.report, ranks=(talks, *ranks[1:]))), *others]


@pytest.mark.parametrize(
    ("seen", "acts"),
    [
        (connected(1900.0), True),
        (connected(600.0), False),
        (reports(0, 1, 2, age_s=1900.0), False),
        ([*connected(1900.0), calm(3, 50.0)], False),
        ([*connected(1900.0), calm(3, 70.0)], True),
        ([*connected(1900.0)[:2], *reports(2, state=State.COMPUTING, age_s=1900.0)], False),
        ([*connected(1900.0)[:2], *reports(2, age_s=1900.0, suspicious=False)], False),
    ],
    ids=[
        "for long", "not for long", "not connected", "its agent may return", "its agent is gone",
        "one computes", "of one it is unknown",
    ],
)  # fmt: skip
def test_gang_input__the_evidence_of_all_others_suffices_without_a_dead_agent(seen, acts):
    merged = merge(job(seen))
    if merged.verdict.kind.is_fault:
        assert merged.depends is not acts
    else:
        assert not acts
    if acts:
        assert merged.evidence[-1].kind is EvidenceKind.EDGE
        assert "1 of the waiting ranks are connected to ranks on n3" in merged.evidence[-1].text
        assert merged.verdict.unobserved == ("node n3 did not report",)


@pytest.mark.parametrize(
    ("limits", "phase"), [({"hard_limit": "10m"}, Phase.SHUTTING_DOWN), ({}, Phase.OPEN)]
)
def test_decide__a_hard_limit_holds_though_a_node_is_silent(limits, phase):
    policy = FaultPolicy(thresholds=limits).settings()
    merged = merge(replace(job(reports(0, 1, 2, age_s=700.0)), policy=policy))
    assert merged.depends
    move = decide(ask(world(gang_verdict=merged), FaultPolicy(thresholds=limits)))
    assert move.status is not None
    assert move.status.phase is phase


@pytest.mark.parametrize(("limit_s", "kind"), [(None, "UNKNOWN"), (3600.0, "HUNG")])
def test_merge__a_hard_limit_holds_on_any_number_of_nodes(limit_s, kind):
    outside = reports(0, state=State.OUTSIDE, age_s=4000.0)
    seen = [*outside, *reports(1, 2, 3, age_s=4000.0)]
    merged = merge(replace(job(seen), policy=Policy(hard_limit_s=limit_s)))
    assert merged.verdict.kind.value == kind


@pytest.mark.parametrize(("age_s", "depends"), [(5.0, False), (40.0, False), (50.0, True)])
def test_gang_input__the_snapshot_of_ranks_that_nothing_is_known_about_holds_until_the_next_heartbeat(
    age_s, depends
):
    (unsure,) = reports(0, suspicious=False)
    seen = [replace(unsure, arrived_s=NOW_S - age_s), *reports(1, 2, 3)]
    merged = merge(job(seen))
    assert merged.verdict.kind is VerdictKind.HUNG
    assert merged.depends is depends
