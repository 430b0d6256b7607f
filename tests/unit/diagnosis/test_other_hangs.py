"""Hangs that differ from the usual one: spawned workers, launchers that kill, children, threads that do not read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.diagnosis.judge.judge import judge
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.facts.kernel import SignalSent
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.outside_waits import passes
from tests.unit.support.scripted_job import COLLECTIVE, LOCK, Proc, Stage, all_wait, pipe, trained
from tests.unit.support.seen_verdicts import faults, not_working
from tests.unit.support.wired_stage import Wired, all_become

_SPAWNED = (
    "/usr/bin/python3",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)",
    "--multiprocessing-fork",
)
_PATIENCE_S = Policy().storage_patience_s


def kinds(verdict: Verdict) -> set[EvidenceKind]:
    return {evidence.kind for evidence in verdict.evidence}


@pytest.mark.parametrize("argv", [("python3", "train.py"), _SPAWNED], ids=["forked", "spawned"])
@pytest.mark.parametrize("step_s", [0, 10])
def test_other_hangs__a_stopped_loader_is_named_in_seconds_however_long_the_steps_last(
    argv: tuple[str, ...], step_s: float
) -> None:
    stage = Stage(world=4)
    loader = stage.add(Proc(500, ppid=102, argv=argv, mode="tick"))
    if step_s:
        # its epochs begin with a pause in which its workers are started
        for _ in range(8):
            for proc in stage.procs.values():
                stage.become(proc, "train")
            stage.run(1)
            for proc in stage.procs.values():
                stage.become(proc, "futex" if proc.rank is not None else "tick")
            stage.run(step_s)
        for proc in stage.procs.values():
            stage.become(proc, "train" if proc.rank is not None else "tick")
    stage.run(20)
    answers = pipe(stage, loader, 7, 900)
    stage.become(loader, "stopped")
    stage.stop_signal(loader)
    stage.become(stage.rank(2), "poll", files=(replace(answers, fd=9),), stack=LOCK)
    all_wait(stage, 2)
    passes(stage, 6, lambda: pipe(stage, loader, 7, 900))
    (verdict,) = faults(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank, verdict.culprit.tid) == (
        Cause.LOADER_STUCK,
        2,
        500,
    )


def test_other_hangs__a_stopped_child_that_no_process_waits_for_is_no_fault() -> None:
    stage = Stage(world=4)
    loader = stage.add(Proc(500, ppid=102, mode="tick"))
    stage.run(20)
    stage.become(loader, "stopped")
    stage.stop_signal(loader)
    stage.run(60)
    assert faults(stage) == []


def killed_by_its_launcher(stage: Stage) -> Proc:
    """The launcher kills rank 2 and starts none in its place; the others wait, some in their next collective."""
    victim = stage.rank(2)
    sent = SignalSent(stage.now_ns, Pid(victim.pid), Tid(victim.pid), 9, Pid(50), "torchrun")
    stage.feed(sent)
    stage.exit(victim, signal=9)
    for late, rank in enumerate((0, 1, 3)):
        sent_ns = stage.now_ns + late * 100_000_000
        stage.become(stage.rank(rank), "futex", last_send_ns=sent_ns)
    return victim


def launched() -> Stage:
    stage = Stage(world=4)
    stage.add(Proc(50, argv=("torchrun", "train.py"), mode="tick"))
    stage.run(20)
    return stage


def test_other_hangs__a_rank_that_its_launcher_killed_is_named_and_no_innocent_one() -> None:
    stage = launched()
    killed_by_its_launcher(stage)
    stage.run(5)
    (verdict,) = faults(stage)
    assert verdict.culprit is not None
    assert (verdict.kind, verdict.cause, verdict.culprit.rank) == (
        VerdictKind.CRASHED,
        Cause.KILLED,
        2,
    )
    # it may return
    assert decide(verdict, Act.SHUTDOWN).act is Act.SNAPSHOT
    stage.run(10)
    latest = stage.tracker.latest
    assert latest is not None
    assert decide(latest, Act.SHUTDOWN).reason.startswith("announced")


def test_other_hangs__a_rank_that_its_launcher_started_again_is_not_missed() -> None:
    stage = launched()
    killed_by_its_launcher(stage)
    stage.add(Proc(202, rank=2, mode="run"))
    stage.run(40)
    assert faults(stage) == []


def test_other_hangs__a_rank_whose_thread_does_not_read_any_more_is_named() -> None:
    # its main thread waits on a queue, as in every step; what the others sent it is there
    stage = Wired(world=4)
    stage.run(30)
    all_become(stage, "futex")
    stage.run(0.2)
    stage.unread[102, 21] = 8192
    stage.run(8)
    assert faults(stage) == []
    suspect = stage.tracker.current
    assert suspect is not None
    assert (suspect.kind, suspect.cause) == (VerdictKind.UNKNOWN, Cause.BLOCKED_READ)
    stage.run(14)
    (verdict,) = faults(stage)
    assert verdict.culprit is not None
    assert (verdict.cause, verdict.culprit.rank) == (Cause.BLOCKED_READ, 2)
    assert EvidenceKind.EDGE in kinds(verdict)
    # of a job that is on several hosts, it may first wait for a rank of another one
    found = judge(replace(stage.job.snapshot(), whole=False))
    assert (found.kind, found.cause) == (VerdictKind.UNKNOWN, Cause.BLOCKED_READ)


@pytest.mark.parametrize(
    ("mode", "deadline_s", "found"),
    [("sleep_long", 10**6, True), ("sleep", 120, False), ("stopped", 0, True)],
)
def test_other_hangs__a_rank_that_waits_for_a_child_process(
    mode: str, deadline_s: int, found: bool
) -> None:
    stage = trained()
    child = stage.add(Proc(700, ppid=101, argv=("fetch", "data")))
    stage.run(5)
    stage.become(child, mode, timed=True, deadline_ns=stage.now_ns + deadline_s * NS)
    waited = pipe(stage, child, 1, 88)
    stage.become(stage.rank(1), "read", files=(replace(waited, fd=9),), stack=LOCK)
    all_wait(stage, 1)
    passes(stage, 8, lambda: pipe(stage, child, 1, 88))
    named = [fault.culprit.rank for fault in faults(stage) if fault.culprit]
    assert named == ([1] if found else [])


def reads_from(stage: Stage, child: Proc, asked: WaitedFile) -> None:
    """All wait for rank 1, which reads what its child answers, which reads this as its standard input."""
    answers = pipe(stage, child, 1, 88)
    stage.become(child, "read", files=(replace(asked, fd=0),))
    stage.become(stage.rank(1), "read", files=(replace(answers, fd=9),), stack=LOCK)
    all_wait(stage, 1)


def test_other_hangs__a_child_whose_input_another_child_has_inherited_waits_for_that_one() -> None:
    stage = trained()
    heir = stage.add(Proc(701, ppid=101, argv=("heir",)))
    child = stage.add(Proc(700, ppid=101, argv=("sort",)))
    stage.run(5)
    stage.become(heir, "sleep_long", timed=True, deadline_ns=stage.now_ns + 10**6 * NS)

    def open_pipes() -> None:
        pipe(stage, heir, 5, 87)
        pipe(stage, child, 1, 88)

    reads_from(stage, child, pipe(stage, heir, 5, 87))
    passes(stage, 8, open_pipes)
    assert [fault.culprit.rank for fault in faults(stage) if fault.culprit] == [1]


def test_other_hangs__a_child_that_reads_what_its_rank_was_started_with_waits_for_a_user() -> None:
    stage = trained()
    launcher = stage.add(Proc(50, argv=("mpirun", "train.py"), mode="poll"))
    child = stage.add(Proc(700, ppid=101, argv=("fetch", "data")))
    stage.run(5)

    def open_pipes() -> None:
        pipe(stage, stage.rank(1), 0, 87)
        pipe(stage, launcher, 30, 87)
        pipe(stage, child, 1, 88)

    reads_from(stage, child, pipe(stage, launcher, 30, 87))
    passes(stage, 30, open_pipes)
    assert stage.job.snapshot().processes[Pid(700)].state is State.USER
    assert faults(stage) == []


def test_other_hangs__a_loop_on_one_rank_is_reported_with_its_name_though_heartbeats_continue() -> (
    None
):
    stage = Wired(world=16)
    stage.run(30)
    all_become(stage, "futex")
    stage.become(stage.rank(0), "run")
    # rank 0 serves the store of fifteen others: 870 B a second go over its connections
    stage.run(15)
    verdict = stage.tracker.current
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.WORKING, Cause.COMPUTING)
    assert "rank 0 is computing" in verdict.evidence[0].text


def test_other_hangs__a_gang_that_has_no_requests_is_not_ended() -> None:
    # idle is no hang: nothing but time passes, and that is one kind of evidence
    stage = Stage(world=2)
    stage.run(60)
    for rank in range(2):
        stage.become(stage.rank(rank), "poll", last_send_ns=stage.now_ns)
    stage.run(120)
    assert [kinds(fault) for fault in faults(stage)] == [{EvidenceKind.TIME, EvidenceKind.PEERS}]


def test_other_hangs__most_ranks_in_one_new_lock_are_reported_and_none_is_named() -> None:
    stage = trained(8, seconds=60)
    for rank in range(8):
        stack = LOCK if rank < 5 else COLLECTIVE
        stage.become(stage.rank(rank), "futex", stack=stack, last_send_ns=stage.now_ns)
    stage.run(60)
    (verdict,) = not_working(stage)
    assert (verdict.kind, verdict.cause) == (VerdictKind.UNKNOWN, Cause.WAIT_CYCLE)
    assert verdict.culprit is None
