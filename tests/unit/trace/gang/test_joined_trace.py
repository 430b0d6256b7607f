"""A job that no agent has watched, traced on all its nodes at once: one judge, what it lacks is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.gang import unwatched
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.output.formatting import event_line
from kcover_ebpf.trace.gang import joined_trace
from kcover_ebpf.trace.gang.joined_trace import NodeAnswer, judged, report_in
from kcover_ebpf.trace.records import Line, parse
from kcover_ebpf.tunables.trace import STALL_S
from tests.unit.support import report_builders as build

WORLD = 4
HISTORY = unwatched.HISTORY


def rank(number: int, state: State = State.FUTEX, age_s: float = 9.0, **more: Any) -> RankSnapshot:
    """As one trace sees it: no wait is known, and what is not known of a cadence is replaced by a short limit."""
    values = {"known_wait": False, "threshold_s": STALL_S, "thread_read": True} | more
    return build.rank(number, state, age_s, **values)


def report(node: str, *ranks: RankSnapshot, **more: Any) -> FaultReport:
    return replace(build.report(node, *ranks, trained=False).report, job=None, **more)


def over_nodes(*ranks: RankSnapshot, late_s: float = 0.0, **more: Any) -> GangVerdict:
    """Even ranks are on the first node, odd ones on the second, which answers `late_s` before the first."""
    answers = [
        NodeAnswer(
            node,
            report(
                node,
                *(rank_snapshot for rank_snapshot in ranks if (rank_snapshot.rank or 0) % 2 == at),
                **more,
            ),
            age_s,
        )
        for at, (node, age_s) in enumerate((("a", 0.0), ("b", late_s)))
    ]
    return judged("j", answers, [build.pod(number) for number in range(WORLD)], build.NOW_S)


def named(gang_verdict: GangVerdict) -> tuple[VerdictKind, Cause, int | None]:
    rank = None if gang_verdict.culprit is None else gang_verdict.culprit.rank
    return gang_verdict.verdict.kind, gang_verdict.verdict.cause, rank


def all_but(number: int, odd_rank: RankSnapshot, **more: Any) -> list[RankSnapshot]:
    return [
        odd_rank if other_number == number else rank(other_number, **more)
        for other_number in range(WORLD)
    ]


def test_judged__a_stopped_rank_is_named_with_its_pod_and_its_node() -> None:
    found = over_nodes(*all_but(3, rank(3, State.STOPPED)))
    assert named(found) == (VerdictKind.HUNG, Cause.STOPPED, 3)
    assert found.culprit is not None
    assert (found.culprit.pod, found.culprit.node) == ("j-3", "b")
    assert found.verdict.victims == (0, 1, 2)


def test_judged__it_is_the_verdict_of_the_controller_for_the_same_reports() -> None:
    ranks = all_but(3, rank(3, State.STOPPED))
    mine = over_nodes(*ranks)
    seen = [
        build.report(
            "ab"[at],
            *(rank_snapshot for rank_snapshot in ranks if (rank_snapshot.rank or 0) % 2 == at),
        )
        for at in (0, 1)
    ]
    theirs = merge(build.case(*seen))
    assert named(mine) == named(theirs)
    kinds = [evidence.kind for evidence in theirs.evidence]
    assert [evidence.kind for evidence in mine.evidence] == kinds
    assert HISTORY in mine.verdict.unobserved
    assert HISTORY not in theirs.verdict.unobserved


def computing(number: int) -> RankSnapshot:
    return rank(number, State.COMPUTING, effort=Effort.COMPUTE, stack=())


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({3: computing(3)}, (VerdictKind.UNKNOWN, Cause.COMPUTING, 3)),
        ({0: computing(0), 3: computing(3)}, (VerdictKind.WORKING, Cause.COMPUTING, None)),
        (
            {3: computing(3), 0: rank(0, State.CHILDREN, effort=Effort.CHILDREN)},
            (VerdictKind.WORKING, Cause.LOADING, None),
        ),
        ({3: computing(3), 0: rank(0, State.STOPPED)}, (VerdictKind.HUNG, Cause.STOPPED, 0)),
        (
            {3: rank(3, State.STORING, effort=Effort.STORAGE)},
            (VerdictKind.WORKING, Cause.CHECKPOINT, None),
        ),
        (
            {3: rank(3, State.SLEEPING)},
            (VerdictKind.WORKING, Cause.SLEEPING, None),
        ),
        ({3: rank(3, State.MOVING, 0.1)}, (VerdictKind.WORKING, Cause.TRAINING, None)),
    ],
    ids=[
        "one is at work",
        "two are at work, on two nodes",
        "one computes, another one loads",
        "one computes, another one is stopped",
        "one writes",
        "one sleeps",
        "one moves on",
    ],
)
def test_judged__who_is_waited_for_is_named_if_no_other_rank_is_at_work(
    odd: dict[int, RankSnapshot], expected: tuple[VerdictKind, Cause, int | None]
) -> None:
    ranks = [odd.get(number, rank(number, age_s=15.0)) for number in range(WORLD)]
    assert named(over_nodes(*ranks)) == expected


def test_judged__a_wait_that_is_short_yet_names_no_rank() -> None:
    ranks = [rank(number, age_s=4.0) for number in range(3)]
    assert named(over_nodes(*ranks, computing(3)))[0] is VerdictKind.WORKING


def test_judged__the_odd_one_of_all_nodes_is_named_where_no_node_could() -> None:
    found = over_nodes(*all_but(2, rank(2, stack=build.LOCK)))
    assert found.verdict.kind.is_fault
    assert found.culprit is not None
    assert (found.culprit.rank, found.culprit.pod) == (2, "j-2")
    assert found.verdict.victims == (0, 1, 3)


STEP = (PythonFrame("step", "train.py", 40),)
SAVE = (PythonFrame("save", "train.py", 71),)


def test_judged__the_odd_python_stack_is_offered_and_not_blamed() -> None:
    """All burn a CPU in their devices' library: no stack of code words shows who is elsewhere."""
    ranks = [
        rank(number, State.ON_DEVICE, stack=(), python=SAVE if number == 2 else STEP)
        for number in range(WORLD)
    ]
    found = over_nodes(*ranks)
    assert named(found) == (VerdictKind.UNKNOWN, Cause.DEVICE_WAIT, None)
    (text,) = [
        evidence.text for evidence in found.evidence if evidence.kind is EvidenceKind.OUTLIER
    ]
    assert text.startswith(
        "the odd one out, not necessarily the culprit: rank 2 is at save (train.py:71)"
    )


@pytest.mark.parametrize(
    "ranks",
    [
        all_but(2, rank(2, stack=build.LOCK, age_s=0.2)),
        [rank(number, age_s=1.0) for number in range(WORLD)],
    ],
    ids=["one has only come", "all wait for a second"],
)
def test_judged__no_rank_is_odd_in_a_job_that_is_not_stuck(ranks: list[RankSnapshot]) -> None:
    assert over_nodes(*ranks).verdict.kind is VerdictKind.WORKING


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(number) for number in range(WORLD)],
        [
            rank(number, stack=build.LOCK if number > 1 else build.COLLECTIVE)
            for number in range(WORLD)
        ],
    ],
    ids=["all in one place", "two halves"],
)
def test_judged__no_rank_is_named_without_a_majority(ranks: list[RankSnapshot]) -> None:
    assert over_nodes(*ranks).culprit is None


def test_judged__a_rank_that_is_gone_is_missing_by_its_number() -> None:
    """Neither node knows: the first has 0 and 2, the second 1."""
    found = over_nodes(*(rank(number) for number in range(3)))
    assert named(found) == (VerdictKind.HUNG, Cause.MISSING_RANK, 3)
    assert "3 of 4 ranks run on the nodes" in found.evidence[0].text


def test_judged__a_rank_is_not_missing_where_a_node_gave_no_answer() -> None:
    answer = NodeAnswer("a", report("a", rank(0), rank(2)), 0.0)
    found = judged("j", [answer], [build.pod(number) for number in range(WORLD)], build.NOW_S)
    assert found.verdict.kind is VerdictKind.WORKING
    assert "node b did not report" in found.verdict.unobserved


def test_judged__a_rank_is_not_missing_while_one_works() -> None:
    found = over_nodes(rank(0), computing(1), rank(2))
    assert found.verdict.cause is not Cause.MISSING_RANK


def test_judged__a_node_that_was_sure_sooner_still_counts() -> None:
    """Nodes are traced for 3 to 20 s: what came first is as old as that, and valid."""
    found = over_nodes(*all_but(3, rank(3, State.STOPPED)), late_s=17.0)
    assert named(found) == (VerdictKind.HUNG, Cause.STOPPED, 3)
    assert found.verdict.time_s - found.verdict.since_s == pytest.approx(9.0 + 17.0)


def test_judged__a_node_speaks_for_its_own_pods_only() -> None:
    liar = report("a", rank(1, State.STOPPED), rank(3))
    other = report("b", rank(1, State.MOVING, 0.1), rank(3, State.MOVING, 0.1))
    pods = [build.pod(number) for number in range(WORLD)]
    found = judged(
        "j", [NodeAnswer("a", liar, 0.0), NodeAnswer("b", other, 0.0)], pods, build.NOW_S
    )
    assert found.verdict.kind is VerdictKind.WORKING


def test_report_in__a_report_travels_in_the_verdict_of_its_node() -> None:
    sent = report("a", rank(0), rank(2, python=SAVE))
    assert report_in({"report": REPORT.encode(sent)}) == sent
    assert report_in({}) is None
    assert report_in({"report": {"node": 3}}) is None


def line(event: str, **fields: Any) -> Line:
    return parse(event_line(event, 5.0, {"headline": "", "unobserved": [], **fields}))


def test_edges__a_connection_between_nodes_gets_its_other_end() -> None:
    there = {"from": "rank 0", "to": None, "local": "a:1", "remote": "b:2"}
    here = {"from": "rank 2", "to": None, "local": "b:2", "remote": "a:1"}
    away = {"from": "rank 2", "to": None, "local": "b:3", "remote": "c:1"}
    joined = joined_trace.edges(
        [[line("verdict", edges=[there])], [line("verdict", edges=[here, away])]]
    )
    assert [connection.peer for connection in joined] == ["rank 2", "rank 0", None]


def test_threads__the_last_table_and_all_stacks_of_each_node_are_shown() -> None:
    row = {"rank": None, "pid": 1, "tid": 1, "comm": "x", "role": "helper"}
    stack = {"pid": 1, "tid": 1}
    node = [
        line("threads", threads=[]),
        line("threads", threads=[row]),
        line("stacks", stacks=[stack], unobserved=["kernel frames"]),
    ]
    assert joined_trace.threads([node, node, []]) == [row, row]
    assert joined_trace.stacks([node, node]) == ([stack, stack], ["kernel frames"])
