"""What of the reports counts: an agent is believed about pods on its own node, and about nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_report import PodRef
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Culprit, EvidenceKind, VerdictKind
from tests.unit.support.report_builders import case, local, rank, report

CRASH = local(VerdictKind.CRASHED, Cause.SEGFAULT, 0, 0.1, EvidenceKind.EVENT)
CALM = tuple(
    report(node, suspicious=False, pods=(PodRef(f"j-{number}", f"uid-{number}"),))
    for number, node in enumerate("ab")
)


def forged(*pods: int, **more):
    """A report of a node that has no pod of the job, about pods of other nodes."""
    return report("evil", pods=tuple(PodRef(f"j-{pod}", f"uid-{pod}") for pod in pods), **more)


@pytest.mark.parametrize("pods", [(0,), (0, 1, 2, 3), ()], ids=["one", "all", "none"])
def test_gang_input__a_node_without_a_pod_of_the_job_cannot_report_a_crash_of_it(pods):
    merged = merge(case(*CALM, forged(*pods, verdict=CRASH)))
    assert (merged.verdict.kind, merged.culprit) == (VerdictKind.WORKING, None)


def test_gang_input__a_node_without_a_pod_of_the_job_adds_no_rank_to_it():
    waiting = report("a", rank(0), rank(2)), report("b", rank(1), rank(3))
    stopped = replace(
        forged(0), report=replace(forged(0).report, ranks=(rank(0, State.STOPPED, 9.0),))
    )
    merged = merge(case(*waiting, stopped))
    assert merged.verdict.cause is not Cause.STOPPED


@pytest.mark.parametrize(
    "culprit",
    [
        Culprit(rank=1, pod_uid="uid-1"),
        Culprit(rank=1, pod="j-1"),
        Culprit(rank=0, pod="j-0", pod_uid="uid-0", node="b"),
    ],
    ids=["uid", "name", "node"],
)
def test_gang_input__a_node_with_a_pod_of_the_job_cannot_blame_another_node(culprit):
    liar = report("a", rank(0), suspicious=False, verdict=replace(CRASH, culprit=culprit))
    merged = merge(case(liar, CALM[1]))
    assert (merged.verdict.kind, merged.culprit) == (VerdictKind.WORKING, None)


def test_gang_input__a_rank_of_another_node_is_left_out_of_the_snapshot():
    liar = report("a", rank(0), rank(2), rank(1, State.STOPPED, 9.0))
    merged = merge(case(liar, report("b", rank(1), rank(3))))
    assert merged.verdict.cause is not Cause.STOPPED


def test_gang_input__what_a_node_reports_of_its_own_pods_counts():
    honest = report("a", rank(0), suspicious=False, verdict=CRASH)
    merged = merge(case(honest, CALM[1]))
    assert merged.culprit is not None
    assert (merged.verdict.kind, merged.culprit.pod, merged.culprit.node) == (
        VerdictKind.CRASHED,
        "j-0",
        "a",
    )


STRAY = Culprit(rank=0, pod="a-debug-copy", pod_uid="uid-stray")


@pytest.mark.parametrize("kind", [VerdictKind.HUNG, VerdictKind.CRASHED])
def test_gang_input__a_pod_that_only_carries_the_labels_of_a_job_is_not_its_culprit(kind):
    """An agent judges by labels; the controller knows which pods belong to the job."""
    said = replace(CRASH, kind=kind, culprit=STRAY)
    fooled = replace(CALM[0], report=replace(CALM[0].report, verdict=said))
    merged = merge(case(fooled, pods=1, strays=frozenset({"uid-stray"})))
    assert (merged.verdict.kind, merged.culprit) == (VerdictKind.WORKING, None)


def test_gang_input__a_culprit_whose_pod_is_gone_still_counts():
    """Some job controllers delete the pod of a rank that failed at once."""
    said = replace(CRASH, culprit=replace(STRAY, pod="j-old", pod_uid="uid-old"))
    report_of_it = replace(CALM[0], report=replace(CALM[0].report, verdict=said))
    merged = merge(case(report_of_it, pods=1, strays=frozenset({"uid-stray"})))
    assert merged.verdict.kind is VerdictKind.CRASHED


def test_gang_input__what_is_derived_is_derived_once() -> None:
    """A verdict asks for it some twenty times, and a gang has a thousand reports."""
    gang_input = case(report("a", rank(0)), report("b", rank(1)))
    for name in ("fresh", "with_snapshots", "calm", "silent"):
        assert getattr(gang_input, name) is getattr(gang_input, name), name
    later = replace(gang_input, now_s=gang_input.now_s + 10_000.0)
    assert (len(gang_input.fresh), len(later.fresh)) == (2, 0), "of another moment it is another"
