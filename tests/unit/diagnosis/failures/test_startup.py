"""Ranks that their launcher did not start with the others."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.failures import startup
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.silence_summary import StartWait
from kcover_ebpf.model.verdict import Cause, Certainty
from tests.unit.support.scripted_job import Proc, Stage
from tests.unit.support.seen_verdicts import faults

MANY = 4


def start(came: int, pause_s: float = 0.1) -> Stage:
    """So many of four ranks are forked, one after the other, and load their libraries."""
    stage = Stage(world=MANY, here=0)
    stage.add(Proc(50, argv=("torchrun", "train.py"), mode="tick"))
    for rank in range(came):
        proc = stage.add(Proc(100 + rank, ppid=50, rank=rank, mode="run"))
        sizes = {"WORLD_SIZE": str(MANY), "LOCAL_WORLD_SIZE": str(MANY)}
        environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), **sizes}
        stage.feed(
            ProcessSeen(
                stage.now_ns,
                Pid(proc.pid),
                Pid(50),
                "python3",
                proc.argv,
                environ,
                start_ns=stage.now_ns,
            )
        )
        stage.now_ns += int(pause_s * NS)
    stage.job.whole = True
    return stage


def missing(stage: Stage) -> set[int | None]:
    return {
        fault.culprit.rank
        for fault in faults(stage)
        if fault.cause is Cause.MISSING_RANK and fault.culprit
    }


def test_startup__a_rank_that_was_not_forked_with_the_others_is_missed_while_they_load() -> None:
    stage = start(3)
    stage.run(5)
    assert missing(stage) == {3}
    stage.run(200)
    assert {fault.certainty for fault in faults(stage)} == {Certainty.SUSPECTED}


@pytest.mark.parametrize(("came", "pause_s"), [(2, 0.1), (3, 1.0)])
def test_startup__where_the_forks_do_not_tell_those_that_load_are_waited_for(
    came: int, pause_s: float
) -> None:
    stage = start(came, pause_s)
    stage.run(6)
    assert missing(stage) == set()


def wait_after(seconds: float, *modes: str) -> StartWait | None:
    """What is known of the wait of two of four ranks that load for 5 s and are then in these modes."""
    stage = Stage(world=MANY, here=2)
    for number in range(2):
        stage.become(stage.rank(number), "run")
    stage.run(5)
    for number, mode in enumerate(modes):
        stage.become(stage.rank(number), mode)
    stage.run(seconds)
    return startup.start_wait(stage.job.members, stage.job.pace, stage.now_ns)


@pytest.mark.parametrize("mode", ["poll", "futex", "sleep"])
def test_start_wait__ranks_that_loaded_and_wait_for_others_are_known_after_3_s(mode: str) -> None:
    assert wait_after(2, mode, mode) is None
    wait = wait_after(5, mode, mode)
    assert wait is not None
    assert (wait.ranks, wait.world_size) == (2, MANY)
    assert 3.0 <= wait.age_s <= 5.0


@pytest.mark.parametrize("mode", ["run", "yield", "stopped", "write"])
def test_start_wait__ranks_do_not_wait_while_one_of_them_does_something_else(mode: str) -> None:
    assert wait_after(10, "poll", mode) is None


def test_start_wait__ranks_that_train_wait_for_no_start() -> None:
    stage = Stage()
    stage.run(60)
    for proc in stage.procs.values():
        stage.become(proc, "futex")
    stage.run(10)
    assert startup.start_wait(stage.job.members, stage.job.pace, stage.now_ns) is None
