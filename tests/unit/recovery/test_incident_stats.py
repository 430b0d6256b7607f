"""What incidents cost, by hand-made incidents whose sums are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.incident import Incident, JobRef, Lost, Phase, RestartMethod, Status
from kcover_ebpf.api.incident_parts import JobSize, LoggedWork
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from kcover_ebpf.recovery.incident_stats import UNNAMED, stats_of
from tests.unit.support.judged import judged

DAY_S = 86400.0
NOW_S = 1_700_000_000.0
BEGUN = Status(
    Phase.OPEN,
    verdict=Verdict(kind=VerdictKind.HUNG, cause=Cause.STOPPED, culprit=Culprit(rank=1, node="n1")),
    lost=Lost(detect_s=2.0, decide_s=1.0, shut_down_s=3.0, reschedule_s=4.0, first_progress_s=10.0),
)


def recovered(
    at_s: float,
    name: str = "a",
    job: str = "llm",
    kind: VerdictKind = VerdictKind.HUNG,
    cause: Cause = Cause.STOPPED,
    **more: Any,
) -> Incident:
    status = judged(replace(BEGUN, **more), since_s=at_s, kind=kind, cause=cause)
    for phase, after_s in (
        (Phase.DECIDED, 3.0),
        (Phase.SHUTTING_DOWN, 3.0),
        (Phase.RECOVERED, 20.0),
    ):
        status = status.enter(phase, at_s + after_s, "x")
    return of(status.begin(RestartMethod.IN_PLACE, at_s + 3.0), at_s, name, job)


def of(status: Status, at_s: float, name: str = "a", job: str = "llm") -> Incident:
    ref = JobRef("Job", job, f"uid-{job}", "batch/v1")
    return Incident("ml", name, ref, {"k": job}, status=status, created_s=at_s)


def week(*incidents: Incident, **created_s: float):
    ages = {f"uid-{name}": at_s for name, at_s in created_s.items()}
    return stats_of(incidents, NOW_S - 7 * DAY_S, NOW_S, ages)


def test_stats_of__lost_time_is_split_and_set_against_the_age_of_the_job() -> None:
    found = week(
        recovered(NOW_S - DAY_S, "a"),
        recovered(NOW_S - 2 * DAY_S, "b"),
        recovered(NOW_S - DAY_S, "c", "old"),
        recovered(NOW_S - DAY_S, "d", "gone"),
        llm=NOW_S - 4000.0,
        old=NOW_S - 70 * DAY_S,
    )
    assert (found.incidents, found.interruptions, found.restarts) == (4, 4, 4)
    assert (found.lost.detect_s, found.lost.first_progress_s) == (8.0, 40.0)
    assert found.lost.total_s == 80.0
    llm, gone, old = found.jobs
    assert (llm.name, llm.incidents, llm.ettr) == ("llm", 2, pytest.approx(0.99))
    assert (gone.name, gone.ettr) == ("gone", None)
    assert old.ettr == pytest.approx(1 - 20.0 / (7 * DAY_S)), "no more than the window"


def test_stats_of__mean_times_are_those_of_the_node_and_of_the_cause() -> None:
    failed = judged(BEGUN, since_s=NOW_S, culprit=None).enter(Phase.FAILED, NOW_S, "x")
    found = week(
        recovered(NOW_S - DAY_S, "a"),
        recovered(NOW_S - 2 * DAY_S, "b", cause=Cause.STORAGE),
        of(failed, NOW_S - DAY_S, "c"),
    )
    first, second = found.nodes
    assert (first.name, first.interruptions, first.mtbi_s) == ("n1", 2, 3.5 * DAY_S)
    assert first.mttr_s == 20.0
    assert (second.name, second.mttr_s) == (UNNAMED, None), "it never recovered"
    assert {group.name: group.interruptions for group in found.causes} == {
        "stopped": 2,
        "storage": 1,
    }


def test_stats_of__what_went_by_or_was_asked_for_interrupts_nothing() -> None:
    went_by = replace(BEGUN, closed_s=NOW_S).enter(Phase.OBSERVED, NOW_S, "resolved on its own")
    suspect = judged(BEGUN, kind=VerdictKind.UNKNOWN).enter(Phase.OPEN, NOW_S, "x")
    asked = recovered(NOW_S - 5.0, "c", kind=VerdictKind.UNKNOWN, cause=Cause.REQUESTED)
    found = week(of(went_by, NOW_S - 9.0, "a"), of(suspect, NOW_S - 9.0, "b"), asked)
    assert (found.incidents, found.interruptions, found.restarts) == (3, 0, 1)
    assert not found.nodes
    unarmed = BEGUN.enter(Phase.OBSERVED, NOW_S, "not armed")
    assert week(of(unarmed, NOW_S - 9.0)).interruptions == 1


@pytest.mark.parametrize(("closed_s", "lost_s"), [(None, 600.0), (NOW_S - 100.0, 500.0)])
def test_stats_of__a_fault_without_an_action_costs_until_it_is_over(
    closed_s: float | None, lost_s: float
) -> None:
    hung = judged(replace(BEGUN, lost=None, closed_s=closed_s), since_s=NOW_S - 600.0)
    hung = hung.enter(Phase.OPEN, NOW_S - 595.0, "x").enter(
        Phase.OBSERVED, NOW_S - 594.0, "not armed"
    )
    found = week(of(hung, NOW_S - 595.0), llm=NOW_S - 1200.0)
    assert found.lost.detect_s == 5.0
    assert found.lost.total_s == lost_s
    assert found.jobs[0].ettr == pytest.approx(1.0 - lost_s / 1200.0)
    suspect = judged(hung, kind=VerdictKind.UNKNOWN, since_s=NOW_S - 600.0)
    assert week(of(suspect, NOW_S - 595.0)).lost.total_s == 0.0


def test_stats_of__what_is_older_than_the_window_does_not_count() -> None:
    assert week(recovered(NOW_S - 8 * DAY_S)).incidents == 0


def test_stats_of__steps_that_a_restart_costs() -> None:
    work = LoggedWork(step=1200, unsaved_steps=100, step_s=2.0)
    found = week(
        recovered(NOW_S - DAY_S, "a", work=work),
        recovered(NOW_S - 2 * DAY_S, "b", work=replace(work, redone_steps=50)),
        of(replace(BEGUN, work=work, lost=None), NOW_S - DAY_S, "c"),
        recovered(NOW_S - DAY_S, "d", "silent"),
        llm=NOW_S - 4000.0,
        silent=NOW_S - 4000.0,
    )
    llm, silent = sorted(found.jobs, key=lambda job: job.name)
    assert (llm.lost_steps, llm.work_lost_s) == (150, 300.0), "what was not restarted lost none"
    assert llm.goodput == pytest.approx(1 - (40.0 + 300.0) / 4000.0)
    assert llm.ettr == pytest.approx(0.99)
    assert (silent.lost_steps, silent.goodput) == (0, None)


def test_stats_of__the_gpus_of_a_job_and_their_price_are_on_record() -> None:
    size = JobSize(gpus=90, product="H100", hour_price=2.5, currency="USD")
    found = week(
        recovered(NOW_S - DAY_S, "a", size=size),
        recovered(NOW_S - DAY_S, "b", "llm2", size=replace(size, gpus=10, hour_price=None)),
        recovered(NOW_S - DAY_S, "c", "old"),
    )
    assert found.cost.gpu_hours == pytest.approx(100 * 20 / 3600)
    assert found.cost.prices == (("USD", pytest.approx(90 * 20 / 3600 * 2.5)),)
    (ml,) = found.namespaces
    assert (ml.name, ml.jobs, ml.incidents, ml.lost.total_s) == ("ml", 3, 3, 60.0)
    assert ml.cost == found.cost


def test_stats_of__a_job_that_is_gone_lived_until_its_last_incident_was_over() -> None:
    size = JobSize(created_s=NOW_S - DAY_S - 180.0)
    found = week(recovered(NOW_S - DAY_S, "a", size=size))
    assert found.jobs[0].age_s == 200.0
    assert found.jobs[0].ettr == found.namespaces[0].ettr == pytest.approx(0.9)
