"""What is remembered of one gang between two judgements, and the sentence about a rack in its verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.nodes import rack_of
from kcover_ebpf.controller.context_builder import GangMemo, with_lags
from kcover_ebpf.facts.host import CollectiveLag, LaggingHost
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.ids import Endpoint
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.rank_snapshot import SocketSnapshot
from kcover_ebpf.model.verdict import Cause, Certainty, Verdict, VerdictKind
from kcover_ebpf.recovery.nodes.others import kept_of_node
from kcover_ebpf.recovery.restart.context import GangPod
from kcover_ebpf.recovery.restart.demand import Trigger
from kcover_ebpf.settings import Policy
from tests.unit.support import kept_incidents, report_builders
from tests.unit.support.report_builders import rank, report

NOW_S = 1_700_000_000.0
POLICY = Policy()
RACKS = {"n0": "r0", "n1": "r0", "n2": "r1", "n3": "r1"}
OUTSIDE = GangVerdict(Verdict(VerdictKind.HUNG, Cause.NOT_IN_COLLECTIVE))


def said(kind: VerdictKind, cause: Cause, acts_at_s: float | None = None) -> GangVerdict:
    certainty = Certainty.INFERRED if acts_at_s else None
    return GangVerdict(
        Verdict(kind, cause, NOW_S, NOW_S - 300.0, certainty=certainty, acts_at_s=acts_at_s)
    )


HUNG = said(VerdictKind.HUNG, Cause.BLOCKED_LOCK, NOW_S - 180.0)


@pytest.mark.parametrize(
    ("cause", "acts_at_s"),
    [(Cause.SLEEPING, NOW_S + POLICY.act_floor_s), (Cause.TRAINING, NOW_S - 180.0)],
)
def test_gang_memo__what_follows_on_an_explained_wait_is_put_off(
    cause: Cause, acts_at_s: float
) -> None:
    memo = GangMemo()
    memo.remember(said(VerdictKind.WORKING, cause), NOW_S, POLICY)
    judged = memo.remember(HUNG, NOW_S + 1.0, POLICY)
    assert judged is not None
    assert judged.verdict.acts_at_s == acts_at_s
    assert memo.since_s == NOW_S + 1.0


@pytest.mark.parametrize(
    ("after_s", "certainty"), [(1.0, Certainty.SUSPECTED), (2.5, Certainty.INFERRED)]
)
def test_gang_memo__just_after_an_explained_wait_a_hang_is_only_suspected(
    after_s: float, certainty: Certainty
) -> None:
    memo = GangMemo()
    memo.remember(said(VerdictKind.WORKING, Cause.SLEEPING), NOW_S, POLICY)
    judged = memo.remember(HUNG, NOW_S + after_s, POLICY)
    assert judged is not None
    assert judged.verdict.certainty is certainty
    assert judged.verdict.kind.is_fault is (certainty is Certainty.INFERRED)


def test_gang_memo__without_a_verdict_there_is_nothing_to_put_off() -> None:
    memo = GangMemo()
    memo.remember(HUNG, NOW_S, POLICY)
    assert memo.remember(None, NOW_S + 1.0, POLICY) is None
    assert memo.signature == ()


@pytest.mark.parametrize("gang_verdict", [None, said(VerdictKind.WORKING, Cause.TRAINING), HUNG])
def test_gang_memo__what_a_new_controller_sees_first_counts_from_then(
    gang_verdict: GangVerdict | None,
) -> None:
    memo = GangMemo()
    memo.remember(gang_verdict, NOW_S, POLICY)
    memo.remember(gang_verdict, NOW_S + 1.0, POLICY)
    assert memo.since_s == NOW_S


@pytest.mark.parametrize(("about", "opened"), [("u0", 1), ("of-a-deleted-job", 0)])
def test_context_builder__an_event_about_an_earlier_job_says_nothing_about_the_next_with_its_name(
    about: str, opened: int
) -> None:
    cluster = kept_incidents.World()
    own = replace(report_builders.pod(0), uid="u0", node="n0", created_s=cluster.now_s - 40.0)
    cluster.pods = (GangPod(own),)
    cluster.report()
    crashed = Verdict(
        VerdictKind.CRASHED,
        Cause.UNKNOWN,
        cluster.now_s - 90.0,
        cluster.now_s - 90.0,
        certainty=Certainty.ANNOUNCED,
    )
    trigger = Trigger(cluster.now_s - 90.0, GangVerdict(crashed), about)
    cluster.store.triggers[kept_incidents.KEY] = trigger
    cluster.jobs.reconcile(kept_incidents.KEY)
    assert (len(cluster.statuses), len(cluster.store.triggers)) == (opened, opened)


def test_gang_memo__moments_of_a_clock_that_was_set_back_count_from_now() -> None:
    memo = GangMemo(since_s=NOW_S, calm_s=NOW_S, explained_s=NOW_S, called={"call": NOW_S})
    memo.found = NOW_S, None
    memo.begin_pass(NOW_S + 1.0)
    assert (memo.since_s, memo.calm_s, memo.explained_s) == (NOW_S,) * 3
    memo.begin_pass(NOW_S - 60.0)
    assert (memo.since_s, memo.calm_s, memo.explained_s) == (NOW_S - 60.0,) * 3
    assert (memo.called, memo.found) == ({"call": NOW_S - 60.0}, (NOW_S - 60.0, None))


def connected(number: int):
    ends = Endpoint(f"10.0.0.{number // 2}", 40_000), Endpoint("10.0.0.9", 1)
    return rank(number, sockets=(SocketSnapshot(*ends, "ESTABLISHED"),))


def reports(*lagging: int):
    places = tuple(LaggingHost(f"10.0.0.{node}", 2, (0, 1)) for node in lagging)
    lag = CollectiveLag(2, 2 * len(lagging), 8, "AllReduce", places)
    counts = CollectiveCounts(1.0, lags=(lag,))
    return [
        report(
            f"n{node}",
            connected(2 * node),
            connected(2 * node + 1),
            collectives=counts if node == 0 else None,
        )
        for node in range(4)
    ]


def test_with_lags__a_rack_that_is_behind_is_evidence() -> None:
    gang_verdict = with_lags(OUTSIDE, reports(2, 3), RACKS.get)
    assert [evidence.text for evidence in gang_verdict.evidence] == [
        "all of rack r1 (4 ranks on 2 nodes) is 2 all-reduces behind"
    ]


def test_with_lags__nothing_is_said_of_what_is_no_incident_or_of_ranks_here_and_there() -> None:
    working = GangVerdict(Verdict(VerdictKind.WORKING, Cause.TRAINING))
    assert with_lags(working, reports(2, 3), RACKS.get) is working
    assert with_lags(OUTSIDE, [report("n0", rank(0))], RACKS.get) is OUTSIDE


def test_rack_of__a_node_keeps_the_label_of_its_switch() -> None:
    labels = {"network.topology.nvidia.com/leaf": "s17", "kubernetes.io/hostname": "n"}
    assert rack_of(labels) == "s17"
    assert kept_of_node({"metadata": {"name": "n", "labels": labels}})["metadata"]["rack"] == "s17"
    assert "rack" not in kept_of_node({"metadata": {"name": "n"}})["metadata"]
