"""A rank that gives up waiting fails first; the rank that it and all others waited for is named."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.failures import gave_up
from kcover_ebpf.ids import NS
from kcover_ebpf.model.verdict import Cause, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import Stage, all_wait, trained


def alone(seconds: float, *, rank: int = 2, mode: str = "run") -> Stage:
    """A job that trained, in which all others have waited for so long for one rank."""
    stage = trained(4, seconds=60)
    stage.become(stage.rank(rank), mode)
    all_wait(stage, rank)
    stage.run(seconds)
    return stage


def crash(stage: Stage) -> Verdict:
    stage.run(2)
    (verdict,) = [
        other_verdict
        for other_verdict in stage.verdicts
        if other_verdict.kind is VerdictKind.CRASHED
    ]
    assert verdict.culprit is not None
    return verdict


def rank_and_cause(verdict: Verdict) -> tuple[int | None, Cause]:
    assert verdict.culprit is not None
    return verdict.culprit.rank, verdict.cause


@pytest.mark.parametrize(("code", "number"), [(1, 0), (0, signal.SIGABRT)])
@pytest.mark.parametrize("mode", ["run", "stopped"])
def test_awaited__the_rank_that_all_waited_for_is_named(mode: str, code: int, number: int) -> None:
    stage = alone(30, mode=mode)
    stage.exit(stage.rank(0), code=code, signal=number)
    verdict = crash(stage)
    assert rank_and_cause(verdict) == (2, Cause.TIMED_OUT)
    event, waited = verdict.evidence
    assert event.kind is EvidenceKind.EVENT
    assert event.text.startswith("rank 0 ")
    assert "every other rank had waited for rank 2" in waited.text
    assert decide(verdict, Act.RESTART).act is Act.RESTART


def test_awaited__those_who_give_up_next_change_nothing() -> None:
    stage = alone(30)
    for rank in (3, 0, 1):
        stage.exit(stage.rank(rank), code=1)
    assert rank_and_cause(crash(stage)) == (2, Cause.TIMED_OUT)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_awaited__a_rank_that_dies_of_something_else_is_named_itself(number: int) -> None:
    stage = alone(30)
    stage.exit(stage.rank(0), signal=number)
    assert rank_and_cause(crash(stage))[0] == 0


def test_awaited__the_awaited_rank_that_fails_is_named_as_it_is() -> None:
    stage = alone(30)
    stage.exit(stage.rank(2), code=1)
    assert rank_and_cause(crash(stage)) == (2, Cause.EXITED)


def test_awaited__a_short_wait_is_a_step() -> None:
    stage = alone(6)
    stage.exit(stage.rank(0), code=1)
    assert rank_and_cause(crash(stage)) == (0, Cause.EXITED)


def test_awaited__no_rank_is_named_where_two_were_awaited() -> None:
    stage = alone(0)
    stage.become(stage.rank(3), "run")
    stage.run(30)
    stage.exit(stage.rank(0), code=1)
    assert rank_and_cause(crash(stage)) == (0, Cause.EXITED)


def test_awaited__what_was_served_before_it_failed_did_not_give_up() -> None:
    stage = alone(30)
    for proc in stage.procs.values():
        stage.become(proc, "train")
    stage.run(1)
    stage.exit(stage.rank(0), code=1)
    assert rank_and_cause(crash(stage)) == (0, Cause.EXITED)


def test_is_due__ranks_that_exchange_bytes_cost_nothing_and_those_that_do_not_are_watched() -> None:
    stage = trained(4, seconds=60)
    ranks = stage.job.members.ranks.values()
    assert not gave_up.is_due(ranks, stage.now_ns)
    assert not gave_up.is_due(ranks, stage.now_ns + 14 * NS)
    assert gave_up.is_due(ranks, stage.now_ns + 17 * NS)
    assert not gave_up.is_due(Stage(world=4).job.members.ranks.values(), stage.now_ns)


def test_awaited__what_was_seen_long_before_the_failure_shows_nothing() -> None:
    stage = alone(30)
    late = stage.job.announced.awaited
    assert late is not None
    assert (late.rank.rank, round(late.waited_s), len(late.waiting)) == (2, 30, 3)
    stage.job.announced.awaited = replace(late, at_ns=late.at_ns - 16 * NS)
    stage.exit(stage.rank(0), code=1)
    assert rank_and_cause(crash(stage)) == (0, Cause.EXITED)


def test_awaited__ranks_that_are_not_observed_may_be_what_all_wait_for() -> None:
    stage = trained(8, seconds=60, here=4)
    stage.become(stage.rank(2), "run")
    all_wait(stage, 2)
    stage.run(30)
    stage.exit(stage.rank(0), code=1)
    assert rank_and_cause(crash(stage)) == (0, Cause.EXITED)
