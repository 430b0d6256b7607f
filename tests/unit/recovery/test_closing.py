"""When an incident that was only reported is over, and how long closed ones are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.incident import (
    Incident,
    JobRef,
    Phase,
    RestartMethod,
    RestartRecord,
    Status,
    incident_of,
    object_of,
    status_of,
)
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.recovery import closing
from kcover_ebpf.recovery.restart.context import TopOwner
from tests.unit.support.report_builders import local, report

NOW_S = 1_000_000.0
JOB = JobRef("Job", "j", "job-uid", "batch/v1")
REPORTED = Status(Phase.OBSERVED).enter(Phase.OBSERVED, NOW_S, "HUNG stopped; not armed")


def calm(**more: object) -> ReceivedReport:
    return report("a", arrived_s=NOW_S + 60.0, **({"suspicious": False, "trained": True} | more))


SLOW = local(VerdictKind.SLOW, Cause.SLOW_RANK, 0, 5.0, EvidenceKind.PEERS)
FAULT = local(VerdictKind.CRASHED, Cause.KILLED, 0, 5.0, EvidenceKind.EVENT)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([calm()], "the ranks are making progress again"),
        ([calm(), calm(suspicious=True)], None),
        ([calm(trained=False)], None),
        ([calm(verdict=SLOW)], None),
        ([calm(verdict=FAULT)], None),
        ([calm(), replace(calm(), arrived_s=NOW_S + 1.0)], None),
    ],
    ids=[
        "all train",
        "one makes no progress",
        "starts again",
        "slow",
        "fault",
        "one has not said so yet",
    ],
)
def test_why_calm__an_incident_is_over_when_every_node_says_so(reported, expected) -> None:
    assert closing.why_calm(REPORTED, reported) == expected


@pytest.mark.parametrize(
    ("top", "after_s", "expected"),
    [
        (None, 1.0, "the job is gone"),
        (TopOwner(JOB, None, ended="Complete"), 1.0, "the job is Complete"),
        (TopOwner(JOB, None), 60.0, None),
        (TopOwner(JOB, None), 4000.0, "it is no longer being reported"),
    ],
)
def test_why_gone__an_incident_of_a_job_that_is_not_seen_is_over_with_the_job(
    top, after_s, expected
) -> None:
    assert closing.why_gone(REPORTED, top, NOW_S + after_s) == expected


def test_close__a_closed_incident_says_what_was_done_and_why_it_is_closed() -> None:
    closed = closing.close(REPORTED, "the job is gone", NOW_S + 9)
    assert closed.is_closed
    assert closed.phase is Phase.OBSERVED
    assert closed.message == "HUNG stopped; not armed; closed: the job is gone"
    assert closed.last_s == REPORTED.last_s, "an incident that begins later is another one"
    raw = object_of(Incident("ns", "i", JOB, {"k": "v"})) | {"status": status_of(closed)}
    assert incident_of(raw).status == closed


def incident(number: int, age_s: float, phase: Phase = Phase.RECOVERED, **more) -> Incident:
    status = Status(phase).enter(phase, NOW_S - age_s, "x")
    return Incident("ns", f"i{number}", JOB, {}, status=replace(status, **more))


DAY_S = 86400.0


def names(found: list[Incident]) -> set[str]:
    return {other_incident.name for other_incident in found}


def test_outdated__closed_incidents_are_kept_for_a_month_and_sixty_of_a_job() -> None:
    many = [incident(number, 60.0 * number) for number in range(62)]
    old = incident(99, 32 * DAY_S)
    found = closing.outdated([*many, old], NOW_S, DAY_S)
    assert names(found) == {"i60", "i61", "i99"}


@pytest.mark.parametrize(
    "kept",
    [
        incident(1, 30 * DAY_S, Phase.OBSERVED),
        incident(1, 30 * DAY_S, Phase.FAILED),
        incident(1, 40 * DAY_S, Phase.SHUTTING_DOWN),
        incident(1, 29 * DAY_S),
        incident(
            1, 32 * DAY_S, restarts=(RestartRecord(RestartMethod.IN_PLACE, NOW_S - 29 * DAY_S),)
        ),
        replace(incident(1, 0.0), status=None),
    ],
    ids=["not closed", "failed", "under way", "young", "its restart counts", "new"],
)
def test_outdated__what_still_says_something_is_kept(kept: Incident) -> None:
    assert closing.outdated([kept], NOW_S, 30 * DAY_S) == []


def test_outdated__a_restart_counts_no_longer_than_the_longest_window() -> None:
    kept = incident(
        1, 32 * DAY_S, restarts=(RestartRecord(RestartMethod.IN_PLACE, NOW_S - 8 * DAY_S),)
    )
    assert names(closing.outdated([kept], NOW_S, DAY_S)) == {"i1"}
