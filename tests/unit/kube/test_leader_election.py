"""The lease on the wire: one leader, and none that falls for a slow answer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kcover_ebpf.errors import ApiError, Conflict, NotFound, Unreachable
from kcover_ebpf.kube import leader_election
from kcover_ebpf.kube.leader_election import LeaderElector
from kcover_ebpf.tunables.kube import LEASE_DURATION_S, LEASE_GIVE_UP_S
from tests.unit.support.fake_clock import FakeClock

NAME = "lease"


class FakeLeaseServer:
    """One Lease, as an API server keeps it."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.slow_s = 0.0
        self.lose_answer = False
        self.asked: list[str] = []
        self.timeout_s = 0.0

    def hurried(self, timeout_s: float) -> FakeLeaseServer:
        self.timeout_s = timeout_s
        return self

    def _take(self, verb: str) -> None:
        self.asked.append(verb)
        self.clock.now_s += min(self.slow_s, self.timeout_s)
        if self.away or self.slow_s > self.timeout_s:
            raise Unreachable(f"{verb}: no answer")

    def get(self, path: str) -> dict[str, Any]:
        self._take("get")
        if self.lease is None:
            raise NotFound("none")
        return copy.deepcopy(self.lease)

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._take("create")
        return self._store(body)

    def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._take("replace")
        if self.lease is None:
            raise NotFound("none")
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("changed")
        stored = self._store(body)
        if self.lose_answer:
            self.lose_answer = False
            raise Unreachable("the answer was lost")
        return stored

    def _store(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> FakeLeaseServer:
    return FakeLeaseServer(clock)


def elector(server: FakeLeaseServer, identity: str, pod_uid: str = "") -> LeaderElector:
    return LeaderElector(server, "ns", NAME, identity, server.clock, pod_uid)  # type: ignore[arg-type]


def renew(*electors: LeaderElector) -> None:
    for leader_elector in electors:
        try:
            leader_elector.renew(leader_elector._clock())
        except ApiError:
            continue


def leading(*electors: LeaderElector) -> list[LeaderElector]:
    return [leader_elector for leader_elector in electors if leader_elector.leads]


def test_leader_elector__the_first_one_leads_and_renews_with_one_request(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    one, two = elector(server, "one"), elector(server, "two")
    renew(one, two)
    assert (one.leads, two.leads) == (True, False)
    server.asked.clear()
    for _ in range(5):
        clock.now_s += 2.0
        renew(one)
    assert one.leads
    assert server.asked == ["replace"] * 5


def test_leader_elector__why_the_lease_is_not_written_is_logged_once(
    server: FakeLeaseServer,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_election, "LEASE_RETRY_S", 0.0)
    server.away = True
    one = elector(server, "one")
    one.start(lambda _: None, clock)
    while len(server.asked) < 3 and one.thread is not None and one.thread.is_alive():
        one.thread.join(0.01)
    one.stop()
    assert caplog.messages == ["cannot write lease lease: get: no answer"]


def test_leader_elector__one_missed_renewal_makes_no_other_leader(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    one, two = elector(server, "one"), elector(server, "two")
    renew(one, two)
    clock.now_s += 2.0
    server.away = True
    renew(one)
    server.away = False
    for _ in range(8):
        clock.now_s += 2.0
        renew(one, two)
        assert (one.leads, two.leads) == (True, False)


def test_leader_elector__a_renewal_whose_answer_was_lost_is_read_and_continues(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    one = elector(server, "one")
    renew(one)
    server.lose_answer = True
    clock.now_s += 2.0
    renew(one)
    renew(one)
    assert one.leads
    clock.now_s += LEASE_GIVE_UP_S - 0.1
    assert one.leads, "it was renewed"


def test_leader_elector__a_server_that_answers_too_slowly_is_asked_three_times_before_a_leader_gives_up(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    one = elector(server, "one")
    renew(one)
    begin_s, server.slow_s = clock.now_s, 60.0
    server.asked.clear()
    while one.leads:
        renew(one)
        clock.now_s += 0.5
    assert len(server.asked) >= 3
    assert clock.now_s - begin_s < LEASE_DURATION_S - 1.0, (
        "and no other can have taken over by then"
    )


def test_leader_elector__there_are_never_two(server: FakeLeaseServer, clock: FakeClock) -> None:
    one, two = elector(server, "one"), elector(server, "two")
    renew(one, two)
    changes = 0
    for step in range(400):
        server.away = step % 40 > 25
        clock.now_s += 0.7
        if step % 3 == 0 and step % 80 < 40:
            renew(one)
        renew(two)
        assert not (one.leads and two.leads), step
        changes += two.leads
    assert changes, "the other one took over when the first was silent"


def test_leader_elector__a_lease_that_another_client_wrote_is_read_again(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    one = elector(server, "one")
    renew(one)
    assert server.lease is not None
    server.lease["metadata"]["annotations"] = {"seen": "by hand"}
    server.version += 1
    server.lease["metadata"]["resourceVersion"] = str(server.version)
    renew(one)
    renew(one)
    assert one.leads
    assert server.lease["metadata"]["annotations"] == {"seen": "by hand"}


def test_lease__gone_with_the_pod_of_its_holder_makes_no_second_leader(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    """The pod was deleted by force, its program lives, and the collector took the lease with it."""
    one, two = elector(server, "one", "uid-1"), elector(server, "two", "uid-2")
    renew(one)
    clock.now_s += LEASE_GIVE_UP_S
    renew(one)
    assert leading(one)
    server.lease = None
    for _ in range(30):
        renew(two)
        assert len(leading(one, two)) < 2
        clock.now_s += 0.5
    renew(two)
    assert leading(two)
    renew(one)
    assert not leading(one)


def test_lease__written_by_another_client_is_no_longer_led_with(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    one = elector(server, "one")
    renew(one)
    server.version += 1
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "two"
    server.lease["metadata"]["resourceVersion"] = str(server.version)
    renew(one)
    assert not leading(one)
    renew(one)
    assert not leading(one), "it belongs to a replica that may live"


def test_lease__made_anew_by_the_one_that_lost_it_is_led_with_after_a_while(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    one = elector(server, "one", "uid-1")
    renew(one)
    clock.now_s += LEASE_GIVE_UP_S
    renew(one)
    assert leading(one)
    server.lease = None
    renew(one)
    renew(one)
    assert not leading(one)
    for _ in range(6):
        clock.now_s += 2.0
        renew(one)
    assert leading(one)


def test_leader_elector__one_that_releases_the_lease_leads_no_more_by_then(
    server: FakeLeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = elector(server, "one"), elector(server, "two")
    renew(one)
    assert leading(one, two) == [one]
    store = server._store
    led: list[bool] = []

    def stored(body: dict[str, Any]) -> dict[str, Any]:
        led.append(one.leads)
        return store(body)

    monkeypatch.setattr(server, "_store", stored)
    one.stop()
    renew(two)
    assert leading(one, two) == [two]
    assert led == [False, False]


def test_leader_elector__one_that_seizes_the_lease_leads_once_its_holder_has_given_up(
    server: FakeLeaseServer, clock: FakeClock
) -> None:
    """The holder notices at its next renewal, or it is cut off and gives up by itself."""
    holder, seizing, other = (elector(server, name) for name in ("holder", "seizing", "other"))
    renew(holder, other)
    seizing.seizes = True
    renew(seizing)
    assert leading(holder, seizing, other) == [holder], "it is not asked yet"
    while clock.now_s < 3 * LEASE_DURATION_S:
        clock.now_s += 1.0
        renew(seizing, holder, other)
        assert leading(holder, other) == []
        assert seizing.leads is (clock.now_s >= LEASE_GIVE_UP_S)
