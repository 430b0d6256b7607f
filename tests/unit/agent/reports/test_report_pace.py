"""How often agents write: bounded for any number of them, and never slower for a verdict."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from kcover_ebpf.agent.reports.report_changes import has_new_details
from kcover_ebpf.agent.reports.report_pace import Allowance, Pace, nodes_of, valid_s
from kcover_ebpf.api.fault_report import FaultReport, PodRef
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.ids import Endpoint
from kcover_ebpf.model.collective_counts import CollectiveCounts
from kcover_ebpf.model.process_state import Effort, State
from kcover_ebpf.model.rank_snapshot import (
    EffortRates,
    GpuSnapshot,
    RankSnapshot,
    SocketSnapshot,
    StopSignal,
)
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.agent import HEARTBEAT_S
from tests.unit.support.report_builders import rank

SIZES = [1, 2, 64, 300, 900, 1_500, 5_000, 20_000, 100_000]


@pytest.mark.parametrize("agents", SIZES)
def test_pace__all_agents_together_write_no_more_than_the_api_server_can_take(agents: int) -> None:
    pace = Pace(agents)
    assert agents / pace.heartbeat_s <= (15 if agents <= 20_000 else 50)
    assert agents / pace.compared_s <= 50
    assert agents / pace.refresh_s <= 2
    assert agents / pace.details_s <= 25
    for nodes in (*(size for size in SIZES if size <= agents), None):
        assert (nodes or agents) / pace.fast_s(nodes) <= 200
        assert agents / pace.fast_s(nodes) <= 300, "and if every job of the cluster stalls"
        assert (nodes or agents) / pace.refill_s(nodes) <= 100
        assert (nodes or agents) / pace.stalled_refresh_s(nodes) <= 30


@pytest.mark.parametrize("agents", SIZES)
def test_pace__a_lease_claims_no_more_than_a_controller_believes(agents: int) -> None:
    assert valid_s(Pace(agents).heartbeat_s, fast=False) <= 3600


@pytest.mark.parametrize("agents", [1, 64, 450])
def test_pace__nothing_is_slower_than_it_could_be_on_some_hundred_nodes(agents: int) -> None:
    pace = Pace(agents)
    assert (pace.heartbeat_s, pace.fast_s(agents), pace.refill_s(agents)) == (30.0, 3.0, 5.0)
    assert pace.stalled_refresh_s(agents) == 20.0
    assert valid_s(pace.fast_s(agents), fast=True) == 10
    assert valid_s(pace.heartbeat_s, fast=False) == 45


def test_pace__a_small_job_of_a_large_cluster_is_slowed_by_the_cluster_only() -> None:
    assert Pace(1_500).fast_s(2) == 5.0
    assert Pace(1_500).fast_s(1_500) == 7.5
    assert Pace(1_500).fast_s(None) == 7.5, "it may be on all nodes"


@pytest.mark.parametrize(
    ("ranks", "nodes"),
    [
        ((), None),
        ((rank(0, world_size=None),), None),
        ((rank(0, world_size=16), rank(1, world_size=16)), 8),
        ((rank(0, world_size=9), rank(1, world_size=9)), 5),
        ((rank(0, world_size=4), rank(1, role=Role.LOADER, world_size=None)), 4),
    ],
)
def test_nodes_of__the_nodes_of_a_gang_follow_from_its_world(
    ranks: tuple[RankSnapshot, ...], nodes: int | None
) -> None:
    assert nodes_of(FaultReport("a", 0.0, 0, ranks=ranks)) == nodes


def test_allowance__news_is_never_kept_waiting_by_details() -> None:
    allowed, sent = Allowance(), 0
    for second in range(1, 5):
        if allowed.may_send(float(second), 15.0, is_news=False):
            allowed.spend(float(second))
            sent += 1
    assert sent == 3
    assert not allowed.may_send(4.1, 15.0, is_news=False)
    for _ in range(3):
        assert allowed.may_send(4.2, 15.0, is_news=True)
        allowed.spend(4.2)
    assert not allowed.may_send(4.3, 15.0, is_news=True)
    assert allowed.may_send(19.5, 15.0, is_news=True), "one for each refill"


def test_allowance__what_changes_all_the_time_is_sent_at_the_rate_of_the_refill() -> None:
    allowed, sent = Allowance(), 0
    for quarter in range(4 * 600):
        now_s = quarter / 4
        if allowed.may_send(now_s, 10.0, is_news=True):
            allowed.spend(now_s)
            sent += 1
    assert 60 <= sent <= 67


# ---- what is new

WIRE = SocketSnapshot(
    Endpoint("10.0.0.1", 4000), Endpoint("10.0.0.2", 4000), "ESTABLISHED", payload=True,
    sent_age_s=6.0, window=65536,
)  # fmt: skip
STORE = replace(WIRE, local=Endpoint("10.0.0.1", 29500), payload=False, sent_age_s=0.4)
HUNG = Verdict(
    VerdictKind.HUNG,
    Cause.STOPPED,
    since_s=994.0,
    evidence=(Evidence(EvidenceKind.TIME, "for 6.0 s"),),
)
WAITING = rank(0, age_s=6.0, sockets=(WIRE, STORE))
SENT = FaultReport(
    "a", 1000.0, 1, pods=(PodRef("p", "u"),), suspicious=True, verdict=HUNG, ranks=(WAITING,),
    collectives=CollectiveCounts(age_s=0.5, answers=2, span_s=2.0),
)  # fmt: skip
LATER_S = 9.0


def later(**changes: Any) -> FaultReport:
    """The same ranks in the same waits, nine seconds later."""
    waiting = replace(WAITING.later(LATER_S), text="another text", sockets=())
    wires = (replace(WIRE.later(LATER_S), window=64000), replace(STORE, sent_age_s=0.1))
    older = replace(HUNG, evidence=(Evidence(EvidenceKind.TIME, "for 15.0 s"),))
    counts = CollectiveCounts(age_s=0.2, answers=11, span_s=11.0)
    made = replace(SENT, time_s=1000.0 + LATER_S, verdict=older, collectives=counts)
    return replace(made, **({"ranks": (replace(waiting, sockets=wires),)} | changes))


def changed_rank(**changes: Any) -> FaultReport:
    (waiting,) = later().ranks
    return later(ranks=(replace(waiting, **changes),))


def changed_wire(**changes: Any) -> FaultReport:
    (waiting,) = later().ranks
    return changed_rank(sockets=(replace(waiting.sockets[0], **changes), waiting.sockets[1]))


def test_has_new_details__that_all_is_as_it_was_and_older_is_nothing_new() -> None:
    assert not has_new_details(SENT, SENT)
    assert not has_new_details(SENT, later())


CHANGES = {
    "it waits in another call": changed_rank(state=State.STORAGE),
    "its wait began anew": changed_rank(age_s=1.0),
    "it has sent something": changed_rank(sent_age_s=1.0),
    "its stack was read": changed_rank(stack=("libc.so+1",)),
    "its GPU is read": changed_rank(gpu=GpuSnapshot(("0000:5d:00.0",), next(iter(GpuUse)))),
    "it has ended": changed_rank(exit="signal 9"),
    "another process joined": later(ranks=(*later().ranks, rank(1))),
    "it left": later(ranks=()),
    "data is unread": changed_wire(unread=4096),
    "a peer takes nothing": changed_wire(unsent=70_000, window=0),
    "the link is lost": changed_wire(backoff=3, unacked=1),
    "the connection carried something": changed_wire(sent_age_s=0.5),
    "the connection is closed": changed_rank(sockets=(STORE,)),
    "another kind of evidence": later(
        verdict=replace(HUNG, evidence=(*HUNG.evidence, Evidence(EvidenceKind.EDGE, "x")))
    ),
    "the counts move": later(collectives=CollectiveCounts(age_s=0.2, moving=True)),
    "NCCL was not asked any more": later(collectives=None),
    "packets are lost": later(lossy=True),
    "a rank that was stopped is resumed": later(resumed_age_s=0.5),
}


@pytest.mark.parametrize("now", CHANGES.values(), ids=CHANGES)
def test_has_new_details__what_a_judge_could_conclude_something_from_is_new(
    now: FaultReport,
) -> None:
    assert has_new_details(SENT, now)


AGES_AND_AMOUNTS = {
    "text",
    "threshold_s",
    "received_age_s",
    "effort_rate",
    "effort_rates",
    "inert_s",
    # for people alone: no judgement reads these
    "ends_in_s",
    "discounted",
}
OTHER: dict[str, Any] = {
    "pid": 9, "role": Role.LOADER, "state": State.STORAGE, "pod_uid": "v", "tid": 9, "rank": 7,
    "pid_inside": 9, "world_size": 9, "age_s": 1.0, "sent_age_s": 1.0, "effort": Effort.COMPUTE,
    "wait": State.PEERS, "awaits": Endpoint("10.0.0.1", 443), "beside": ("a timer",),
    "sends_alike": True, "waits_for": (3,), "stack": ("libc.so+1",),
    "python": (PythonFrame("f", "a.py", 1),), "exit": "signal 9", "stop_signal": StopSignal(19),
    "sockets": (), "network_busy": True, "gpu": GpuSnapshot(("x",), next(iter(GpuUse))),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", sorted({field.name for field in fields(RankSnapshot)} - AGES_AND_AMOUNTS)
)
def test_has_new_details__each_fact_about_a_rank_is_one(name: str) -> None:
    other = OTHER.get(name, not getattr(WAITING, name))
    assert has_new_details(SENT, changed_rank(**{name: other}))


@pytest.mark.parametrize(
    "amount",
    [
        {"text": "poll"}, {"threshold_s": 9.0}, {"received_age_s": 9.0}, {"inert_s": 9.0},
        {"effort_rate": 9.0}, {"effort_rates": EffortRates(compute=9.0)},
    ],
    ids=lambda amount: next(iter(amount)),
)  # fmt: skip
def test_has_new_details__ages_and_amounts_are_none(amount: dict[str, Any]) -> None:
    assert amount.keys() <= AGES_AND_AMOUNTS
    assert not has_new_details(SENT, changed_rank(**amount))


def test_has_new_details__where_a_running_thread_was_found_is_a_sample() -> None:
    spins = rank(0, State.ON_DEVICE, stack=("libcuda.so.1+10",))
    old = replace(SENT, ranks=(spins,), collectives=None)
    moved = replace(spins.later(1.0), stack=("libcuda.so.1+20",))
    assert not has_new_details(old, replace(old, time_s=1001.0, ranks=(moved,)))
    left = replace(moved, state=State.FUTEX)
    assert has_new_details(old, replace(old, time_s=1001.0, ranks=(left,)))


def test_report_pace__the_heartbeat_is_what_others_count_on() -> None:
    assert HEARTBEAT_S == 30.0
