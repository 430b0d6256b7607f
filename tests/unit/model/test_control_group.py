"""Ranks that only wait are the control group: what they do as well explains nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import faults


def side_threads(stage: Stage) -> None:
    for proc in stage.procs.values():
        proc.side_cpu = 0.06


def logs(stage: Stage) -> None:
    for proc in stage.procs.values():
        proc.io_bytes_s = 20_000


def of_one_victim(stage: Stage) -> None:
    stage.rank(0).side_cpu = 0.15


def of_the_culprit(stage: Stage) -> None:
    stage.rank(2).side_cpu = 0.15


def moving_child(stage: Stage) -> None:
    stage.add(Proc(700, ppid=100, argv=("./gpu-monitor",)))


def monitor(stage: Stage) -> None:
    stage.become(stage.rank(3), "sleep")


BACKGROUND: dict[str, Callable[[Stage], None]] = {
    "6% of a CPU in each rank": side_threads,
    "20 KB/s of logs of each rank": logs,
    "one victim has a busy thread": of_one_victim,
    "the culprit has one, as always": of_the_culprit,
    "a child that always moves": moving_child,
    "a rank that sleeps, as always": monitor,
}


@pytest.mark.parametrize("name", BACKGROUND)
def test_control_group__what_runs_in_healthy_times_too_hides_no_hang(name: str) -> None:
    stage = Stage(world=4)
    BACKGROUND[name](stage)
    stage.run(120)
    stage.become(stage.rank(2), "futex", stack=LOCK)
    for proc in stage.procs.values():
        if proc.mode == "train" and proc.rank is not None:
            stage.become(proc, "futex", last_send_ns=stage.now_ns)
    stage.run(6)
    (verdict,) = faults(stage)
    assert verdict.cause is Cause.BLOCKED_LOCK
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"side_cpu": 1.0}, Cause.COMPUTING),
        ({"io_bytes_s": 50_000_000}, Cause.CHECKPOINT),
        ({"io_bytes_s": 300_000}, Cause.CHECKPOINT),
    ],
    ids=["a saver that compresses", "one that writes", "a slow one"],
)
@pytest.mark.parametrize("background", ["none", "6% of a CPU in each rank"])
def test_control_group__work_that_only_the_odd_rank_does_explains_the_wait(
    background: str, changes: dict[str, object], cause: Cause
) -> None:
    stage = Stage(world=4)
    if background in BACKGROUND:
        BACKGROUND[background](stage)
    stage.run(120)
    stage.become(stage.rank(0), "futex", stack=LOCK, **changes)
    all_wait(stage, 0)
    stage.run(40)
    assert faults(stage) == []
    finding = stage.job.finding()
    assert finding is not None
    assert (finding.kind, finding.cause) == (VerdictKind.WORKING, cause)


def test_control_group__a_checkpoint_of_all_ranks_is_one() -> None:
    stage = trained(seconds=60)
    for rank in range(4):
        stage.become(stage.rank(rank), "futex", stack=LOCK, io_bytes_s=50_000_000)
    stage.run(60)
    assert faults(stage) == []


def test_control_group__the_graph_says_who_waits_for_whom_and_what_does_not_count() -> None:
    stage = Stage(world=5)
    stage.become(stage.rank(4), "sleep")
    stage.run(60)
    for rank in range(4):
        stage.rank(rank).side_cpu = 0.3
    stage.become(stage.rank(2), "futex", stack=LOCK)
    for rank in (0, 1, 3):
        stage.become(stage.rank(rank), "futex", last_send_ns=stage.now_ns)
    stage.run(6)
    verdict = stage.tracker.latest
    assert verdict is not None
    assert verdict.graph == (
        "ranks 0, 1, 3 -> collective -> rank 2 -> another thread of it -> none known",
        "no work: side threads that compute of ranks 0, 1, 2, 3, as during the waits of the others",
        "no work: rank 4 sleeps as it always did",
    )
