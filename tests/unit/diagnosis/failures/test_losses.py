"""What a job has lost: a fault only if those who need it stop without it."""

from __future__ import annotations

import signal

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.kernel import OomKill, ProcessFork, SignalSent
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import faults, only_fault

LAUNCHER = 50


def launched(seconds: float = 20) -> Stage:
    stage = Stage()
    stage.add(Proc(LAUNCHER, argv=("torchrun", "train.py")))
    stage.run(seconds)
    return stage


def kill(stage: Stage, rank: int, sender: int = LAUNCHER) -> Proc:
    proc = stage.rank(rank)
    pid = Pid(proc.pid)
    stage.feed(SignalSent(stage.now_ns, pid, Tid(proc.pid), 9, Pid(sender), "torchrun"))
    stage.exit(proc, signal=signal.SIGKILL)
    return proc


def kill_one_and_run_on(stage: Stage, seconds: float) -> float:
    """Rank 2 is killed, the others run without it; when it was, in seconds."""
    kill(stage, 2)
    killed_s = stage.now_ns / NS
    for rank in (0, 1, 3):
        stage.become(stage.rank(rank), "run")
    stage.run(seconds)
    return killed_s


def lose_child(stage: Stage, number: int = signal.SIGKILL) -> None:
    """Rank 1 loses a child."""
    child = stage.add(Proc(700, ppid=101))
    stage.run(3)
    stage.exit(child, signal=number)


def wait_apart(stage: Stage, rank: int = 1, mode: str = "futex") -> None:
    """The others wait for a rank that waits elsewhere."""
    all_wait(stage, rank)
    stage.become(stage.rank(rank), mode, stack=LOCK)


def test_losses__a_rank_that_its_launcher_killed_is_reported_once_the_others_have_stopped() -> None:
    stage = launched()
    kill(stage, 2)
    killed_s = stage.now_ns / NS
    all_wait(stage, 2)
    stage.run(4)
    verdict = only_fault(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.KILLED)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 2
    assert verdict.victims == (0, 1, 3)
    assert "died by SIGKILL sent by torchrun (50)" in verdict.evidence[0].text
    threshold_s = max(stage.job.pace.threshold_s(Pid(pid)) for pid in (100, 101, 103))
    assert verdict.time_s - killed_s <= threshold_s + 1.0
    assert verdict.certainty is Certainty.ANNOUNCED


def test_losses__ranks_that_fail_for_seconds_after_one_was_killed_are_not_waited_for() -> None:
    """They raise an error, print it, and take down what they had: they run, and exchange nothing."""
    stage = launched()
    killed_s = kill_one_and_run_on(stage, 2.5)
    verdict = only_fault(stage)
    assert (verdict.cause, verdict.culprit and verdict.culprit.rank) == (Cause.KILLED, 2)
    threshold_s = max(stage.job.pace.threshold_s(Pid(pid)) for pid in (100, 101, 103))
    assert verdict.time_s - killed_s <= threshold_s + 1.0
    assert decide(verdict, Act.SHUTDOWN).act is Act.SNAPSHOT


def test_losses__ranks_that_work_on_after_one_was_killed_end_no_job() -> None:
    stage = launched()
    kill(stage, 2)
    for rank in (0, 1, 3):
        stage.become(stage.rank(rank), "run")
    acts = set()
    for _ in range(60):
        stage.run(0.5)
        if stage.tracker.latest is not None:
            acts.add(decide(stage.tracker.latest, Act.SHUTDOWN).act)
    assert acts <= {Act.SNAPSHOT}


def test_losses__a_rank_that_its_launcher_killed_may_be_started_again_before_the_job_is_ended() -> (
    None
):
    stage = launched()
    kill(stage, 2)
    all_wait(stage, 2)
    stage.run(4)
    assert decide(only_fault(stage), Act.SHUTDOWN).act is Act.SNAPSHOT
    stage.run(stage.policy.act_floor_s)
    assert stage.tracker.latest is not None
    assert decide(stage.tracker.latest, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_losses__ranks_that_train_on_without_the_one_that_was_taken_away_are_healthy() -> None:
    stage = launched()
    kill(stage, 3)
    stage.run(120)
    assert faults(stage) == []


def test_losses__ranks_that_form_a_new_group_after_a_pause_are_healthy_again() -> None:
    stage = launched()
    kill(stage, 3)
    all_wait(stage, 3)
    stage.run(5)
    for rank in (0, 1, 2):
        stage.become(stage.rank(rank), "train")
    verdict = stage.run(60)
    assert verdict is not None
    assert verdict.kind is VerdictKind.WORKING
    assert stage.job.announced.losses == {}


def test_losses__a_stall_long_after_a_launcher_made_the_job_smaller_has_another_reason() -> None:
    stage = launched()
    kill(stage, 3)
    stage.run(60)
    wait_apart(stage)
    stage.run(10)
    assert [(fault.culprit and fault.culprit.rank) for fault in faults(stage)] == [1]


def test_losses__a_rank_that_its_launcher_starts_again_is_no_fault() -> None:
    stage = launched()
    kill(stage, 2)
    all_wait(stage, 2)
    stage.run(1)
    del stage.procs[102]
    again = stage.add(Proc(902, ppid=LAUNCHER, rank=2, mode="run"))
    stage.run(8)
    for proc in (again, *(stage.rank(rank) for rank in (0, 1, 3))):
        stage.become(proc, "train")
    stage.run(60)
    assert faults(stage) == []


@pytest.mark.parametrize(
    ("killed", "ordered"),
    [((2, 3), False), ((2,), True)],
    ids=["several ranks", "by a launcher that was ordered to end"],
)
def test_losses__a_launcher_that_ends_the_job_announces_no_fault(
    killed: tuple[int, ...], *, ordered: bool
) -> None:
    stage = launched()
    if ordered:
        stage.feed(SignalSent(stage.now_ns, Pid(LAUNCHER), Tid(LAUNCHER), 15, Pid(9), "bash"))
    for rank in killed:
        kill(stage, rank)
    all_wait(stage, -1)
    stage.run(5)
    assert Certainty.ANNOUNCED not in {fault.certainty for fault in faults(stage)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGXCPU])
def test_losses__a_child_whose_rank_trains_on_is_no_fault(number: int) -> None:
    """A sandbox that reaches its limit, a saver that the memory limit takes."""
    stage = trained()
    lose_child(stage, number)
    stage.run(60)
    assert faults(stage) == []
    assert stage.job.announced.losses == {}


def test_losses__a_rank_that_waited_for_the_child_that_dies_has_not_stopped_since() -> None:
    stage = trained()
    child = stage.add(Proc(700, ppid=101, mode="run"))
    wait_apart(stage, mode="read")
    stage.run(1)
    stage.exit(child, signal=signal.SIGSEGV)
    stage.run(0.5)
    for rank in range(4):
        stage.become(stage.rank(rank), "train")
    stage.run(30)
    assert faults(stage) == []


@pytest.mark.parametrize("mode", ["run", "sleep"])
def test_losses__a_rank_that_works_after_its_child_died_is_healthy(mode: str) -> None:
    stage = trained()
    lose_child(stage)
    wait_apart(stage, mode=mode)
    stage.run(20)
    assert faults(stage) == []


def test_losses__a_rank_that_waits_for_another_one_does_not_miss_its_child() -> None:
    stage = trained()
    lose_child(stage)
    all_wait(stage, 0)
    stage.become(stage.rank(0), "run")
    stage.run(20)
    assert faults(stage) == []


def test_losses__a_loader_that_the_memory_limit_took_is_named_once_its_rank_has_stopped() -> None:
    stage = trained()
    loader = stage.add(Proc(700, ppid=101))
    stage.run(3)
    stage.feed(OomKill(stage.now_ns, Pid(loader.pid), "python3"))
    stage.exit(loader, signal=signal.SIGKILL)
    stage.run(2)
    wait_apart(stage)
    stopped_s = stage.now_ns / NS
    stage.run(5)
    verdict = only_fault(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.OOM_KILLED)
    assert (verdict.culprit and verdict.culprit.rank) == 1
    assert verdict.time_s - stopped_s <= stage.job.pace.threshold_s(Pid(101)) + 1.0
    assert decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_losses__of_two_children_the_one_that_is_missed_counts_though_it_died_later() -> None:
    stage = trained()
    lose_child(stage, signal.SIGSEGV)
    stage.run(8)
    loader = stage.add(Proc(701, ppid=101))
    stage.run(1)
    stage.exit(loader, signal=signal.SIGKILL)
    stage.run(4)
    wait_apart(stage)
    stage.run(5)
    assert only_fault(stage).cause is Cause.LOADER_DIED


@pytest.mark.parametrize(("goes_on", "announced"), [(False, [Cause.LOADER_DIED]), (True, [])])
def test_losses__a_pool_that_runs_the_next_sandbox_does_without_the_one_that_crashed(
    goes_on: bool, announced: list[Cause]
) -> None:
    stage = trained()
    lose_child(stage, signal.SIGSEGV)
    wait_apart(stage)
    stage.run(0.25)
    if goes_on:
        stage.add(Proc(701, ppid=101, mode="sleep", argv=("python3", "-c", "answer()")))
    stage.run(6)
    crashes = [fault for fault in faults(stage) if fault.kind is VerdictKind.CRASHED]
    assert [fault.cause for fault in crashes] == announced


@pytest.mark.parametrize("heard_late", [False, True])
def test_losses__what_a_shell_of_the_rank_ended_is_no_loss_though_the_shell_is_gone(
    heard_late: bool,
) -> None:
    stage = trained()
    child = stage.add(Proc(700, ppid=101))
    stage.run(3)
    fork = ProcessFork(stage.now_ns, Pid(101), Pid(800), "sh")
    if not heard_late:
        stage.feed(fork)
    stage.feed(SignalSent(stage.now_ns, Pid(700), Tid(700), 9, Pid(800), "sh"))
    stage.exit(child, signal=signal.SIGKILL)
    if heard_late:
        stage.feed(fork)
    wait_apart(stage)
    stage.run(5)
    assert all(verdict.kind is not VerdictKind.CRASHED for verdict in stage.verdicts)


@pytest.mark.parametrize(
    ("quiet_s", "is_learned", "soonest_s", "latest_s"),
    [(0, True, 0.5, 1.5), (3, True, 4.0, 6.0), (0, False, 1.6, 2.5)],
)
def test_losses__others_that_exchange_nothing_are_missing_a_rank_sooner_than_a_stall_takes(
    quiet_s: float, is_learned: bool, soonest_s: float, latest_s: float
) -> None:
    """`quiet_s`: for how long a step exchanges nothing."""
    stage = launched()
    for _ in range(3 if quiet_s else 0):
        for proc in stage.procs.values():
            if proc.rank is not None:
                stage.become(proc, "run")
        stage.run(quiet_s)
        for proc in stage.procs.values():
            if proc.rank is not None:
                stage.become(proc, "train")
        stage.run(2)
    assert faults(stage) == []
    for process in () if is_learned else stage.job.members.ranks.values():
        process.healthy_passes = 0
    killed_s = kill_one_and_run_on(stage, 8)
    verdict = only_fault(stage)
    assert verdict.certainty is Certainty.ANNOUNCED
    assert soonest_s <= verdict.time_s - killed_s <= latest_s
