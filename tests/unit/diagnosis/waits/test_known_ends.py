"""Waits whose other end is known, or known not to be seen: children, streams, event loops, name servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.clock.suspicion import Suspicion
from kcover_ebpf.facts.host import ThreadReading, WaitedFile
from kcover_ebpf.facts.kernel import DescriptorSample, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.tunables.diagnosis import LONE_FLOOR_S
from tests.unit.support import scripted_job
from tests.unit.support.blocked_ranks import WRITE, second_thread, sitting_in, state
from tests.unit.support.link_builders import edge
from tests.unit.support.scripted_job import LOCK, Proc, Stage, all_wait, trained
from tests.unit.support.seen_verdicts import not_working


def test_known_ends__a_child_that_was_not_seen_is_not_one_that_died() -> None:
    stage = trained()
    with sitting_in(61):
        stage.become(stage.rank(1), "read", stack=LOCK)
        all_wait(stage, 1)
        stage.run(LONE_FLOOR_S - 3)
        assert not_working(stage) == []
        verdict = stage.run(8)
    assert verdict is not None
    assert (verdict.kind, verdict.certainty) == (VerdictKind.UNKNOWN, Certainty.SUSPECTED)
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 1


@pytest.mark.parametrize("kind", ["udp", "stream"])
@pytest.mark.parametrize("here", [None, 4], ids=["one host", "one of two hosts"])
def test_known_ends__a_question_by_udp_or_by_a_ring_leads_outside_on_any_number_of_hosts(
    here: int | None, kind: str
) -> None:
    stage = trained(8 if here else 4, here=here)
    asked = WaitedFile(60, kind, "socket:[4242]", Inode(4242), "", "")
    stage.become(stage.rank(0), "poll", files=(asked,), stack=LOCK)
    all_wait(stage, 0)
    stage.run(20)
    assert state(stage, 100) is State.OUTSIDE
    assert not_working(stage) == []


def test_known_ends__a_program_that_waits_for_a_signal_alone_is_kept_alive_for_later() -> None:
    stage = Stage(world=1)
    stage.become(stage.rank(0), "pause", stack=LOCK)
    stage.run(300)
    assert not_working(stage) == []
    assert state(stage, 100) is State.SLEEP_LONG


@pytest.mark.parametrize("timeout_ms", [-1, 1000])
@pytest.mark.parametrize("kind", ["unix", "pipe"])
def test_known_ends__an_event_loop_that_only_its_own_threads_can_wake_sleeps_or_is_at_a_lock(
    kind: str, timeout_ms: int
) -> None:
    stage = trained()
    loop = stage.rank(1)
    ends = (Inode(900), Inode(901)) if kind == "unix" else (Inode(900), Inode(900))
    asked = WaitedFile(8, "socket" if kind == "unix" else "pipe", "?", ends[0], "", "")
    stage.become(loop, "poll", files=(asked,), stack=LOCK, timeout_ms=timeout_ms)
    all_wait(stage, 1)
    for _ in range(20):
        for fd, own, far in ((8, ends[0], ends[1]), (9, ends[1], ends[0])):
            peer = far if kind == "unix" else None
            stage.feed(DescriptorSample(stage.now_ns, Pid(101), fd, kind, own, peer))
        stage.run(1)
    assert state(stage, 101) is (State.SLEEPING if timeout_ms > 0 else State.FUTEX)
    assert [
        (verdict.kind, verdict.culprit and verdict.culprit.rank) for verdict in not_working(stage)
    ] == ([] if timeout_ms > 0 else [(VerdictKind.HUNG, 1)])


@pytest.mark.parametrize(
    ("worker_mode", "believed"), [("read", False), ("futex", False), ("sleep", True)]
)
def test_known_ends__who_reads_answers_of_children_that_are_idle_waits_for_nothing(
    worker_mode: str, believed: bool
) -> None:
    stage = trained()
    worker = stage.add(Proc(500, ppid=101, mode="read"))
    stage.run(10)
    stage.become(worker, worker_mode, stack=LOCK)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    began_ns = stage.now_ns
    for _ in range(60):
        reader = second_thread(stage.rank(1), TaskState.SLEEPING, began_ns, stage.now_ns)
        stage.feed(replace(reader, syscall=scripted_job.READ, args=(8, 0, 0, 0, 0, 0)))
        for pid, fd in ((101, 8), (500, 7)):
            stage.feed(DescriptorSample(stage.now_ns, Pid(pid), fd, "pipe", Inode(900), None))
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert bool(not_working(stage)) is not believed


@pytest.mark.parametrize(("drains", "named"), [(True, False), (False, True)])
def test_known_ends__who_writes_to_a_reader_that_does_not_read_is_named(
    drains: bool, named: bool
) -> None:
    stage = trained()
    full = WaitedFile(2, "pipe", "pipe:[900]", Inode(900), "", "")
    with sitting_in(WRITE):
        stage.become(stage.rank(1), "read", files=(full,), stack=LOCK)
        all_wait(stage, 1)
        for _ in range(20):
            stage.run(1)
            if drains:
                # it was woken, and fills the room that there is
                stage.rank(1).mode_since_ns = stage.now_ns
    assert [
        (verdict.cause, verdict.culprit and verdict.culprit.rank) for verdict in not_working(stage)
    ] == ([(Cause.BLOCKED_READ, 1)] if named else [])


def test_known_ends__a_child_that_writes_to_the_rank_that_waits_for_it_explains_no_wait() -> None:
    """Its output fills a pipe while the rank writes its input into another one that is full."""
    stage = trained()
    child = stage.add(Proc(500, ppid=101, argv=("filter",)))
    task, answer = (
        WaitedFile(fd, "pipe", f"pipe:[{900 + fd}]", Inode(900 + fd), "", "") for fd in (60, 61)
    )
    for pid in (101, 500):
        for file in (task, answer):
            stage.feed(DescriptorSample(stage.now_ns, Pid(pid), file.fd, "pipe", file.inode, None))
    with sitting_in(WRITE):
        stage.become(stage.rank(1), "read", files=(task,), stack=LOCK)
        stage.become(child, "read", files=(answer,))
        all_wait(stage, 1)
        stage.run(20)
    assert [
        (verdict.cause, verdict.certainty, verdict.culprit and verdict.culprit.rank)
        for verdict in not_working(stage)
    ] == [(Cause.LOADER_STUCK, Certainty.INFERRED, 1)]


def test_known_ends__a_child_that_wants_a_cpu_is_at_work_however_little_it_gets() -> None:
    stage = trained()
    child = stage.add(Proc(500, ppid=101, argv=("judge",)))
    with sitting_in(61):
        stage.become(stage.rank(1), "read", stack=LOCK)
        stage.become(child, "quota")
        all_wait(stage, 1)
        stage.run(30)
    assert not_working(stage) == []


@pytest.mark.parametrize(("call", "believed"), [(43, False), (288, False), (45, True)])
def test_known_ends__a_side_thread_that_waits_for_clients_releases_no_lock(
    call: int, believed: bool
) -> None:
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    began_ns = stage.now_ns
    for _ in range(60):
        server = second_thread(stage.rank(1), TaskState.SLEEPING, began_ns, stage.now_ns)
        stage.feed(replace(server, syscall=call, args=(9, 0, 0, 0, 0, 0)))
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)


@pytest.mark.parametrize(("is_reused", "believed"), [(False, False), (True, True)])
def test_known_ends__a_connection_that_was_not_sampled_again_is_still_that_connection(
    is_reused: bool, believed: bool
) -> None:
    stage = trained()
    waiter = stage.rank(1)
    stage.become(waiter, "futex", stack=LOCK)
    all_wait(stage, 1)
    began_ns = stage.now_ns
    known = {"boottime_ns": began_ns - NS, "last_send_ns": 1, "last_receive_ns": 1}
    for fd, state_of_it, remote in (
        (9, "ESTABLISHED", ("192.0.2.1", 4000)),
        (8, "LISTEN", ("0.0.0.0", 0)),
    ):
        changes = {"fd": fd, "local": ("10.0.0.1", 28028), "remote": remote, **known}
        stage.feed(edge(Pid(waiter.pid), fd, inode=Inode(fd), state=state_of_it, **changes))
    for _ in range(60):
        server = second_thread(waiter, TaskState.SLEEPING, began_ns, stage.now_ns)
        stage.feed(replace(server, syscall=scripted_job.READ, args=(9, 0, 0, 0, 0, 0)))
        if is_reused:
            stage.feed(DescriptorSample(stage.now_ns, Pid(101), 9, "unix", Inode(7), Inode(6)))
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "at rest in one place"])
@pytest.mark.parametrize(("is_habit", "believed"), [(True, False), (False, True)])
def test_known_ends__a_side_thread_that_sleeps_as_it_always_did_releases_no_lock(
    is_habit: bool, believed: bool, is_sent: bool
) -> None:
    """Also for the rest of a long stall, in which it sleeps again and again beside no data."""
    stage = trained()
    began_ns = stage.now_ns

    def sleeps() -> ThreadSample:
        # a second each time
        slept_ns = began_ns + (stage.now_ns - began_ns) // NS * NS
        sleeper = second_thread(stage.rank(1), TaskState.SLEEPING, slept_ns, stage.now_ns)
        return replace(sleeper, syscall=scripted_job.NANOSLEEP)

    for number in range(100):
        if is_habit and (is_sent or number < 2):
            stage.feed(sleeps())
        stage.one_pass(NS // 4)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    for _ in range(200):
        sleep = sleeps()
        slept_ns = sleep.idle_since_ns
        stage.feed(sleep)
        ends_ns = slept_ns + NS
        stage.feed(
            ThreadReading(stage.now_ns, Pid(101), sleep.tid, "hrtimer_nanosleep", ends_ns, True, ())
        )
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)


EPOLL_WAIT = 232


@pytest.mark.parametrize(("timeout_ms", "believed"), [(3000, True), (10, False), (-1, False)])
def test_known_ends__an_event_loop_beside_a_lock_wakes_at_the_time_out_of_its_poll(
    timeout_ms: int, believed: bool
) -> None:
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    began_ns = stage.now_ns
    lasts_ns = abs(timeout_ms) * 1_000_000
    for _ in range(60):
        polled_ns = began_ns + (stage.now_ns - began_ns) // lasts_ns * lasts_ns
        loop = second_thread(stage.rank(1), TaskState.SLEEPING, polled_ns, stage.now_ns)
        args = (8, 0, 1, timeout_ms & 0xFFFFFFFF, 0, 0)
        stage.feed(replace(loop, syscall=EPOLL_WAIT, args=args))
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert bool(not_working(stage)) is not believed


@pytest.mark.parametrize(("sleeps_s", "believed"), [(8, True), (0, False)])
@pytest.mark.parametrize(
    ("every_s", "time_out"), [(1, 0x9100), (3, 0)], ids=["time-outs", "signals"]
)
def test_known_ends__who_asks_again_and_again_waits_since_it_first_asked(
    every_s: int, time_out: int, sleeps_s: int, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = trained()
    lead_of, began_ns = Stage._thread, stage.now_ns

    def lead(stage: Stage, proc: Proc) -> ThreadSample:
        sample = lead_of(stage, proc)
        if proc.rank != 1:
            return sample
        since_ns = began_ns + (stage.now_ns - began_ns) // (every_s * NS) * every_s * NS
        asked = (sample.args[0], 9, 0, time_out, 0, 0)
        return replace(sample, args=asked, idle_since_ns=since_ns, site_since_ns=since_ns)

    monkeypatch.setattr(Stage, "_thread", lead)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    for _ in range(44):
        if sleeps_s:
            slept_ns = began_ns + (stage.now_ns - began_ns) // (sleeps_s * NS) * sleeps_s * NS
            sleeper = second_thread(stage.rank(1), TaskState.SLEEPING, slept_ns, stage.now_ns)
            args = (8, 0, 1, sleeps_s * 1000, 0, 0)
            stage.feed(replace(sleeper, syscall=EPOLL_WAIT, args=args))
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert bool(not_working(stage)) is not believed


@pytest.mark.parametrize("kind", ["inotify", "fanotify", "signalfd"])
def test_known_ends__whoever_changes_a_file_or_sends_a_signal_is_outside(kind: str) -> None:
    stage = trained()
    asked = WaitedFile(60, kind, f"anon_inode:[{kind}]", Inode(0), "", "")
    stage.become(stage.rank(1), "read", files=(asked,), stack=LOCK)
    all_wait(stage, 1)
    stage.run(20)
    assert state(stage, 101) is State.OUTSIDE
    assert not_working(stage) == []


@pytest.mark.parametrize(
    ("mode", "is_set", "expected"),
    [
        ("read", True, State.SLEEPING),
        ("read", False, State.OTHER),
        ("poll", True, State.SLEEPING),
        ("poll", False, State.PEERS),
    ],
)
def test_known_ends__a_timer_with_a_descriptor_ends_when_it_says(
    mode: str, is_set: bool, expected: State
) -> None:
    stage = trained()
    timer = WaitedFile(60, "timerfd", "anon_inode:[timerfd]", Inode(0), "", "")
    ends_ns = stage.now_ns + 25 * NS if is_set else None
    reader, files = stage.rank(1), (timer,)
    stage.become(reader, mode, files=files, stack=LOCK, timed=is_set, deadline_ns=ends_ns)
    all_wait(stage, 1)
    stage.run(20)
    assert state(stage, 101) is expected
    assert bool(not_working(stage)) is not is_set


@pytest.mark.parametrize(("seconds", "named"), [(6, False), (6 + 6, True)])
def test_known_ends__a_loop_that_a_rank_has_a_child_do_is_believed_while_it_may_end(
    seconds: int, named: bool
) -> None:
    stage = trained()
    child = stage.add(Proc(500, ppid=101, mode="read"))
    stage.run(10)
    stage.become(child, "spin")
    with sitting_in(61):
        stage.become(stage.rank(1), "read", stack=LOCK)
        all_wait(stage, 1)
        stage.run(seconds)
    causes = [verdict.cause for verdict in not_working(stage)]
    assert causes == ([Cause.LOADER_STUCK] if named else [])


def test_known_ends__a_habit_is_judged_by_what_was_seen_of_a_wait_and_not_by_what_was_not_sent() -> (
    None
):
    stage = trained()
    began_ns = stage.now_ns
    for _ in range(100):
        slept_ns = began_ns + (stage.now_ns - began_ns) // NS * NS
        sleeper = second_thread(stage.rank(1), TaskState.SLEEPING, slept_ns, stage.now_ns)
        stage.feed(replace(sleeper, syscall=scripted_job.NANOSLEEP))
        stage.one_pass(NS // 4)
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    seen_ns = stage.now_ns + NS
    stage.run(1)
    last = second_thread(stage.rank(1), TaskState.SLEEPING, seen_ns - 3 * NS // 4, seen_ns)
    stage.feed(replace(last, syscall=scripted_job.NANOSLEEP))
    # it sleeps again and again in that place, which is not sent
    stage.run(20)
    assert state(stage, 101) is State.FUTEX


def test_suspicion__a_side_thread_that_naps_does_not_keep_its_lead_from_being_read() -> None:
    """Of one process a pass reads the first that is wanted; each nap is a wait that was not read yet."""
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    stage.run(3)
    nap_ns = stage.now_ns + NS // 4
    napper = second_thread(stage.rank(1), TaskState.SLEEPING, nap_ns, nap_ns)
    stage.feed(ThreadReading(nap_ns - 1, Pid(101), napper.tid, "", nap_ns, True, ()))
    stage.feed(replace(napper, syscall=scripted_job.NANOSLEEP))
    wanted = [want.tid for want in stage.job.wants() if want.pid == 101]
    assert wanted == [Tid(101), napper.tid]


def test_suspicion__what_a_nap_shares_with_a_lock_below_the_same_callers_is_not_learned() -> None:
    suspicion = Suspicion(SyscallTable("x86_64"))
    for channel, known in (("hrtimer_nanosleep", False), ("futex_do_wait", True)):
        reading = ThreadReading(NS, Pid(7), Tid(7), channel, None, False, (), LOCK)
        suspicion.on_reading(reading)
        suspicion.on_progress(Pid(7), 2 * NS, 2 * NS, 1.0)
        assert suspicion.known.knows(LOCK) is known


@pytest.mark.parametrize(
    ("ppid", "expected"),
    [(101, State.CHILD), (1, State.OUTSIDE), (None, State.OUTSIDE)],
    ids=["of the rank", "of no rank", "elsewhere"],
)
def test_known_ends__a_pidfd_leads_to_a_process_of_a_rank_or_outside(
    ppid: int | None, expected: State
) -> None:
    stage = trained()
    if ppid is not None:
        stage.add(Proc(700, ppid=ppid, mode="run", argv=("preprocess",)))
        stage.run(5)
    awaited = WaitedFile(60, "pidfd", "anon_inode:[pidfd]", Inode(0), "", "", Pid(700))
    stage.become(stage.rank(1), "poll", files=(awaited,), stack=LOCK)
    all_wait(stage, 1)
    stage.run(20)
    assert stage.job.snapshot().processes[Pid(101)].wait in (None, expected)
    assert ppid == 101 or state(stage, 101) is State.OUTSIDE
    assert not_working(stage) == []
