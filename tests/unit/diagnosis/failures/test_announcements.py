"""Failures before a job has rank numbers, of a shell and of what it runs, and those after a rank has left."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.failures.announcements import Announcements
from kcover_ebpf.model.verdict import Cause
from tests.unit.support.scripted_job import Proc, Stage
from tests.unit.support.seen_verdicts import not_working


def unnumbered() -> tuple[Stage, Proc]:
    """A job without rank numbers: a shell."""
    stage = Stage(world=0)
    return stage, stage.add(Proc(800, rank=None, argv=("bash", "run.sh")))


@pytest.mark.parametrize("words", [("ls", "x"), ("sh", "-c", "false")])
def test_announcements__what_a_shell_runs_before_there_are_numbers_may_fail(
    words: tuple[str, ...],
) -> None:
    stage, shell = unnumbered()
    first = stage.add(Proc(801, ppid=800, rank=None, argv=words))
    stage.run(1)
    stage.exit(first, 2)
    stage.run(3)
    assert not_working(stage) == []
    stage.exit(shell, 1)
    stage.run(1)
    assert [verdict.culprit and verdict.culprit.pid for verdict in not_working(stage)] == [800]


def test_announcements__a_failure_before_the_numbers_came_is_no_failure_of_a_rank() -> None:
    stage, _ = unnumbered()
    announcements: Announcements = stage.job.announced
    first = stage.add(Proc(801, ppid=800, rank=None))
    stage.run(10)
    stage.exit(first, 2)
    stage.one_pass(1)
    assert announcements.failures != []
    stage.add(Proc(802, ppid=800, rank=0))
    stage.run(3)
    assert announcements.failures == []


@pytest.mark.parametrize(
    ("is_silent", "is_connected", "culprit"),
    [
        (True, True, (1, Cause.LEFT_EARLY)),
        (False, True, (3, Cause.EXITED)),
        (True, False, (3, Cause.EXITED)),
    ],
    ids=["nothing was exchanged since", "the others trained on", "no exchange is observed"],
)
def test_announcements__a_busy_machine_does_not_excuse_who_left(
    is_silent: bool, is_connected: bool, culprit: tuple[int, Cause]
) -> None:
    """There a program takes long to end after the error that it met."""
    stage = Stage(connected=is_connected)
    stage.run(20)
    stage.exit(stage.rank(1))
    for rank in (0, 2, 3) if is_silent else ():
        stage.become(stage.rank(rank), "run")
    stage.run(25)
    stage.exit(stage.rank(3), 1)
    stage.run(2)
    verdict = not_working(stage)[-1]
    assert (verdict.culprit and verdict.culprit.rank, verdict.cause) == culprit
