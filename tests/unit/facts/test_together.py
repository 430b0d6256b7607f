"""Trials of a sweep are jobs of their own; ranks that share a world or a connection are one."""

from __future__ import annotations

import signal

import pytest

from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.verdict import Cause
from tests.unit.support.link_builders import edge
from tests.unit.support.scripted_job import Proc, Stage, all_wait
from tests.unit.support.seen_verdicts import faults, only_fault

TRIALS = range(100, 104)


def sweep(environ: dict[str, str] | None = None, seconds: float = 60) -> Stage:
    """Four trials below a shell; `environ`: what each has, where {} stands for its number."""
    stage = Stage(world=0)
    stage.add(Proc(90, argv=("bash", "sweep.sh")))
    for pid in TRIALS:
        proc = stage.add(Proc(pid, ppid=90, argv=("python3", "trial.py", f"--lr={pid}")))
        own = {name: value.format(pid) for name, value in (environ or {}).items()}
        stage.feed(
            ProcessSeen(stage.now_ns, Pid(pid), Pid(90), "python3", proc.argv, own, pid_inside=pid)
        )
    stage.run(seconds)
    assert faults(stage) == []
    return stage


def connect(stage: Stage, one: int, other: int) -> None:
    ends = {one: ("127.0.0.1", 40_000 + one), other: ("127.0.0.1", 29_500)}
    for pid, peer in ((one, other), (other, one)):
        stage.feed(
            edge(
                Pid(pid),
                peer,
                boottime_ns=stage.now_ns,
                local=ends[pid],
                remote=ends[peer],
                acked_bytes=10,
                received_bytes=10,
                last_send_ns=stage.now_ns,
                last_receive_ns=stage.now_ns,
            )
        )


WORLD_OF_ONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29{}"}


@pytest.mark.parametrize("environ", [None, WORLD_OF_ONE], ids=["no number", "a world of one"])
@pytest.mark.parametrize(("code", "number"), [(0, 0), (1, 0), (0, signal.SIGKILL)])
def test_together__a_trial_that_ends_is_no_fault_of_the_others(
    environ: dict[str, str] | None, code: int, number: int
) -> None:
    stage = sweep(environ)
    stage.exit(stage.procs[103], code, number)
    stage.run(5)
    for pid in (100, 101, 102):
        stage.become(stage.procs[pid], "futex")
    stage.run(30)
    assert faults(stage) == []


def test_together__the_last_trial_of_a_sweep_that_fails_is_a_failure_of_the_job() -> None:
    stage = sweep()
    for pid in TRIALS:
        stage.exit(stage.procs[pid], int(pid == TRIALS[-1]))
    stage.run(2)
    assert only_fault(stage).cause is Cause.EXITED


def test_together__a_shell_that_gives_up_after_a_trial_failed_is_a_failure_of_the_job() -> None:
    stage = sweep()
    stage.exit(stage.procs[103], 1)
    stage.run(1)
    stage.exit(stage.procs[90], 1)
    stage.run(2)
    verdict = only_fault(stage)
    assert (verdict.cause, verdict.culprit and verdict.culprit.pid) == (Cause.EXITED, 90)


def test_together__programs_that_are_connected_are_one_job() -> None:
    stage = sweep()
    connect(stage, 100, 103)
    stage.exit(stage.procs[103], 1)
    stage.run(2)
    verdict = only_fault(stage)
    assert (verdict.cause, verdict.culprit and verdict.culprit.pid) == (Cause.EXITED, 103)


def test_together__ranks_of_one_world_are_one_job_before_they_are_connected() -> None:
    stage = Stage(connected=False)
    stage.run(8)
    stage.exit(stage.rank(3), 1)
    all_wait(stage, 3)
    stage.run(2)
    assert only_fault(stage).cause is Cause.EXITED
