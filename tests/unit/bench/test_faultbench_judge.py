"""Marks: right class, right rank, right cause, in time, and nothing false."""

from dataclasses import replace
from typing import Any

import pytest

from bench.faultbench import plan
from bench.faultbench.judge import judge
from bench.faultbench.plan import RunSpec
from bench.faultbench.scenario import Culprit
from bench.faultbench.truth import Truth

STOP = next(s for s in plan.SCENARIOS if s.id == "06-stop")
HEALTHY = next(s for s in plan.SCENARIOS if s.id == "q0-healthy")
RUN = RunSpec(STOP, "torch", 2.0)
QUIET = RunSpec(HEALTHY, "torch", 2.0)
TRUTH = Truth(100.0, 120.0, 121.0, None, 1, 9, 0, 2.0, None, 30.0, 119.0, (), None)


def verdict(
    time: float, kind: str, rank: int | None = None, cause: str = "stopped"
) -> dict[str, Any]:
    culprit = None if rank is None else {"rank": rank, "pid": 1}
    return {"time": time, "event": "verdict", "verdict": kind, "culprit": culprit, "cause": cause}


def shutdown(time: float) -> dict[str, Any]:
    return {"time": time, "event": "action", "act": "shutdown"}


def test_judge__a_right_verdict_and_its_shutdown():
    start = {"time": 99.0, "event": "start", "act": "shutdown"}
    lines = [start, verdict(123.5, "HUNG", RUN.culprit), shutdown(123.6)]
    marks = judge(RUN, TRUTH, lines, 75, 125.0)
    assert marks.detected is marks.rank_right is marks.cause_right is True
    assert marks.latency_s == 2.5
    assert marks.shut_down_latency_s == pytest.approx(2.6)
    assert not marks.false_shut_down
    assert marks.false_verdicts == 0
    assert marks.healthy_s == 20


def test_judge__the_last_verdict_before_the_shutdown_decides():
    other = (RUN.culprit + 1) % RUN.world
    lines = [verdict(122, "HUNG", RUN.culprit), verdict(123, "HUNG", other), shutdown(123.1)]
    lines.append(verdict(124, "CRASHED", RUN.culprit, "killed"))
    marks = judge(RUN, TRUTH, lines, 75, 125.0)
    assert marks.detected is True
    assert marks.latency_s == 1
    assert marks.rank_right is False
    assert marks.named_rank == other


def test_judge__silence_is_a_miss_and_working_is_no_verdict():
    marks = judge(RUN, TRUTH, [verdict(125, "WORKING"), verdict(126, "UNKNOWN")], None, 150.0)
    assert marks.detected is False
    assert (marks.rank_right, marks.cause_right) == (None, None)
    assert (marks.latency_s, marks.verdict) == (None, None)


@pytest.mark.parametrize(("rank", "detected"), [(RUN.culprit, True), (None, False)])
def test_judge__unknown_counts_where_it_is_accepted_and_names_a_rank(rank, detected):
    endless = next(s for s in plan.SCENARIOS if s.id == "11-loop-native")
    run = replace(RUN, scenario=replace(endless, id=STOP.id))
    marks = judge(run, TRUTH, [verdict(185, "UNKNOWN", rank, "computing")], None, 230.0)
    assert marks.detected is detected
    assert marks.rank_right is (True if detected else None)


@pytest.mark.parametrize(("incident", "detected"), [("job-1", True), ("", False)])
@pytest.mark.parametrize("name", ["g4-kernel", "g5-sizes"])
def test_judge__a_suspicion_without_a_rank_counts_where_there_is_none_to_name(
    name: str, incident: str, *, detected: bool
) -> None:
    scenario = next(s for s in plan.SCENARIOS if s.id == name)
    run = replace(RUN, scenario=replace(scenario, id=STOP.id))
    suspicion = verdict(127, "UNKNOWN", None, "device_wait") | {"incident": incident}
    marks = judge(run, TRUTH, [suspicion], None, 230.0)
    assert marks.detected is detected
    assert marks.rank_right is (True if detected else None)


@pytest.mark.parametrize(("rank", "right"), [(None, True), (RUN.culprit, False), (0, False)])
def test_judge__whoever_is_named_is_wrong_where_no_rank_is_the_culprit(rank, right):
    kernel = next(s for s in plan.SCENARIOS if s.id == "g4-kernel")
    run = replace(RUN, scenario=replace(kernel, id=STOP.id))
    marks = judge(run, TRUTH, [verdict(130, "HUNG", rank, "device_wait")], None, 150.0)
    assert (marks.detected, marks.rank_right, marks.cause_right) == (True, right, True)


@pytest.mark.parametrize(("shut_down", "exit_code"), [(True, 75), (False, None)])
def test_judge__to_end_a_job_whose_device_hangs_is_wrong_for_nothing_shows_it(shut_down, exit_code):
    kernel = next(s for s in plan.SCENARIOS if s.id == "g4-kernel")
    lines = [verdict(130, "HUNG", None, "device_wait"), *[shutdown(131)] * shut_down]
    marks = judge(replace(RUN, scenario=kernel), TRUTH, lines, exit_code, 150.0)
    assert marks.false_shut_down is shut_down


def test_judge__another_class_does_not_count_as_detected():
    marks = judge(RUN, TRUTH, [verdict(125, "SLOW", RUN.culprit)], None, 150.0)
    assert marks.detected is False
    assert marks.rank_right is True


@pytest.mark.parametrize("run", [RUN, QUIET])
@pytest.mark.parametrize(
    ("ready_at", "code", "at", "is_false"),
    [
        (None, 1, 109.6, False),
        (None, 1, 110.2, True),
        (None, -15, 109.6, True),
        (100.0, 1, 109.6, True),
    ],
    ids=["before it", "after it", "by a signal", "after it trained"],
)
def test_judge__a_job_that_failed_by_itself_before_it_trained_was_not_healthy(
    run, ready_at, code, at, is_false
):
    truth = replace(TRUTH, ready_at=ready_at, fault_at=None, onset_at=None, exits=((0, code, at),))
    marks = judge(run, truth, [verdict(110, "CRASHED", 0), shutdown(110.1)], 75, 112.0)
    assert marks.false_verdicts == is_false
    assert marks.false_shut_down is is_false
    assert (marks.verdict, marks.named_rank) == ("CRASHED", 0)
    assert not marks.detected


def test_judge__a_verdict_before_the_fault_is_false():
    lines = [verdict(110, "HUNG", RUN.culprit), shutdown(110.1)]
    marks = judge(RUN, TRUTH, lines, 75, 112.0)
    assert marks.false_verdicts == 1
    assert marks.false_shut_down
    assert marks.detected is False


def test_judge__a_slow_rank_is_no_reason_to_shut_down():
    run = replace(RUN, scenario=replace(STOP, may_shut_down=False))
    assert judge(run, TRUTH, [verdict(123, "HUNG", 0), shutdown(124)], 75, 125.0).false_shut_down


def test_judge__in_a_quiet_phase_every_verdict_is_false():
    marks = judge(QUIET, TRUTH, [verdict(130, "HUNG", 0), shutdown(131)], 75, 160.0)
    assert marks.false_verdicts == 1
    assert marks.false_shut_down
    assert marks.detected is None
    assert marks.healthy_s == 60
    calm = judge(QUIET, TRUTH, [verdict(130, "WORKING")], 0, 160.0)
    assert calm.false_verdicts == 0
    assert not calm.false_shut_down


@pytest.mark.parametrize(
    ("culprit", "offset", "expected"),
    [
        (Culprit.RANK, 0, True),
        (Culprit.RANK, 1, False),
        (Culprit.RANK, None, False),
        (Culprit.EITHER_END, 1, True),
        (Culprit.EITHER_END, 2, False),
        (Culprit.OPTIONAL, None, True),
        (Culprit.OPTIONAL, 1, False),
    ],
)
def test_judge__who_may_be_named(culprit: Culprit, offset: int | None, expected: bool):
    run = replace(RUN, scenario=replace(STOP, culprit=culprit))
    rank = None if offset is None else (run.culprit + offset) % run.world
    assert judge(run, TRUTH, [verdict(123, "HUNG", rank)], None, 130.0).rank_right is expected
