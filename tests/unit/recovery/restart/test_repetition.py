"""A log that shows no progress since the last restart stops restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.fault_policy import FaultPolicy
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.api.log_report import ContainerLog, JobRuleReading
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.recovery.restart.guards import decide
from tests.unit.support.guard_inputs import SEEN, ask, world
from tests.unit.support.report_builders import NOW_S

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
