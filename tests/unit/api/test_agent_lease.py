"""What an agent's Lease says, on the wire, and what it makes of the reports that it confirms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.agent.reports.report_pace import Pace, valid_s
from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.agent_lease import MOST_ACKS, AgentLease, lease_of, object_of
from kcover_ebpf.api.fault_report import Ack, AckResult, PodRef
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.order import Verb
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.tunables.agent import HEARTBEAT_S
from kcover_ebpf.tunables.recovery import AGENT_SILENT_S, SNAPSHOT_FRESH_S
from tests.unit.support.fake_clock import FakeClock
from tests.unit.support.report_builders import NOW_S, SELECTOR, case, rank, report

STOP = Ack("i-1", Verb.STOP, AckResult.DONE, 8, bundle="/var/lib/kcover/b")
KILL = Ack("i-2", Verb.KILL, AckResult.DONE, 8)
FAST_S = valid_s(Pace().fast_s(2), fast=True)
CALM_S = valid_s(HEARTBEAT_S, fast=False)


def test_object_of__what_is_written_is_what_is_read() -> None:
    made = AgentLease("a", 1000.25, 10, frozenset({5, 7}), (STOP, KILL))
    written = json.loads(json.dumps(object_of(made, PodRef("kcover-agent-x", "u"))))
    assert lease_of(written) == made
    (owner,) = written["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "kcover-agent-x", "uid": "u"}


def test_object_of__the_oldest_answers_are_left_out_of_too_many() -> None:
    acks = [replace(STOP, order=str(number)) for number in range(MOST_ACKS + 3)]
    read = lease_of(object_of(AgentLease("a", 1.0, 10, acks=tuple(acks))))
    assert read is not None
    assert [ack.order for ack in read.acks] == [str(number) for number in range(3, MOST_ACKS + 3)]


def spoiled(**changes: Any) -> dict[str, Any]:
    made = object_of(AgentLease("a", 1000.0, 10, frozenset({1}), (STOP,)))
    for key, value in changes.items():
        part = made["metadata"]["annotations"] if key.startswith("kcover") else made["spec"]
        part[key] = value
    return made


@pytest.mark.parametrize(
    "wrong",
    [
        spoiled(leaseDurationSeconds=0),
        spoiled(leaseDurationSeconds="10"),
        spoiled(leaseDurationSeconds=10**400),
        spoiled(leaseDurationSeconds=True),
        spoiled(renewTime="yesterday"),
        spoiled(**{"kcover.io/agent": "{"}),
        spoiled(**{"kcover.io/agent": "[" * 100_000}),
        spoiled(**{"kcover.io/agent": '{"current": "7"}'}),
        spoiled(**{"kcover.io/agent": '{"acks": [{"order": "x"}]}'}),
    ],
)
def test_object_of__a_lease_that_cannot_be_read_is_refused_in_one_line(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(ObjectError, match=r"^Lease agent\.a: [^\n]+$"):
        lease_of(wrong)


def test_object_of__the_leases_of_others_are_passed_over() -> None:
    made = object_of(AgentLease("a", 1000.0, 10))
    made["metadata"]["name"] = "kcover-ebpf-controller"
    assert lease_of(made) is None
    assert lease_of({"metadata": {"name": "agent.a"}, "spec": {}}) is None
    assert lease_of({}) is None


# ---- what it makes of a report


def held(
    received: ReceivedReport, age_s: float, valid: int = FAST_S, *holds: int
) -> ReceivedReport:
    """The report, and a Lease of its agent that was renewed `age_s` ago; `holds`: what it confirms, by default this."""
    current = frozenset(holds or {received.report.sequence})
    return confirmed(received, AgentLease(received.report.node, 0.0, valid, current), NOW_S - age_s)


def gang(age_s: float) -> tuple[ReceivedReport, ReceivedReport]:
    """A hang that both nodes reported so long ago: rank 1 is stopped."""
    at_s = NOW_S - age_s
    return (
        report("a", rank(0), rank(2), arrived_s=at_s),
        report("b", rank(1, State.STOPPED), rank(3), arrived_s=at_s),
    )


def test_confirmed__a_snapshot_that_is_confirmed_need_not_be_sent_again() -> None:
    a, b = gang(60.0)
    alone = merge(case(a, b)).verdict
    assert alone.kind is VerdictKind.WORKING, "a minute old and not confirmed"
    verdict = merge(case(held(a, 1.0), held(b, 1.0))).verdict
    assert (verdict.kind, verdict.cause) == (VerdictKind.HUNG, Cause.STOPPED)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 1
    assert verdict.time_s - verdict.since_s == pytest.approx(66.0, abs=1.0), (
        "what it says grows older all the same"
    )


def test_confirmed__a_snapshot_that_is_not_confirmed_any_more_is_as_old_as_its_last_confirmation() -> (
    None
):
    a, b = gang(60.0)
    late = merge(case(held(a, 1.0), held(b, FAST_S + 1.0)))
    assert late.depends, "nothing is done about it"
    assert late.verdict.unobserved == ("node b did not report",)
    assert held(b, FAST_S + 1.0).age_s(NOW_S) == FAST_S + 1.0
    assert case(held(b, FAST_S + 1.0)).with_snapshots == ()
    assert case(held(b, FAST_S - 1.0)).with_snapshots != ()


def test_confirmed__a_lease_of_calm_times_makes_no_snapshot_of_a_stall_last_longer() -> None:
    """It was renewed, and confirms another report, before this one was made."""
    fresh = held(
        report("b", rank(1), rank(3), arrived_s=NOW_S - SNAPSHOT_FRESH_S - 1), 0.5, CALM_S, 99
    )
    assert case(fresh).with_snapshots == ()
    assert fresh.unheard_s(NOW_S) == 0.5, "its agent is there"


def test_confirmed__a_calm_node_is_there_as_long_as_its_agent_renews() -> None:
    quiet = report("b", rank(1), rank(3), arrived_s=NOW_S - 500.0, suspicious=False)
    stalled = report("a", rank(0), rank(2))
    assert case(stalled, quiet).calm == {}
    there = replace(quiet, report=replace(quiet.report, ranks=()))
    assert case(stalled, held(there, AGENT_SILENT_S - 1, CALM_S)).calm == {"b": True}
    assert case(stalled, held(there, AGENT_SILENT_S + 1, CALM_S)).calm == {}
    assert held(there, 44.0, CALM_S).is_stale(NOW_S) is False
    assert held(there, 100.0, CALM_S).is_stale(NOW_S) is True


def test_confirmed__answers_to_orders_are_those_of_report_and_lease_together() -> None:
    seen = report("a", rank(0), acks=(STOP,))
    lease = AgentLease("a", 0.0, 10, frozenset(), (STOP, KILL))
    assert confirmed(seen, lease, NOW_S).report.acks == (STOP, KILL)
    assert confirmed(seen, replace(lease, acks=(STOP,)), NOW_S).report.acks == (STOP,)


# ---- in the controller


def written(node: str, sequence: int, age_s: float = 0.0) -> Event:
    spec = {"node": node, "time": "2026-01-01T00:00:00Z", "sequence": sequence}
    spec |= {"job": {"name": "j", "selector": SELECTOR}, "pods": [{"name": "j-0", "uid": "u"}]}
    at = rfc3339.to_text(NOW_S - age_s)
    metadata = {"name": f"j.{node}", "namespace": "ns", "uid": f"r-{node}"}
    return Event(
        Change.SET, {"metadata": {**metadata, "managedFields": [{"time": at}]}, "spec": spec}
    )


def renewed(node: str, *current: int, age_s: float = 0.0, acks: tuple[Ack, ...] = ()) -> Event:
    made = object_of(AgentLease(node, NOW_S - age_s, 10, frozenset(current), acks))
    made["metadata"] |= {"uid": f"l-{node}", "namespace": "kcover"}
    made["metadata"]["managedFields"] = [{"time": rfc3339.to_text(NOW_S - age_s)}]
    return Event(Change.SET, made)


@pytest.fixture
def changed() -> list[GangId]:
    return []


@pytest.fixture
def store(changed: list[GangId]) -> ObjectCache:
    made = ObjectCache(changed.append, wall=(clock := FakeClock(NOW_S)), elapsed_s=clock)
    made.bad = pytest.fail
    return made


KEY = GangId.of("ns", SELECTOR)


@pytest.mark.parametrize("lease_first", [True, False])
def test_object_of__whichever_comes_first_the_report_is_confirmed(
    store: ObjectCache, lease_first: bool
) -> None:
    store.on_report(written("z", 1))
    events = [store.on_lease, store.on_report]
    what = [renewed("a", 7, age_s=3.0), written("a", 7, age_s=300.0)]
    for index in (0, 1) if lease_first else (1, 0):
        events[index](what[index])
    seen = next(received for received in store.seen(KEY) if received.report.node == "a")
    assert (seen.arrived_s, seen.confirmed_s) == (NOW_S - 300.0, NOW_S - 3.0)
    assert seen.age_s(NOW_S) == 3.0


def test_object_of__a_report_that_came_since_is_not_what_was_confirmed(store: ObjectCache) -> None:
    store.on_report(written("a", 8))
    store.on_lease(renewed("a", 7))
    assert store.seen(KEY)[0].confirmed_s is None


def test_object_of__a_renewal_changes_no_gang_but_for_an_answer(
    store: ObjectCache, changed: list[GangId]
) -> None:
    store.on_report(written("a", 7))
    changed.clear()
    store.on_lease(renewed("a", 7))
    store.on_lease(renewed("b", 7, acks=(STOP,)))
    assert changed == []
    store.on_lease(renewed("a", 7, acks=(STOP,)))
    store.on_lease(renewed("a", 7, acks=(STOP,)))
    assert changed == [KEY]
    assert store.seen(KEY)[0].report.acks == (STOP,)


def test_object_of__a_lease_that_cannot_be_read_costs_itself_only(store: ObjectCache) -> None:
    said: list[str] = []
    store.bad = said.append
    store.on_report(written("a", 7))
    broken = renewed("a", 7)
    broken.object["spec"]["renewTime"] = "x"
    store.on_lease(broken)
    assert len(said) == 1
    assert store.seen(KEY)[0].confirmed_s is None
    store.on_lease(renewed("a", 7))
    assert store.seen(KEY)[0].confirmed_s is not None


def test_object_of__a_lease_that_is_deleted_confirms_nothing_that_comes_later(
    store: ObjectCache,
) -> None:
    store.on_lease(renewed("a", 7))
    store.on_lease(Event(Change.GONE, {"metadata": {"name": "agent.a", "uid": "l-a"}}))
    assert store.leases == {}
    store.on_report(written("a", 7))
    assert store.seen(KEY)[0].valid_s is None


def test_to_text__the_age_of_listed_reports_does_not_depend_on_their_order(
    store: ObjectCache,
) -> None:
    """A new controller lists them: the first one it reads is ten minutes old."""
    store.on_report(written("a", 1, age_s=600.0))
    store.on_report(written("b", 2))
    store.on_report(Event(Change.SYNCED, {}))
    ages = {received.report.node: received.age_s(NOW_S) for received in store.seen(KEY)}
    assert ages == {"a": 600.0, "b": 0.0}
