"""What one namespace can take of the controller, whatever its policies and jobs do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.fault_policy import Bounds, FaultPolicy
from kcover_ebpf.api.incident import (
    Incident,
    JobRef,
    Phase,
    RestartMethod,
    RestartRecord,
    Status,
    object_of,
    status_of,
)
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.controller.breaker import Breaker, Limits
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.quota import Quota
from kcover_ebpf.errors import Conflict
from kcover_ebpf.recovery import closing
from kcover_ebpf.settings import RestartBudget
from kcover_ebpf.tunables.recovery import INCIDENTS_PER_NAMESPACE

NOW_S = 1_767_225_600.0


def store() -> ObjectCache:
    return ObjectCache(lambda _: None, wall=lambda: NOW_S)


def put(
    cache: ObjectCache,
    namespace: str,
    index: int,
    phase: Phase = Phase.RECOVERED,
    age_s: float = 60.0,
) -> Incident:
    restarts = (
        (RestartRecord(RestartMethod.REPLACE, NOW_S - age_s),) if phase is Phase.RECOVERED else ()
    )
    status = Status(phase, restarts=restarts).enter(phase, NOW_S - age_s, "x")
    made = Incident(
        namespace,
        f"i{index}",
        JobRef("Job", f"j{index}", f"{namespace}-{index}", "batch/v1"),
        {"batch.kubernetes.io/job-name": f"j{index}"},
        status=status,
        uid=f"u{index}",
        created_s=NOW_S - 1000.0 + index,
    )
    cache.put(made)
    return made


def test_breaker__jobs_of_one_namespace_leave_half_of_it_to_the_others() -> None:
    known, limits = store(), Limits(jobs=10)
    for index in range(10):
        put(known, "evil", index)
    breaker = Breaker(known, limits)
    gates = breaker.gates("evil-11", "evil")
    assert gates.acting_here >= gates.most_here == 5
    for index in range(5, 10):
        known.incidents.pop(("evil", f"i{index}"))
    gates = breaker.gates("victim-0", "victim")
    assert (gates.acting_here, gates.acting) == (0, 5)
    assert gates.acting < gates.most_acting


def test_breaker__what_was_decided_and_is_not_seen_yet_counts_in_its_namespace() -> None:
    breaker = Breaker(store(), Limits(jobs=10))
    for index in range(5):
        breaker.reserve(f"evil-{index}", "evil")
    assert breaker.gates("evil-5", "evil").acting_here == 5
    assert breaker.gates("evil-0", "evil").acting_here == 4, "a job is not in its own way"
    assert breaker.gates("victim-0", "victim").acting_here == 0


@pytest.mark.parametrize(("jobs", "percent", "here"), [(10, 50, 5), (1, 50, 1), (10, 100, 10)])
def test_breaker__one_job_of_a_namespace_is_always_allowed(
    jobs: int, percent: float, here: int
) -> None:
    assert Limits(jobs=jobs, namespace_percent=percent).jobs_here == here


def test_bounds__a_policy_gets_no_more_than_the_operator_allows() -> None:
    asked = FaultPolicy(restarts=RestartBudget(10**9, 1, 0, 0))
    assert Bounds().of(asked).restarts == RestartBudget(10, 3600, 10, 10)
    assert Bounds().of(FaultPolicy()) == FaultPolicy(), "the defaults are within the bounds"
    modest = FaultPolicy(restarts=RestartBudget(1, 90_000, 30, 60))
    assert Bounds().of(modest) == modest


class FakeStatusWriter:
    """Statuses go straight into the store."""

    def status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        raw = object_of(known_incident)
        raw["metadata"] |= {"uid": known_incident.uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
        raw["status"] = status_of(status)
        return raw


def opened(known_cache: ObjectCache, namespace: str) -> list[str]:
    found = [
        incident for incident in known_cache.incidents.values() if incident.namespace == namespace
    ]
    return [
        incident.name
        for incident in found
        if incident.status is not None and not incident.status.is_closed
    ]


def test_quota__a_newer_incident_closes_the_older_ones_of_its_gang() -> None:
    known = store()
    quota = Quota(known, FakeStatusWriter(), 100)  # type: ignore[arg-type]
    old = [put(known, "ns", 1, Phase.OBSERVED), put(known, "ns", 2, Phase.FAILED)]
    acting = put(known, "ns", 3, Phase.SHUTTING_DOWN)
    put(known, "ns", 4, Phase.OBSERVED)
    quota.supersede([*old, acting], "i9")
    assert opened(known, "ns") == ["i3", "i4"]
    first = known.incidents["ns", "i1"].status
    assert first is not None
    assert first.message.endswith("closed: i9 is newer")


def test_quota__a_full_namespace_makes_room_by_what_is_over() -> None:
    known = store()
    quota = Quota(known, FakeStatusWriter(), 3)  # type: ignore[arg-type]
    key = GangId.of("ns", {"k": "v"})
    for index in range(2):
        put(known, "ns", index, Phase.OBSERVED)
    put(known, "other", 7, Phase.OBSERVED)
    with quota.place(key) as has_place:
        assert has_place
        put(known, "ns", 2, Phase.DECIDED)
    with quota.place(key) as has_place:
        assert has_place
    assert opened(known, "ns") == ["i1", "i2"], "the oldest one was closed"
    assert opened(known, "other") == ["i7"]


def test_quota__incidents_that_are_acted_on_or_wait_are_never_closed_for_room() -> None:
    known = store()
    for index in range(3):
        put(known, "ns", index, Phase.DECIDED)
    quota = Quota(known, FakeStatusWriter(), 3)  # type: ignore[arg-type]
    with quota.place(GangId.of("ns", {"k": "v"})) as has_place:
        assert not has_place
    assert len(opened(known, "ns")) == 3


def test_quota__workers_that_ask_at_the_same_time_get_no_more_than_there_is() -> None:
    known = store()
    for index in range(2):
        put(known, "ns", index, Phase.DECIDED)
    quota = Quota(known, FakeStatusWriter(), 3)  # type: ignore[arg-type]
    one, two = (GangId.of("ns", {"k": value}) for value in ("a", "b"))
    with quota.place(one) as first, quota.place(two) as second:
        assert (first, second) == (True, False)
    with quota.place(two) as third:
        assert third, "nothing was made in the place that was kept"
    with quota.place(GangId.of("other", {"k": "a"})) as elsewhere:
        assert elsewhere


def test_quota__two_workers_close_two_incidents_for_their_room() -> None:
    known = store()
    for index in range(3):
        put(known, "ns", index, Phase.OBSERVED)
    quota = Quota(known, FakeStatusWriter(), 3)  # type: ignore[arg-type]
    one, two = (GangId.of("ns", {"k": value}) for value in ("a", "b"))
    with quota.place(one) as first, quota.place(two) as second:
        assert (first, second) == (True, True)
        assert opened(known, "ns") == ["i2"]


def test_quota__what_was_closed_for_room_does_not_return_into_that_room() -> None:
    """Its gang is still reported, and another worker asks before the new incident is made."""
    known = store()
    for index in range(3):
        put(known, "ns", index, Phase.OBSERVED)
    quota = Quota(known, FakeStatusWriter(), 3)  # type: ignore[arg-type]
    with quota.place(GangId.of("ns", {"k": "a"})) as has_place:
        assert has_place
        (closed,) = (incident for incident in known.incidents.values() if incident.status.is_closed)  # type: ignore[union-attr]
        assert not quota.may_reopen(closed)
    assert quota.may_reopen(closed), "none was made: the place is free again"


class FakeRefusingWriter(FakeStatusWriter):
    """Writes nothing."""

    def status(self, known_incident: Incident, status: Status) -> dict[str, Any]:
        raise Conflict("changed", 409)


def test_quota__a_place_that_could_not_be_made_is_not_kept() -> None:
    known = store()
    put(known, "ns", 0, Phase.OBSERVED)
    key = GangId.of("ns", {"k": "v"})
    quota = Quota(known, FakeRefusingWriter(), 1)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(Conflict), quota.place(key):
            pass
    known.incidents.clear()
    with quota.place(key) as has_place:
        assert has_place


def test_closing__of_a_namespace_with_ever_new_jobs_the_newest_are_kept() -> None:
    known = store()
    for index in range(INCIDENTS_PER_NAMESPACE + 23):
        made = put(known, "ns", index, Phase.OBSERVED)
        assert made.status is not None
        known.put(replace(made, status=replace(made.status, closed_s=NOW_S - 5000 + index)))
    old = closing.outdated(known.incidents.values(), NOW_S, 86400.0)
    assert sorted(incident.name for incident in old) == sorted(f"i{index}" for index in range(23))
