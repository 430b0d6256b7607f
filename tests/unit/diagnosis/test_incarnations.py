"""A launcher that starts its ranks again: another incarnation of the same job."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.facts.kernel import SignalSent
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait
from tests.unit.support.seen_verdicts import faults

LAUNCHER = 50


TORCHRUN = ("torchrun", "--max-restarts", "3", "train.py")
RAYLET = ("/venv/ray/core/src/ray/raylet/raylet", "--node_ip_address=10.0.0.1")


def start(stage: Stage, first: int, size: int, environment: Mapping[str, str]) -> None:
    """A launcher starts so many ranks."""
    for rank in range(size):
        proc = stage.add(Proc(first + rank, ppid=LAUNCHER, rank=rank, mode="run"))
        environ = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        environ |= environment
        pid = Pid(proc.pid)
        stage.feed(
            ProcessSeen(
                stage.now_ns,
                pid,
                Pid(LAUNCHER),
                "python3",
                proc.argv,
                environ,
                pid_inside=proc.pid,
            )
        )


def counted(restarts: int, most: int = 3) -> dict[str, str]:
    """What torchrun says of its restarts."""
    return {
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(most),
    }


def elastic(restarts: int = 0) -> Stage:
    return launched(TORCHRUN, counted(restarts))


def launched(launcher: tuple[str, ...], environment: Mapping[str, str]) -> Stage:
    """Four ranks that train below this launcher."""
    stage = Stage(world=0)
    stage.add(Proc(LAUNCHER, argv=launcher))
    start(stage, 100, 4, environment)
    train(stage)
    stage.run(25)
    assert faults(stage) == []
    return stage


def train(stage: Stage) -> None:
    for proc in stage.procs.values():
        if proc.rank is not None:
            stage.become(proc, "train")


def end_rest(stage: Stage) -> None:
    """The launcher ends the ranks that are left."""
    for pid, proc in list(stage.procs.items()):
        if proc.rank is None:
            continue
        if proc.alive:
            sent = SignalSent(stage.now_ns, Pid(pid), Tid(pid), 15, Pid(LAUNCHER), "torchrun")
            stage.feed(sent)
            stage.exit(proc, signal=signal.SIGTERM)
        del stage.procs[pid]


def test_incarnations__an_elastic_job_that_forms_again_with_fewer_ranks_is_healthy() -> None:
    stage = elastic()
    end_rest(stage)
    stage.run(3)
    start(stage, 200, 3, counted(1))
    stage.run(10)
    train(stage)
    stage.run(60)
    assert faults(stage) == []
    assert set(stage.job.members.all_ranks) == {200, 201, 202}
    assert stage.job.members.world_size == 3


def test_incarnations__a_hang_after_a_job_formed_again_names_its_own_rank() -> None:
    stage = elastic()
    end_rest(stage)
    start(stage, 200, 3, counted(1))
    stage.run(5)
    train(stage)
    stage.run(30)
    all_wait(stage, 2)
    stage.become(stage.procs[202], "futex", stack=LOCK)
    stage.run(10)
    assert {fault.culprit and fault.culprit.pid for fault in faults(stage)} == {202}


def test_incarnations__a_failure_that_the_launcher_gets_over_ends_no_job() -> None:
    stage = elastic()
    stage.exit(stage.procs[102], 1)
    stage.run(2)
    (verdict,) = faults(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.EXITED)
    assert "python3 (50) starts failed ranks again, 3 more time(s)" in [
        evidence.text for evidence in verdict.evidence
    ]
    assert decide(verdict, Act.SHUTDOWN).act is Act.SNAPSHOT
    end_rest(stage)
    stage.run(5)
    start(stage, 200, 4, counted(1))
    stage.run(5)
    train(stage)
    now = stage.run(20)
    assert now is not None
    assert now.kind is VerdictKind.WORKING
    assert len(faults(stage)) == 1


def test_incarnations__a_launcher_that_does_not_come_to_it_is_waited_for_no_longer() -> None:
    stage = elastic()
    stage.exit(stage.procs[102], 1)
    all_wait(stage, 2)
    stage.run(62)
    assert stage.tracker.latest is not None
    assert decide(stage.tracker.latest, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_incarnations__the_last_failure_that_a_launcher_accepts_ends_the_job_at_once() -> None:
    stage = elastic(restarts=3)
    stage.exit(stage.procs[102], 1)
    stage.run(1)
    (verdict,) = faults(stage)
    assert decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_incarnations__a_failure_whose_launcher_has_ended_is_final() -> None:
    stage = elastic()
    stage.exit(stage.procs[102], 1)
    stage.exit(stage.procs[LAUNCHER], 1)
    stage.now_ns += NS
    stage.run(1)
    assert stage.tracker.latest is not None
    assert decide(stage.tracker.latest, Act.SHUTDOWN).act is Act.SHUTDOWN


@pytest.mark.parametrize("asked", [False, True], ids=["for the one that died", "asked to end"])
def test_incarnations__a_rank_is_reported_though_its_launcher_ends_the_others_within_the_settling_time(
    asked: bool,
) -> None:
    """As NVRx in job does. Where the launcher was asked to end as well, the whole job was ended from outside."""
    stage = elastic()
    kill = SignalSent(stage.now_ns, Pid(102), Tid(102), 9, Pid(9), "bash")
    ends = SignalSent(stage.now_ns, Pid(LAUNCHER), Tid(LAUNCHER), 15, Pid(9), "bash")
    for sent in (kill, ends) if asked else (kill,):
        stage.feed(sent)
    stage.exit(stage.procs[102], signal=signal.SIGKILL)
    end_rest(stage)
    stage.run(2)
    found = [(verdict.cause, verdict.culprit and verdict.culprit.pid) for verdict in faults(stage)]
    assert found == ([] if asked else [(Cause.KILLED, 102)])


LIGHTHOUSE = {"TORCHFT_LIGHTHOUSE": "http://10.0.0.1:29510"}
MENDED = {
    "Ray": (RAYLET, {}, "python3 (50) starts them again if Ray Train asks for it (max_failures)"),
    "torchft": (
        TORCHRUN,
        LIGHTHOUSE,
        "the other replica groups of torchft continue without it (lighthouse http://10.0.0.1:29510)",
    ),
    "torchft with restarts left": (
        TORCHRUN,
        LIGHTHOUSE | counted(0),
        "python3 (50) starts failed ranks again, 3 more time(s)",
    ),
}


@pytest.mark.parametrize("framework", MENDED)
def test_incarnations__a_crash_is_left_for_a_minute_to_a_framework_that_counts_no_restarts(
    framework: str,
) -> None:
    launcher, environment, said = MENDED[framework]
    stage = launched(launcher, environment)
    stage.exit(stage.procs[102], signal=signal.SIGKILL)
    all_wait(stage, 2)
    stage.run(10)
    (verdict,) = faults(stage)
    assert said in [evidence.text for evidence in verdict.evidence]
    assert decide(verdict, Act.SHUTDOWN).act is Act.SNAPSHOT
    stage.run(52)
    assert stage.tracker.latest is not None
    assert decide(stage.tracker.latest, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_incarnations__a_minute_begins_anew_with_each_process_that_the_launcher_starts() -> None:
    """Ray's workers load for half a minute before they are a rank of anything."""
    stage = launched(RAYLET, {})
    stage.exit(stage.procs[102], signal=signal.SIGKILL)
    all_wait(stage, 2)
    stage.run(40)
    stage.add(Proc(300, ppid=LAUNCHER, argv=("ray::IDLE",), mode="run"))
    stage.run(50)
    assert stage.tracker.latest is not None
    assert decide(stage.tracker.latest, Act.SHUTDOWN).act is not Act.SHUTDOWN
    stage.run(12)
    assert decide(stage.tracker.latest, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_incarnations__a_raylet_that_is_gone_starts_nothing_again() -> None:
    stage = launched(RAYLET, {})
    stage.exit(stage.procs[LAUNCHER], signal=signal.SIGKILL)
    stage.exit(stage.procs[102], 1)
    stage.run(2)
    assert stage.tracker.latest is not None
    assert decide(stage.tracker.latest, Act.SHUTDOWN).act is Act.SHUTDOWN
