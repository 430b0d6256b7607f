"""What was begun for a wait: threads and children as young as the wait of a rank at a lock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Certainty, VerdictKind
from tests.unit.support import scripted_job
from tests.unit.support.blocked_ranks import second_thread, state
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


@pytest.mark.parametrize(("is_young", "believed"), [(True, True), (False, False)])
def test_helpers__a_thread_that_was_begun_for_a_wait_tries_until_it_is_done(
    is_young: bool, believed: bool
) -> None:
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    began_ns = stage.now_ns
    for count in range(60):
        tries = second_thread(stage.rank(1), TaskState.SLEEPING, stage.now_ns, stage.now_ns)
        start_ns = began_ns - NS if is_young else began_ns - 60 * NS
        # every 50 ms: too seldom for a nap, too short for a timer
        tries = replace(tries, start_ns=start_ns, voluntary_count=5 * count)
        stage.feed(replace(tries, syscall=scripted_job.NANOSLEEP))
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert bool(not_working(stage)) is not believed


@pytest.mark.parametrize(("is_young", "wakes"), [(True, True), (True, False), (False, True)])
def test_helpers__so_does_a_child_that_was_begun_for_it(
    is_young: bool, wakes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, thread_of, begun = trained(), Stage._thread, dict[int, int]()

    def thread(stage: Stage, proc: Proc) -> ThreadSample:
        sample = replace(thread_of(stage, proc), start_ns=begun.get(proc.pid, 1))
        is_nap = wakes and proc.rank is None
        return replace(sample, idle_since_ns=stage.now_ns) if is_nap else sample

    monkeypatch.setattr(Stage, "_thread", thread)
    begun[500] = stage.now_ns
    stage.add(Proc(500, ppid=101, mode="sleep"))
    if not is_young:
        stage.run(20)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(15)
    believed = is_young and wakes
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert bool(not_working(stage)) is not believed


@pytest.mark.parametrize(
    ("before", "known_s", "believed"),
    [
        (("read",), 50, True),
        (("read",), 16, True),
        (("nap", *["read"] * 7), 50, False),
        (("read",), 5, False),
        (("wants a CPU",), 50, False),
    ],
)
def test_helpers__so_does_a_thread_that_sleeps_where_it_never_did_while_its_rank_trained(
    before: tuple[str, ...], known_s: int, believed: bool
) -> None:
    stage = trained()

    def feed(what: str, lasts_ns: int) -> None:
        begun_ns = stage.now_ns - stage.now_ns % lasts_ns
        state = TaskState.RUNNING if what == "wants a CPU" else TaskState.SLEEPING
        sample = second_thread(stage.rank(1), state, begun_ns, stage.now_ns)
        call = scripted_job.READ if what == "read" else scripted_job.NANOSLEEP
        stage.feed(replace(sample, syscall=call))
        stage.one_pass(NS // 4)

    for count in range(known_s * 4):
        feed(before[count % len(before)], NS // 20)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    for _ in range(60):
        # too seldom for a poll, too short for a timer
        feed("nap", 2 * NS // 5)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert bool(not_working(stage)) is not believed


def test_helpers__a_thread_that_paces_its_writes_may_be_what_its_rank_waits_for() -> None:
    """Whatever it always did: the bytes are more than usual, and the lead thread sleeps at a lock meanwhile."""
    stage = trained(seconds=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scripted_job.CALLS, "retry", scripted_job.FUTEX)
        stage.become(stage.rank(1), "retry", stack=LOCK, io_bytes_s=2 << 20)
        all_wait(stage, 1)
        stage.run(50)
        assert not_working(stage) == []
        assert state(stage, 101) is State.HELPED
        stage.run(30)
    assert [
        (verdict.kind, verdict.certainty, verdict.culprit and verdict.culprit.rank)
        for verdict in not_working(stage)
    ] == [(VerdictKind.UNKNOWN, Certainty.SUSPECTED, 1)]


def test_helpers__a_child_that_paces_its_writes_explains_a_wait_at_a_lock() -> None:
    stage = trained(seconds=60)
    child = stage.add(Proc(500, ppid=101, argv=("writer",), mode="sleep"))
    stage.run(60)
    stage.become(child, "retry", io_bytes_s=2 << 20)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(200)
    assert not_working(stage) == []
    assert state(stage, 101) is State.CHILDREN


@pytest.mark.parametrize(
    ("argv", "is_shared", "believed"),
    [
        (("python3", "train.py"), True, True),
        (("python3", "train.py"), False, False),
        (("exporter",), True, False),
    ],
    ids=["a fork at work as always", "at a private lock", "another program"],
)
def test_helpers__a_semaphore_of_processes_leads_to_the_forks_that_are_at_work(
    argv: tuple[str, ...], is_shared: bool, believed: bool
) -> None:
    stage = Stage()
    stage.add(Proc(500, ppid=101, mode="pulse", argv=argv))
    stage.run(60)
    stage.become(stage.rank(1), "futex", stack=LOCK, shared_futex=is_shared)
    all_wait(stage, 1)
    stage.run(20)
    assert state(stage, 101) is (State.CHILDREN if believed else State.FUTEX)
    assert bool(not_working(stage)) is not believed
