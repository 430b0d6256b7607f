"""Failed ranks that are started again, or may be: by a framework, or by their parent."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.certainty import KILLED_PATIENCE_S
from tests.unit.support.scripted_job import Proc, Stage
from tests.unit.support.seen_verdicts import not_working


def left_with_3(*, count: int, with_launcher: bool) -> Stage:
    """So many of four ranks leave with the code that asks their supervisor to start them again."""
    stage = Stage()
    supervisor = stage.add(Proc(50, argv=("supervise", "train.py"), mode="read"))
    for rank in range(4):
        proc = stage.rank(rank)
        proc.ppid = supervisor.pid
        stage.add(proc)
    stage.run(60)
    for rank in range(count):
        stage.exit(stage.rank(rank), 3)
    if not with_launcher:
        stage.exit(supervisor)
    stage.run(3)
    return stage


@pytest.mark.parametrize(
    ("count", "with_launcher", "waits"),
    [(4, True, True), (4, False, False), (3, True, False)],
    ids=["all", "all, and their parent", "all but one, which waits"],
)
def test_own_recovery__where_no_rank_is_left_their_parent_is_given_time(
    count: int, *, with_launcher: bool, waits: bool
) -> None:
    stage = left_with_3(count=count, with_launcher=with_launcher)
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.EXITED)
    assert (decide(verdict, Act.SHUTDOWN).act is not Act.SHUTDOWN) is waits
    if waits:
        assert verdict.acts_at_s == pytest.approx(verdict.since_s + KILLED_PATIENCE_S, abs=2)
