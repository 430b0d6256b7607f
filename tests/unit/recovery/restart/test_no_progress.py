"""A log that shows no progress since the last restart stops restarts; one that shows steps says what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Phase, RestartMethod, Status
from kcover_ebpf.api.incident_parts import LoggedWork
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.api.log_report import ContainerLog, JobRuleReading
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.gang.job_rules import LoggedProgress
from kcover_ebpf.recovery.restart.guards import decide
from kcover_ebpf.recovery.restart.repeated_crash import work_of
from tests.unit.guard_inputs import SEEN, ask, world
from tests.unit.report_builders import NOW_S

POLICY = FaultPolicy(job_rules=(JobRule("loss", KnownLine.LOSS, within_seconds=60),))
BEGUN = JobRuleReading("loss", started_age_s=90.0)
PRINTED = replace(BEGUN, age_s=30.0)
IN_THE_MIDDLE = JobRuleReading("loss")


def logged(reading: JobRuleReading, *pods: int) -> tuple[ReceivedReport, ...]:
    """What both nodes say, where the logs of these pods show this."""
    return tuple(
        replace(
            received,
            report=replace(
                received.report,
                logs=tuple(
                    ContainerLog(f"uid-{number}", "main", 1, rules=(reading,))
                    for number in pods
                    if number % 2 == index
                ),
            ),
        )
        for index, received in enumerate(SEEN)
    )


ALL = (0, 1, 2, 3)
NODES = {0: "a", 1: "b", 2: "a", 3: "b"}
CASES = {
    "nothing was printed": (logged(BEGUN, *ALL), POLICY, NOW_S - 100, True),
    "one rank printed": (
        (*logged(BEGUN, 1, 3)[1:], *logged(PRINTED, 0, 2)[:1]), POLICY, NOW_S - 100, False,
    ),
    "it is the first fault": (logged(BEGUN, *ALL), POLICY, None, False),
    "nothing is expected": (logged(BEGUN, *ALL), FaultPolicy(), NOW_S - 100, False),
    "a pod is not reported": (logged(BEGUN, 0, 1, 2), POLICY, NOW_S - 100, False),
    "the log was not read from its beginning": (logged(IN_THE_MIDDLE, *ALL), POLICY, NOW_S - 100, False),
}  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "policy", "last_restart_s", "is_refused"), CASES.values(), ids=CASES
)
def test_decide__no_progress_since_the_last_restart_stops_restarts(
    seen: tuple[ReceivedReport, ...],
    policy: FaultPolicy,
    last_restart_s: float | None,
    is_refused: bool,
) -> None:
    request = ask(world(seen), policy, last_restart_s=last_restart_s)
    status = decide(request).status
    assert status is not None
    assert (status.phase is Phase.REFUSED) is is_refused, status.message
    assert ("rules loss since the last restart" in status.message) is is_refused


def test_decide__who_approves_may_restart_it_all_the_same() -> None:
    request = ask(world(logged(BEGUN, *ALL)), POLICY, last_restart_s=NOW_S - 100, approved=True)
    status = decide(request).status
    assert status is not None
    assert status.phase is Phase.SHUTTING_DOWN


# --- what it costs

AT_FAULT = LoggedProgress(step=1200, unsaved_steps=200, step_s=2.0, loss=1.5, first_step=1, first_s=5.0)  # fmt: skip
WORK = LoggedWork(1200, 200, None, 2.0, 1.5)


def restarted() -> Status:
    status = replace(Status(Phase.OPEN), work=WORK).enter(Phase.SHUTTING_DOWN, 1000.0, "x")
    return status.begin(RestartMethod.IN_PLACE, 1000.0)


def test_work_of__as_it_was_at_the_fault() -> None:
    found = work_of(Status(Phase.OPEN), AT_FAULT)
    assert found == WORK
    assert (WORK.lost_steps, WORK.lost_s) == (200, 400.0)
    assert work_of(Status(Phase.OPEN), LoggedProgress()) is None


def test_work_of__the_old_start_is_none_that_does_steps_again() -> None:
    assert work_of(restarted(), replace(AT_FAULT, first_s=999.0)) == WORK


def test_work_of__what_the_new_start_does_again() -> None:
    again = LoggedProgress(step=1010, first_step=1001, first_s=1020.0)
    found = work_of(restarted(), again)
    assert found is not None
    assert (found.redone_steps, found.lost_steps, found.lost_s) == (200, 200, 400.0)
    ahead = work_of(restarted(), replace(again, first_step=1300))
    assert ahead is not None
    assert ahead.redone_steps == 0
    known = replace(restarted(), work=found)
    assert work_of(known, replace(again, first_step=1)) is found
