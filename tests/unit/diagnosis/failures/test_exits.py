"""Announced faults: what is a failure of the job, and whose."""

from __future__ import annotations

import signal

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.kernel import OomKill, ProcessExec, SignalSent
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.settings import Act
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working, only_fault

STRANGER = 9


def send(stage: Stage, proc: Proc, number: int, sender: int = STRANGER) -> None:
    stage.feed(
        SignalSent(stage.now_ns, Pid(proc.pid), Tid(proc.pid), number, Pid(sender), "sender")
    )


def with_loader(rank: int = 1) -> tuple[Stage, Proc]:
    stage = trained()
    loader = stage.add(Proc(501, ppid=100 + rank))
    stage.run(3)
    return stage, loader


def wait_for_loader(stage: Stage, rank: int = 1) -> None:
    """The others wait for a rank that waits for what its loader should bring."""
    all_wait(stage, rank)
    stage.become(stage.rank(rank), "futex", stack=LOCK)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_exits__a_loader_ended_by_its_own_parent_is_no_failure(number: int) -> None:
    stage, loader = with_loader()
    send(stage, loader, number, sender=101)
    stage.exit(loader, signal=number)
    stage.run(3)
    assert not_working(stage) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_exits__a_loader_ended_by_a_stranger_is_a_fault_of_its_rank(number: int) -> None:
    stage, loader = with_loader()
    send(stage, loader, number)
    stage.exit(loader, signal=number)
    wait_for_loader(stage)
    stage.run(4)
    verdict = only_fault(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.LOADER_DIED)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pid) == (1, 101)
    assert verdict.victims == (0, 2, 3)
    assert decide(verdict, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_exits__a_loader_that_crashes_is_a_fault_even_if_it_raised_the_signal_itself() -> None:
    stage, loader = with_loader()
    send(stage, loader, signal.SIGABRT, sender=loader.pid)
    stage.exit(loader, signal=signal.SIGABRT)
    wait_for_loader(stage)
    stage.run(4)
    assert only_fault(stage).cause is Cause.LOADER_DIED


def test_exits__a_rank_that_raises_for_the_lack_of_its_loader_is_its_victim() -> None:
    stage, loader = with_loader()
    stage.exit(loader, signal=signal.SIGKILL)
    stage.run(1)
    stage.exit(stage.rank(1), code=1)
    stage.run(3)
    assert only_fault(stage).cause is Cause.LOADER_DIED


@pytest.mark.parametrize(
    ("argv", "code", "number"),
    [
        (("python3", "train.py"), 1, 0),  # a loader that leaves by itself
        (("/usr/bin/gcc", "x.c"), 1, 0),
        (("/usr/bin/gcc", "x.c"), 0, signal.SIGSEGV),
        (("nvidia-smi",), 9, 0),
        (("nvidia-smi",), 0, signal.SIGKILL),
    ],
)
def test_exits__the_end_of_helpers_and_compilers_is_no_failure(
    argv: tuple[str, ...], code: int, number: int
) -> None:
    stage = trained()
    child = stage.add(Proc(700, ppid=102, argv=argv))
    stage.run(2)
    stage.exit(child, code, number)
    stage.run(3)
    assert not_working(stage) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_exits__a_job_that_is_ended_from_outside_is_no_fault(number: int) -> None:
    stage = trained()
    for proc in stage.procs.values():
        send(stage, proc, number)
        stage.exit(proc, signal=number)
    stage.run(3)
    assert not_working(stage) == []


def test_exits__a_job_whose_ranks_were_all_chosen_for_lack_of_memory_has_crashed() -> None:
    stage = trained()
    for proc in stage.procs.values():
        stage.feed(OomKill(stage.now_ns, Pid(proc.pid), "python3"))
        stage.exit(proc, signal=signal.SIGKILL)
    stage.run(3)
    assert only_fault(stage).cause is Cause.OOM_KILLED


def test_exits__one_rank_that_a_stranger_ends_is_a_fault_that_names_the_sender() -> None:
    stage = trained()
    send(stage, stage.rank(2), signal.SIGKILL)
    stage.exit(stage.rank(2), signal=signal.SIGKILL)
    stage.run(2)
    verdict = only_fault(stage)
    assert verdict.cause is Cause.KILLED
    assert verdict.evidence[0].kind is EvidenceKind.EVENT
    assert "died by SIGKILL sent by sender (9)" in verdict.evidence[0].text


def test_exits__a_rank_that_the_launcher_ends_after_another_failed_is_a_victim() -> None:
    stage = trained()
    launcher = stage.add(Proc(50, argv=("torchrun", "train.py")))
    stage.exit(stage.rank(3), code=7)
    for rank in (0, 1, 2):
        send(stage, stage.rank(rank), signal.SIGTERM, sender=launcher.pid)
        stage.exit(stage.rank(rank), signal=signal.SIGTERM)
    stage.run(3)
    verdict = only_fault(stage)
    assert verdict.cause is Cause.EXITED
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 3


@pytest.mark.parametrize(
    ("ended", "ordered", "culprit"),
    [
        ((2,), False, (2, Cause.KILLED)),
        ((2, 1), False, (3, Cause.EXITED)),
        ((2,), True, (3, Cause.EXITED)),
    ],
    ids=["one", "several", "by a launcher that was ordered to end"],
)
def test_exits__a_rank_that_its_own_launcher_killed_is_why_another_failed(
    ended: tuple[int, ...], ordered: bool, culprit: tuple[int, Cause]
) -> None:
    stage = trained()
    launcher = stage.add(Proc(50, argv=("torchrun", "train.py")))
    stage.run(1)
    if ordered:
        send(stage, launcher, signal.SIGTERM)
    for rank in ended:
        send(stage, stage.rank(rank), signal.SIGKILL, sender=launcher.pid)
        stage.exit(stage.rank(rank), signal=signal.SIGKILL)
    stage.run(1)
    stage.exit(stage.rank(3), code=1)
    stage.run(3)
    verdict = only_fault(stage)
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.cause) == culprit
    if verdict.cause is Cause.KILLED:
        assert (
            "rank 2 (pid 102, python3) died by SIGKILL sent by sender (50)"
            in verdict.evidence[0].text
        )
        assert "rank 3" in verdict.evidence[1].text


def ended_by_their_launcher(*, reported: bool) -> Stage:
    """Rank 3 leaves with code 0 and the launcher ends the others; `reported`: the launcher was ended first."""
    stage = trained()
    launcher = stage.add(Proc(50, argv=("mpirun", "train.py")))
    loader = stage.add(Proc(501, ppid=101))
    stage.run(1)
    if reported:
        send(stage, launcher, signal.SIGTERM)
    stage.exit(stage.rank(3))
    send(stage, loader, signal.SIGTERM, sender=101)
    stage.exit(loader, signal=signal.SIGTERM)
    for rank in (0, 1, 2):
        send(stage, stage.rank(rank), signal.SIGTERM, sender=launcher.pid)
        stage.exit(stage.rank(rank), signal=signal.SIGTERM)
    stage.run(3)
    return stage


def test_exits__a_launcher_that_ends_the_others_says_who_left() -> None:
    verdict = only_fault(ended_by_their_launcher(reported=False))
    assert (verdict.kind, verdict.cause) == (VerdictKind.CRASHED, Cause.LEFT_EARLY)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 3


def test_exits__no_rank_left_early_where_the_launcher_was_ordered_to_end() -> None:
    assert not_working(ended_by_their_launcher(reported=True)) == []


@pytest.mark.parametrize(
    ("code", "gap_s", "rank", "cause"),
    [
        (0, 2.0, 1, Cause.LEFT_EARLY),
        (0, 9.0, 1, Cause.LEFT_EARLY),
        (0, 12.0, 3, Cause.EXITED),
        (5, 0.2, 1, Cause.EXITED),
    ],
)
def test_exits__who_left_shortly_before_the_first_failure_is_to_blame(
    code: int, gap_s: float, rank: int, cause: Cause
) -> None:
    stage = trained()
    stage.exit(stage.rank(1), code)
    stage.run(gap_s)
    stage.exit(stage.rank(3), 1)
    stage.run(2)
    verdict = not_working(stage)[-1]
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.cause) == (rank, cause)


def test_exits__the_longer_the_steps_the_later_a_leaver_is_noticed() -> None:
    stage = trained()
    for _ in range(3):
        stage.one_pass(10 * NS)
    stage.exit(stage.rank(1))
    stage.now_ns += 12 * NS
    stage.exit(stage.rank(3), 1)
    stage.run(2)
    assert not_working(stage)[-1].cause is Cause.LEFT_EARLY


def became_a_rank(prepared_s: float, *, is_known: bool = True) -> Stage:
    """A script with the number of rank 3 ran a program, and then became the training."""
    stage = Stage()
    script = stage.rank(3)
    stage.add(Proc(103, rank=3, argv=("bash", "run.sh")))
    # a subshell that ends before it is read is no parent that is known
    first = stage.add(Proc(801, ppid=103 if is_known else 800, rank=3, argv=("stage-data", "/x")))
    stage.run(prepared_s)
    stage.feed(ProcessExec(stage.now_ns, Pid(script.pid), "python3"))
    stage.exit(first)
    stage.run(1)
    stage.add(Proc(103, rank=3))
    stage.run(2)
    return stage


@pytest.mark.parametrize(("prepared_s", "is_known"), [(1, True), (1, False), (30, True)])
def test_exits__what_a_script_ran_before_it_became_a_rank_is_no_rank_that_left(
    prepared_s: float, *, is_known: bool
) -> None:
    stage = became_a_rank(prepared_s, is_known=is_known)
    stage.run(20)
    all_wait(stage, -1)
    stage.run(30)
    assert Cause.LEFT_EARLY not in {verdict.cause for verdict in not_working(stage)}
    assert set(stage.job.members.all_ranks) == {100, 101, 102, 103}


def test_exits__what_a_script_ran_before_is_no_reason_of_a_crash() -> None:
    stage = became_a_rank(30)
    stage.exit(stage.rank(1), 1)
    stage.run(2)
    verdict = not_working(stage)[-1]
    assert (verdict.culprit and verdict.culprit.rank, verdict.cause) == (1, Cause.EXITED)


def test_exits__a_rank_left_although_another_program_has_its_number() -> None:
    stage = Stage()
    stage.add(Proc(900, ppid=800, rank=3, argv=("exporter", "--port", "9000")))
    stage.run(20)
    stage.exit(stage.procs[103])
    all_wait(stage, -1)
    stage.add(Proc(501, ppid=101))
    stage.run(30)
    assert Pid(103) in stage.job.members.all_ranks


def test_exits__who_leaves_after_the_first_failure_is_not_to_blame() -> None:
    stage = trained()
    stage.exit(stage.rank(3), 1)
    stage.one_pass(NS // 4)
    stage.exit(stage.rank(1))
    stage.run(2)
    assert [
        (verdict.culprit and verdict.culprit.rank, verdict.cause) for verdict in not_working(stage)
    ] == [(3, Cause.EXITED)]


def test_exits__a_rank_that_dies_after_its_loader_is_reported_instead_of_it() -> None:
    stage, loader = with_loader()
    stage.exit(loader, signal=signal.SIGKILL)
    stage.one_pass(NS // 4)
    stage.exit(stage.rank(1), signal=signal.SIGSEGV)
    stage.run(2)
    verdict = only_fault(stage)
    assert verdict.cause is Cause.SEGFAULT
    assert verdict.culprit is not None
    assert (verdict.culprit.rank, verdict.culprit.pid) == (1, 101)


@pytest.mark.parametrize(("gap_s", "noticed"), [(14, True), (16, False)])
def test_exits__the_longer_the_steps_the_later_a_launcher_ends_the_others(
    gap_s: int, noticed: bool
) -> None:
    stage = trained()
    launcher = stage.add(Proc(50, argv=("mpirun", "train.py")))
    for _ in range(3):
        stage.one_pass(10 * NS)
    stage.exit(stage.rank(3))
    stage.now_ns += gap_s * NS
    for rank in (0, 1, 2):
        send(stage, stage.rank(rank), signal.SIGTERM, sender=launcher.pid)
        stage.exit(stage.rank(rank), signal=signal.SIGTERM)
    stage.run(3)
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.LEFT_EARLY] * noticed


def test_exits__a_failure_is_reported_after_the_others_were_read() -> None:
    stage = trained()
    stage.exit(stage.rank(0), 1)
    stage.one_pass(NS // 4)
    assert not_working(stage) == []
    stage.one_pass(NS // 4)
    assert only_fault(stage).cause is Cause.EXITED


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_exits__who_stopped_a_rank_is_reported_until_it_is_continued(number: int) -> None:
    stage = trained()
    send(stage, stage.rank(1), number)
    assert stage.job.announced.stops[Pid(101)].sender_pid == STRANGER
    send(stage, stage.rank(1), signal.SIGCONT)
    assert stage.job.announced.stops == {}


def wrapped(stage: Stage) -> tuple[Proc, Proc]:
    """Rank 3 as a shell with a program below it."""
    stage.exit(stage.rank(3), 0)
    stage.run(1)
    del stage.procs[103]
    shell = stage.add(Proc(800, rank=3, argv=("bash", "-c", "./train")))
    return shell, stage.add(Proc(801, ppid=800, rank=3, argv=("readlink", "-f", "x")))


def test_exits__what_a_shell_around_a_rank_runs_first_may_fail() -> None:
    stage = Stage()
    shell, first = wrapped(stage)
    stage.exit(first, 1)
    stage.run(3)
    assert not_working(stage) == []
    stage.exit(shell, 1)
    stage.run(1)
    assert [verdict.culprit and verdict.culprit.rank for verdict in not_working(stage)] == [3]


def test_exits__a_failure_that_the_job_got_over_is_forgotten() -> None:
    stage = trained()
    stage.exit(stage.rank(2), 1)
    stage.run(2)
    assert not_working(stage) != []
    del stage.procs[102]
    stage.add(Proc(902, rank=2))
    verdict = stage.run(20)
    assert verdict is not None
    assert verdict.kind is VerdictKind.WORKING


def test_exits__the_last_rank_to_end_is_reported_at_once() -> None:
    stage = trained(world=1)
    stage.exit(stage.rank(0), 3)
    stage.one_pass(1)
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.EXITED]
