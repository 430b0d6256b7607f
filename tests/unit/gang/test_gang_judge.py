"""One verdict from the reports of two nodes: who is named, and what a missing report does to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kcover_ebpf.api.fault_report import REPORT, FaultReport, PodRef
from kcover_ebpf.gang.gang_input import NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, VerdictKind
from tests.unit.support.report_builders import LOCK, NOW_S, case, local, pod, rank, report, wire

WAITING = (rank(0), rank(2)), (rank(1), rank(3))
BLOCKED = rank(1, State.LOCK, 7.0, stack=LOCK)
CRASH_A = local(VerdictKind.CRASHED, Cause.EXITED, 0, 1.0, EvidenceKind.EVENT)
CRASH_B = local(VerdictKind.CRASHED, Cause.EXITED, 1, 1.2, EvidenceKind.EVENT)
OOM_B = local(VerdictKind.CRASHED, Cause.OOM_KILLED, 1, 1.0, EvidenceKind.EVENT)

STORIES = {
    "a stopped rank on the other node": (
        case(report("a", *WAITING[0]), report("b", rank(1, State.STOPPED), rank(3))),
        (VerdictKind.HUNG, Cause.STOPPED, "j-1", "b", False),
    ),
    "a stopped rank is enough, whatever a silent node would say": (
        case(report("b", rank(1, State.STOPPED), rank(3))),
        (VerdictKind.HUNG, Cause.STOPPED, "j-1", "b", True),
    ),
    "a rank at a lock, the others wait for it": (
        case(report("a", *WAITING[0]), report("b", BLOCKED, rank(3))),
        (VerdictKind.HUNG, Cause.BLOCKED_LOCK, "j-1", "b", False),
    ),
    "two locks on two nodes at once: no culprit identified": (
        case(
            report("a", rank(0, State.LOCK, 6.9, stack=LOCK), rank(2)),
            report("b", BLOCKED, rank(3)),
        ),
        (VerdictKind.HUNG, Cause.BLOCKED_LOCK, None, None, False),
    ),
    "all four stopped together is no fault": (
        case(
            report("a", rank(0, State.STOPPED), rank(2, State.STOPPED)),
            report("b", rank(1, State.STOPPED), rank(3, State.STOPPED)),
        ),
        (VerdictKind.WORKING, Cause.SUSPENDED, None, None, False),
    ),
    "one rank writes a checkpoint": (
        case(report("a", rank(0, State.STORING), rank(2)), report("b", *WAITING[1])),
        (VerdictKind.WORKING, Cause.CHECKPOINT, None, None, False),
    ),
    "a crash on one node wins over the wait on the other": (
        case(report("a", *WAITING[0]), report("b", *WAITING[1], verdict=OOM_B)),
        (VerdictKind.CRASHED, Cause.OOM_KILLED, "j-1", "b", False),
    ),
    "two exits closer than clocks: no culprit identified": (
        case(report("a", *WAITING[0], verdict=CRASH_A), report("b", *WAITING[1], verdict=CRASH_B)),
        (VerdictKind.CRASHED, Cause.EXITED, None, None, False),
    ),
    "an exit a second before the other": (
        case(
            report("a", *WAITING[0], verdict=replace(CRASH_A, since_s=NOW_S - 3.0)),
            report("b", *WAITING[1], verdict=CRASH_B),
        ),
        (VerdictKind.CRASHED, Cause.EXITED, "j-0", "a", False),
    ),
    "the out-of-memory killer beside an exit": (
        case(report("a", *WAITING[0], verdict=CRASH_A), report("b", *WAITING[1], verdict=OOM_B)),
        (VerdictKind.CRASHED, Cause.OOM_KILLED, "j-1", "b", False),
    ),
    "no rank is suspicious": (
        case(report("a", *WAITING[0], suspicious=False), report("b", *WAITING[1], suspicious=False)),
        (VerdictKind.WORKING, Cause.TRAINING, None, None, False),
    ),
    "a node went away with its ranks": (
        case(
            report("a", rank(0, age_s=12.0), rank(2, age_s=12.0)),
            nodes={"a": NodeState("a"), "b": NodeState("b", ready=False)},
        ),
        (VerdictKind.HUNG, Cause.PEER_GONE, "j-1", "b", False),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reported", "expected"), STORIES.values(), ids=STORIES)
def test_merge__the_verdict_of_all_nodes(reported, expected):
    merged = merge(reported)
    culprit = merged.culprit
    who = (culprit.pod, culprit.node) if culprit else (None, None)
    assert (
        merged.verdict.kind,
        merged.verdict.cause,
        *who,
        bool(merged.verdict.unobserved),
    ) == expected
    assert not merged.depends


def test_merge__a_verdict_that_a_silent_node_could_change_is_marked():
    merged = merge(case(report("b", BLOCKED, rank(3))))
    assert merged.verdict.kind.is_fault
    assert merged.depends
    assert merged.verdict.unobserved == ("node a did not report",)


def test_merge__a_node_that_only_starts_ranks_need_not_report_any():
    labels = {"training.kubeflow.org/job-name": "j", "training.kubeflow.org/job-role": "launcher"}
    labels["training.kubeflow.org/operator-name"] = "mpi-operator"
    launcher = replace(pod(0), name="j-launcher", uid="uid-9", node="c", labels=labels)
    seen = report("a", *WAITING[0]), report("b", BLOCKED, rank(3))
    pods = tuple(pod(number) for number in range(4))
    assert merge(case(*seen, pods=4)).culprit is not None
    assert not merge(replace(case(*seen), pods=(*pods, launcher))).depends
    assert merge(replace(case(*seen), pods=(*pods, replace(launcher, labels={})))).depends


def test_merge__a_stale_snapshot_counts_as_silence():
    merged = merge(
        case(report("a", *WAITING[0], arrived_s=NOW_S - 40), report("b", BLOCKED, rank(3)))
    )
    assert merged.depends


def test_merge__a_link_between_two_nodes_is_named_from_both_ends():
    lost = {"backoff": 5, "unacked": 9000, "sent_age_s": 1.0, "payload": True}
    ranks = [
        rank(0, sockets=(wire(0, 1, **lost),)),
        rank(1, sockets=(wire(1, 0, **lost), wire(1, 2, **lost))),
        rank(2, sockets=(wire(2, 1, **lost),)),
        rank(3),
    ]
    merged = merge(case(report("a", ranks[0], ranks[2]), report("b", ranks[1], ranks[3])))
    assert merged.culprit is not None
    assert (merged.verdict.kind, merged.culprit.pod) == (VerdictKind.LOST_LINK, "j-1")


def test_merge__the_first_to_send_is_not_named_across_nodes_by_a_tenth_of_a_second():
    # on one host a lead of 60 ms shows which rank never entered the collective; between nodes it may be the wire
    close = [rank(0, State.PEERS, 9), rank(2, State.PEERS, 9)], [
        rank(1, State.PEERS, 9, sent_age_s=9.1), rank(3, State.PEERS, 9)
    ]  # fmt: skip
    apart = [rank(0, State.PEERS, 9), rank(2, State.PEERS, 9)], [
        rank(1, State.PEERS, 9, sent_age_s=10.0), rank(3, State.PEERS, 9)
    ]  # fmt: skip
    assert merge(case(report("a", *close[0]), report("b", *close[1]))).culprit is None
    named = merge(case(report("a", *apart[0]), report("b", *apart[1]))).culprit
    assert named is not None
    assert named.pod == "j-1"


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_merge__a_rank_that_never_came_is_missed_only_once_every_pod_runs(phase):
    waiting = [rank(number, age_s=40.0) for number in (0, 1, 2)]
    reported = case(
        report("a", waiting[0], waiting[2], trained=False),
        report("b", waiting[1], trained=False),
        pods=3,
    )
    reported = replace(reported, pods=(*reported.pods, pod(3, phase)))
    merged = merge(reported)
    if phase == "Pending":
        assert merged.verdict.cause is not Cause.MISSING_RANK
    else:
        assert merged.culprit is not None
        assert (merged.verdict.cause, merged.culprit.rank) == (Cause.MISSING_RANK, 3)
        # as its nodes say: time alone draws no inference
        assert merged.verdict.certainty is Certainty.SUSPECTED
        assert {evidence.kind for evidence in merged.evidence} == {
            EvidenceKind.TIME,
            EvidenceKind.PEERS,
        }


def test_merge__a_report_about_pods_that_are_gone_says_nothing():
    old = replace(rank(1, State.STOPPED), pod_uid="uid-of-yesterday")
    assert merge(case(report("b", old))).verdict.kind is VerdictKind.WORKING


def test_merge__ages_are_counted_from_when_the_report_came():
    late = case(
        report("a", *WAITING[0]),
        report("b", rank(1, State.STOPPED, 5.0), rank(3), arrived_s=NOW_S - 3),
    )
    assert merge(late).verdict.since_s == pytest.approx(NOW_S - 8, abs=0.01)


def test_merge__ranks_that_are_suspended_in_turn_are_no_fault_while_one_after_another_is_resumed():
    still_stopped = rank(1, State.STOPPED, 9.0), rank(3, State.STOPPED, 8.0)
    resumed = report("a", rank(0, age_s=1.0), rank(2, State.STOPPED), resumed_age_s=1.0)
    merged = merge(case(resumed, report("b", *still_stopped)))
    assert not merged.verdict.kind.is_fault
    long_ago = replace(resumed, report=replace(resumed.report, resumed_age_s=30.0))
    merged = merge(case(long_ago, report("b", *still_stopped)))
    assert (merged.verdict.kind, merged.verdict.cause) == (VerdictKind.HUNG, Cause.STOPPED)


def test_merge__ranks_of_one_node_alone_are_no_circle():
    waits = rank(1, State.FUTEX, 400.0), rank(3, State.FUTEX, 400.0)
    everywhere = report("a", rank(0, age_s=400.0), rank(2, age_s=400.0)), report("b", *waits)
    assert merge(case(*everywhere)).verdict.cause is Cause.WAIT_CYCLE
    assert merge(case(*everywhere)).verdict.kind is VerdictKind.HUNG
    works = report("a", suspicious=False, pods=(PodRef("j-0", "uid-0"),))
    has_stalled = report("a", rank(0, State.OUTSIDE, 400.0), arrived_s=NOW_S - 12)
    for other in (works, has_stalled):
        merged = merge(case(other, report("b", *waits)))
        assert merged.verdict.kind is VerdictKind.UNKNOWN, "what the others do now is not seen"


numbers = st.floats(0, 100, allow_nan=False)
snapshots = st.builds(
    rank,
    st.integers(0, 3),
    st.sampled_from(list(State)),
    numbers,
    pid=st.integers(1, 5),
    waits_for=st.lists(st.integers(1, 5), max_size=2).map(tuple),
    role=st.sampled_from([Role.RANK, Role.LOADER, Role.HELPER]),
    exit=st.sampled_from([None, None, None, "code 0", "signal 9"]),
    effort=st.sampled_from([None, Effort.COMPUTE]),
    sockets=st.lists(
        st.builds(
            wire, st.integers(0, 3), st.integers(0, 3),
            backoff=st.integers(0, 9), unacked=st.integers(0, 9), payload=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(snapshots, max_size=4), st.lists(snapshots, max_size=4))
@example([rank(0), rank(2)], [rank(1, State.STOPPED), rank(3)])
def test_merge__any_snapshot_gets_a_verdict_and_survives_the_wire(on_a, on_b):
    seen = [report("a", *on_a), report("b", *on_b)]
    for received in seen:
        assert REPORT.decode(FaultReport, REPORT.encode(received.report)) == received.report
    merged = merge(case(*seen))
    assert merged.verdict.since_s <= NOW_S + 1
    assert merged.culprit is None or merged.culprit.node in (None, "a", "b")


def test_merge__of_two_slow_ranks_the_slower_one_is_named():
    slow = [
        replace(
            local(VerdictKind.SLOW, Cause.CPU_THROTTLED, number, 1.0, EvidenceKind.TIME),
            factor=factor,
        )
        for number, factor in ((0, 2.5), (1, 1.4))
    ]
    reported = [
        report(node, rank(number), suspicious=False, verdict=verdict)
        for number, (node, verdict) in enumerate(zip("ab", slow, strict=True))
    ]
    merged = merge(case(*reported))
    assert merged.culprit is not None
    assert (merged.culprit.rank, merged.verdict.factor) == (0, 2.5)


def test_merge__what_a_node_found_among_its_own_ranks_says_nothing_of_those_elsewhere():
    server_waits = local(VerdictKind.SLOW, Cause.SLOW_RANK, 1, 1.0, EvidenceKind.PEERS)
    seen = (
        report("a", rank(0), suspicious=False),
        report("b", rank(1), suspicious=False, verdict=replace(server_waits, factor=40.0)),
    )
    assert merge(case(*seen)).verdict.kind is VerdictKind.WORKING


def test_merge__the_claims_of_a_pod_that_waits_for_storage_are_named():
    seen = report("a", rank(0), rank(2)), report("b", rank(1, State.STORAGE, 400.0), rank(3))
    pods = tuple(replace(pod(number), claims=("datasets",)) for number in range(4))
    merged = merge(replace(case(*seen), pods=pods))
    assert merged.verdict.cause is Cause.STORAGE
    assert merged.evidence[-1].text == "pod j-1 has its volumes by datasets"


FROZEN_BEFORE = report(
    "b", rank(1, State.FROZEN, 3.8), rank(3, State.FROZEN, 3.8), arrived_s=NOW_S - 2.4
)


def test_merge__a_freeze_that_may_be_over_ends_no_job() -> None:
    """It was 3.8 s old when its node spoke; 5 s are a fault, and the node has not said that it lasts so long."""
    merged = merge(case(report("a", rank(0), rank(2)), FROZEN_BEFORE))
    assert (merged.verdict.kind, merged.verdict.cause) == (VerdictKind.UNKNOWN, Cause.FROZEN)
    assert merged.verdict.certainty is Certainty.SUSPECTED
    assert merged.verdict.acts_at_s is not None
    assert merged.verdict.acts_at_s < NOW_S
    assert (merged.depends, merged.unsaid) == (False, "whether it is still so on b")


@pytest.mark.parametrize(("confirmed_s", "awaits"), [(NOW_S - 1.5, "b"), (NOW_S - 0.5, None)])
def test_merge__a_node_may_say_that_it_is_still_so(confirmed_s: float, awaits: str | None) -> None:
    seen = report("a", rank(0), rank(2)), replace(FROZEN_BEFORE, confirmed_s=confirmed_s)
    merged = merge(case(*seen))
    assert merged.awaits == awaits
    assert merged.verdict.kind.is_fault is (awaits is None)


def test_merge__an_agent_that_is_gone_is_not_waited_for() -> None:
    lasting = rank(1, State.FROZEN, 3.8), rank(3, State.FROZEN, 3.8)
    seen = report("b", *lasting, arrived_s=NOW_S - 50, expires_after_s=90)
    merged = merge(case(report("a", rank(0), rank(2)), seen))
    assert merged.awaits is None


def test_merge__what_was_announced_is_not_waited_for() -> None:
    seen = report("a", rank(0), rank(2)), report("b", verdict=CRASH_B, arrived_s=NOW_S - 20)
    assert merge(case(*seen)).awaits is None
