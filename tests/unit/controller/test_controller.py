"""The parts of the controller that need no API server: its queue, its lease, what it remembers of objects."""

from __future__ import annotations

import time

import pytest

from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.breaker import acting
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.workqueue import WorkQueue
from kcover_ebpf.kube.leader_election import Claim
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.tunables.controller import WRITTEN_SPAN_S
from kcover_ebpf.tunables.kube import LEASE_DURATION_S, LEASE_GIVE_UP_S
from tests.unit.support.fake_clock import FakeClock


def test_work_queue__a_burst_about_one_key_is_handled_once():
    clock = FakeClock(100.0)
    queue: WorkQueue[str] = WorkQueue(clock)
    for _ in range(23):
        queue.add("a")
    queue.add("b", 5.0)
    clock.now_s += 1
    assert queue.take() == "a"
    queue.done("a")
    queue.add("b", 0.0)
    assert queue.take() == "b", "an earlier date replaces a later one"
    queue.done("b")
    queue.close()
    assert queue.take() is None


def test_work_queue__a_key_is_never_in_two_hands():
    clock = FakeClock(100.0)
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add("a", 0.0)
    assert queue.take() == "a"
    queue.add("a", 0.0)
    queue.add("b", 0.0)
    assert queue.take() == "b"
    queue.done("a")
    clock.now_s += 1
    assert queue.take() == "a", "what came while it was in hand is taken up afterwards"


def test_work_queue__a_key_rests_for_as_long_as_is_said():
    clock = FakeClock(100.0)
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add("a", 0.0)
    assert queue.take() == "a"
    queue.done("a", rest_s=0.5)
    queue.add("a", 0.0)
    queue.add("b", 0.4)
    clock.now_s += 0.45
    assert queue.take() == "b"
    clock.now_s += 0.1
    assert queue.take() == "a"


def test_work_queue__a_key_that_need_not_rest_leaves_nothing_behind():
    queue: WorkQueue[str] = WorkQueue(FakeClock(100.0))
    queue.add("a", 0.0)
    queue.take()
    queue.done("a")
    assert queue._rests == {}


def test_claim__a_lease_is_taken_only_when_its_holder_was_silent_for_its_whole_duration():
    claim = Claim("me")
    claim.observe("other", "t1", 100.0)
    assert not claim.may_take(100.0 + LEASE_DURATION_S - 0.1)
    claim.observe("other", "t2", 110.0)
    assert not claim.may_take(110.0 + LEASE_DURATION_S - 0.1)
    claim.observe("other", "t2", 120.0)
    assert claim.may_take(110.0 + LEASE_DURATION_S)


def test_claim__a_leader_that_cannot_renew_stops_before_another_may_begin():
    claim = Claim("me", renewed_s=100.0)
    assert claim.leads(100.0 + LEASE_GIVE_UP_S - 0.1)
    assert not claim.leads(100.0 + LEASE_GIVE_UP_S)
    assert LEASE_GIVE_UP_S < LEASE_DURATION_S
    claim.renewed_s = 105.0
    claim.observe("other", "t9", 106.0)
    assert not claim.leads(106.0), "another replica holds it"


def report(uid: str = "r1", written: str = "2026-01-01T00:00:00Z", **spec) -> Event:
    values = {
        "node": "a",
        "time": "2026-01-01T00:00:00Z",
        "sequence": 1,
        "job": {"name": "j", "selector": {"k": "v"}},
        "pods": [{"name": "j-0", "uid": "p0"}],
    } | spec
    metadata = {"name": uid, "namespace": "ns", "uid": uid, "managedFields": [{"time": written}]}
    return Event(Change.SET, {"metadata": metadata, "spec": values})


@pytest.fixture
def store() -> ObjectCache:
    reported: list[GangId] = []
    clock = FakeClock(100.0)
    made = ObjectCache(reported.append, wall=clock, elapsed_s=clock)
    made.bad = pytest.fail
    return made


KEY = GangId.of("ns", {"k": "v"})
WRITTEN_S = 1767225600.0


def test_object_cache__a_report_is_as_old_as_its_way_was_long_whatever_the_clocks_say(store):
    clock = store.wall
    clock.now_s = WRITTEN_S + 3600.0
    store.on_report(report())
    assert store.seen(KEY)[0].age_s(clock.now_s) == 0, (
        "the API server's clock is an hour behind ours"
    )
    clock.now_s += 60.0
    store.on_report(report(written="2026-01-01T00:00:20Z"))
    assert store.seen(KEY)[0].age_s(clock.now_s) == pytest.approx(40.0)


def test_object_cache__a_date_of_ours_that_was_set_makes_no_report_old():
    wall, elapsed = FakeClock(WRITTEN_S), FakeClock(50.0)
    store = ObjectCache(lambda _: None, wall=wall, elapsed_s=elapsed)
    for at_s, set_s in enumerate((0.0, -10.0, 0.0, 10.0, 0.0)):
        wall.now_s, elapsed.now_s = WRITTEN_S + at_s + set_s, 50.0 + at_s
        store.on_report(report(written=f"2026-01-01T00:00:0{at_s}Z"))
        assert store.seen(KEY)[0].age_s(wall.now_s) == 0.0


def test_object_cache__where_the_servers_date_was_set_back_reports_are_new_again_after_two_spans(
    store,
):
    clock = store.wall
    ages = []
    for at_s in range(0, 3 * round(WRITTEN_SPAN_S), 2):
        clock.now_s = WRITTEN_S + 100.0 + at_s
        stamp = time.gmtime(WRITTEN_S + at_s - (10.0 if at_s > 1 else 0.0))
        store.on_report(report(written=time.strftime("%Y-%m-%dT%H:%M:%SZ", stamp)))
        ages.append(store.seen(KEY)[0].age_s(clock.now_s))
    assert ages[0] == 0.0
    assert ages[1] == pytest.approx(10.0)
    assert ages[-1] == 0.0


def test_object_cache__what_was_written_before_a_long_outage_is_as_old_as_it_is(store):
    clock = store.wall
    clock.now_s = WRITTEN_S
    store.on_report(report())
    clock.now_s = WRITTEN_S + 20 * WRITTEN_SPAN_S
    store.on_report(report(written="2026-01-01T00:00:05Z"))
    assert store.seen(KEY)[0].age_s(clock.now_s) == pytest.approx(20 * WRITTEN_SPAN_S - 5.0)


def test_object_cache__reports_come_and_go_by_node(store):
    store.on_report(report())
    store.on_report(report("r2", node="b"))
    assert {seen.report.node for seen in store.seen(KEY)} == {"a", "b"}
    store.on_report(Event(Change.GONE, {"metadata": {"uid": "r1"}}))
    assert [seen.report.node for seen in store.seen(KEY)] == ["b"]
    store.on_report(Event(Change.GONE, {"metadata": {"uid": "r2"}}))
    assert store.gangs == []


@pytest.mark.parametrize(
    "other",
    [{"job": {"name": "j", "selector": {"k": "w"}}}, {"node": "b"}, {"job": None}],
    ids=["another gang", "another node", "no gang"],
)
def test_object_cache__a_report_that_changes_what_it_is_about_leaves_nothing_behind(store, other):
    store.on_report(report())
    store.on_report(report(**other))
    assert "a" not in {seen.report.node for seen in store.seen(KEY)}
    store.on_report(Event(Change.GONE, {"metadata": {"uid": "r1"}}))
    assert (store.gangs, store.host_reports) == ([], {})


def test_object_cache__an_object_that_cannot_be_read_is_reported_and_dropped(store):
    reported: list[str] = []
    store.bad = reported.append
    store.on_report(report(sequence="many"))
    assert store.seen(KEY) == ()
    assert "spec.sequence" in reported[0]


def incident(version: str, phase: str, restarted: str | None = None, gang: str = "v") -> Event:
    status = {"phase": phase, "message": ""}
    if restarted:
        status["restarts"] = [{"way": "InPlace", "time": restarted}]  # type: ignore[assignment]
    metadata = {
        "name": "i", "namespace": "ns", "uid": "u", "resourceVersion": version,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    spec = {"job": {"kind": "Job", "name": "j", "uid": "ju"}, "selector": {"k": gang}}
    return Event(Change.SET, {"metadata": metadata, "spec": spec, "status": status})


def test_object_cache__an_echo_does_not_undo_what_was_written_since(store):
    store.on_incident(incident("9", "ShuttingDown"))
    store.on_incident(incident("8", "Open"))
    assert store.of_gang(KEY)[0].status.phase is Phase.SHUTTING_DOWN
    store.on_incident(incident("10", "Recovered"))
    assert store.of_gang(KEY)[0].status.phase is Phase.RECOVERED


def test_object_cache__incidents_are_found_by_their_gang_whatever_becomes_of_them(store):
    store.on_incident(incident("1", "Open"))
    store.on_incident(incident("2", "Open", gang="other"))
    other = GangId.of("ns", {"k": "other"})
    assert (store.of_gang(KEY), len(store.of_gang(other))) == ([], 1)
    store.on_incident(Event(Change.GONE, {"metadata": {"name": "i", "namespace": "ns"}}))
    assert (store.of_gang(other), store.incidents, dict(store._reported)) == ([], {}, {})


def test_object_cache__an_incident_deleted_while_its_job_is_down_is_not_forgotten(store):
    store.on_incident(incident("1", "ShuttingDown"))
    gone = {"metadata": {"name": "i", "namespace": "ns", "uid": "u"}}
    store.on_incident(Event(Change.GONE, gone))
    assert store.orphans[KEY].name == "i"
    store.orphans.clear()
    store.on_incident(incident("2", "Recovered"))
    store.on_incident(Event(Change.GONE, gone))
    assert store.orphans == {}


def test_object_cache__an_answer_that_comes_after_the_deletion_of_its_incident_is_not_kept(store):
    store.on_incident(incident("1", "Open"))
    answered = store.read_incident(incident("2", "ShuttingDown").object)
    gone = Event(Change.GONE, {"metadata": {"name": "i", "namespace": "ns", "uid": "u"}})
    store.on_incident(gone)
    assert store.orphans == {}, "it had not begun to act"
    store.put(answered)
    assert (store.of_gang(KEY), store.orphans) == ([], {KEY: answered})
    # one that the watch shows exists
    store.on_incident(incident("3", "ShuttingDown"))
    store.put(store.read_incident(incident("4", "Recovered").object))
    assert [one.resource_version for one in store.of_gang(KEY)] == ["4"]


def test_object_cache__the_breaker_counts_jobs_that_go_down_and_those_of_the_last_minutes(store):
    store.wall.now_s = WRITTEN_S + 100
    assert acting(store, 300) == {}
    store.on_incident(incident("1", "ShuttingDown"))
    assert acting(store, 300) == {"ju": "ns"}
    store.on_incident(incident("2", "Recovered", "2026-01-01T00:01:00Z"))
    assert acting(store, 300) == {"ju": "ns"}
    assert acting(store, 30) == {}


def test_work_queue__keys_of_one_owner_leave_workers_to_others() -> None:
    queue: WorkQueue[str] = WorkQueue(FakeClock(100.0), share=2, owner_of=lambda key: key[0])
    for key in ("a1", "a2", "a3", "a4", "b1"):
        queue.add(key, 0.0)
    assert [queue.take() for _ in range(3)] == ["a1", "a2", "b1"]
    queue.done("a2")
    assert queue.take() == "a3"
    queue.done("a1")
    queue.done("a3")
    assert queue.take() == "a4"
    assert queue._parked == {}
