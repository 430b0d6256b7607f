"""What a blocked rank waits for: who is believed, for how long, and who is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.decisions import decide
from kcover_ebpf.facts.host import FileSystemProbe, StorageState, ThreadReading, WaitedFile
from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from kcover_ebpf.settings import Act, Policy
from tests.unit.support.blocked_ranks import second_thread, sitting_in, state
from tests.unit.support.link_builders import edge
from tests.unit.support.scripted_job import COLLECTIVE, LOCK, Proc, Stage, all_wait, pipe, trained
from tests.unit.support.seen_verdicts import not_working

FUTEX, CLOCK_NANOSLEEP, TIMED_ARGS = 202, 230, (1, 0, 0, 5, 0, 0)
OUTSIDE_FD = 60


def connect_outside(stage: Stage, proc: Proc, sent_ns: int = 0) -> WaitedFile:
    """A connection of `proc` to a host that no rank of the job is on."""
    changes = {"boottime_ns": stage.now_ns, "last_send_ns": sent_ns, "last_receive_ns": 0}
    stage.feed(
        edge(Pid(proc.pid), OUTSIDE_FD, inode=Inode(4242), remote=("192.0.2.1", 443), **changes)
    )
    return WaitedFile(OUTSIDE_FD, "socket", "socket:[4242]", Inode(4242), "", "")


@pytest.mark.parametrize("patience_s", [30, 60])
def test_classify_wait__a_wait_for_a_host_outside_the_job_is_believed_for_the_patience(
    patience_s: int,
) -> None:
    stage = trained(policy=Policy(storage_patience_s=patience_s))
    waiter = stage.rank(1)
    stage.become(waiter, "read", files=(connect_outside(stage, waiter),))
    all_wait(stage, 1)
    stage.run(patience_s - 3)
    assert state(stage, 101) is State.OUTSIDE
    assert not_working(stage) == []
    verdict = stage.run(8)
    assert verdict is not None
    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.culprit is not None
    assert verdict.culprit.rank == 1


def test_classify_wait__with_ranks_on_other_hosts_a_foreign_connection_may_lead_to_a_peer() -> None:
    stage = trained(world=4)
    waiter = stage.rank(1)
    stage.job.members.world_size = 8
    stage.become(waiter, "read", files=(connect_outside(stage, waiter),))
    stage.run(4)
    # no rank here has a link to that address, so it is none of theirs
    assert state(stage, 101) is State.OUTSIDE


def test_classify_wait__who_asks_the_store_in_the_launcher_waits_for_another_rank() -> None:
    stage = Stage()
    launcher = stage.add(Proc(50, argv=("python3", "-m", "torch.distributed.run", "train.py")))
    for rank in range(4):
        stage.rank(rank).ppid = launcher.pid
    store, client = ("127.0.0.1", 29_500), ("127.0.0.1", 48_000)
    own = edge(Pid(101), OUTSIDE_FD, inode=Inode(4242), local=client, remote=store)
    stage.feed(own)
    stage.feed(edge(Pid(launcher.pid), 9, local=store, remote=client))
    stage.run(20)
    file = WaitedFile(OUTSIDE_FD, "socket", "socket:[4242]", Inode(4242), "", "")
    stage.become(stage.rank(1), "read", files=(file,))
    stage.feed(replace(own, boottime_ns=stage.now_ns))
    stage.run(4)
    assert state(stage, 101) is State.PEERS


def blocked_on_a_thread() -> Stage:
    """Rank 1 waits for another thread where none ever waited, the other ranks for rank 1."""
    stage = trained()
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    return stage


@pytest.mark.parametrize(
    ("state_of_it", "began_s", "believed"),
    [
        (TaskState.UNINTERRUPTIBLE, 0.5, True),
        (TaskState.UNINTERRUPTIBLE, -10.0, False),  # was there before the lead began to wait
        (TaskState.SLEEPING, 0.5, False),
    ],
)
def test_classify_wait__a_thread_that_entered_storage_afterwards_is_believed_to_help(
    state_of_it: TaskState, began_s: float, believed: bool
) -> None:
    stage = blocked_on_a_thread()
    began_ns = stage.now_ns + int(began_s * NS)
    for _ in range(60):
        if stage.now_ns >= began_ns:
            stage.feed(second_thread(stage.rank(1), state_of_it, began_ns, stage.now_ns))
        stage.one_pass(NS // 4)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert [verdict.cause for verdict in not_working(stage)] == (
        [] if believed else [Cause.BLOCKED_LOCK]
    )


@pytest.mark.parametrize("timeout_s", [300, 1800])
@pytest.mark.parametrize(("seen_since", "believed"), [(True, False), (False, True)])
def test_classify_wait__a_sleep_is_believed_to_its_end_though_all_ranks_have_time_outs(
    seen_since: bool, believed: bool, timeout_s: int
) -> None:
    """A helper backs off for 20 s; each rank has a thread in a collective, whose time-out is the framework's."""
    stage = blocked_on_a_thread()
    began_ns, ends_ns = stage.now_ns, stage.now_ns + 20 * NS

    def pass_by(sleeper_ns: int) -> None:
        for rank in range(4):
            number = FUTEX if rank != 1 else CLOCK_NANOSLEEP
            since_ns, until_ns = (
                began_ns,
                ends_ns if rank == 1 else began_ns + timeout_s * NS,
            )
            seen_ns = sleeper_ns if rank == 1 else stage.now_ns
            proc = stage.rank(rank)
            thread = second_thread(proc, TaskState.SLEEPING, since_ns, seen_ns)
            stage.feed(replace(thread, syscall=number, args=TIMED_ARGS))
            stage.feed(timed_reading(thread, until_ns))
        stage.one_pass(NS // 4)

    for _ in range(76):
        pass_by(stage.now_ns)
    assert not_working(stage) == []
    last_ns = stage.now_ns
    for _ in range(24):
        pass_by(stage.now_ns if seen_since else last_ns)
    assert (not_working(stage) == []) is believed


def test_classify_wait__the_time_out_of_a_framework_excuses_no_rank() -> None:
    stage = blocked_on_a_thread()
    began_ns, waiter = stage.now_ns, stage.rank(1)
    for _ in range(40):
        thread = second_thread(waiter, TaskState.SLEEPING, began_ns, stage.now_ns)
        stage.feed(replace(thread, syscall=FUTEX, args=TIMED_ARGS))
        stage.feed(timed_reading(thread, began_ns + 1800 * NS))
        stage.one_pass(NS // 4)
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.BLOCKED_LOCK]


def timed_reading(thread: ThreadSample, ends_ns: int) -> ThreadReading:
    """A wait of that thread that ends by itself."""
    return ThreadReading(
        thread.boottime_ns, thread.pid, thread.tid, "hrtimer_nanosleep", ends_ns, True, ()
    )


@pytest.mark.parametrize(("asked_s", "believed"), [(0.5, True), (-5.0, False)])
def test_classify_wait__an_answer_from_outside_is_waited_for_if_it_was_asked_for_since(
    asked_s: float, believed: bool
) -> None:
    stage = blocked_on_a_thread()
    connect_outside(stage, stage.rank(1), sent_ns=stage.now_ns + int(asked_s * NS))
    stage.run(15)
    assert state(stage, 101) is (State.HELPED if believed else State.FUTEX)
    assert [verdict.cause for verdict in not_working(stage)] == (
        [] if believed else [Cause.BLOCKED_LOCK]
    )


def test_classify_wait__what_helps_is_believed_for_the_patience_only() -> None:
    stage = blocked_on_a_thread()
    connect_outside(stage, stage.rank(1), sent_ns=stage.now_ns)
    stage.run(Policy().storage_patience_s + 5)
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.BLOCKED_UNKNOWN]


def test_classify_wait__a_helper_program_is_believed_for_the_patience() -> None:
    stage = trained(policy=Policy(storage_patience_s=40))
    stage.add(Proc(700, ppid=101, argv=("rsync", "a", "b")))
    stage.run(5)
    helper = stage.procs[700]
    stage.become(helper, "futex", stack=LOCK)
    waited = pipe(stage, helper, 1, 88)
    stage.become(stage.rank(1), "read", files=(replace(waited, fd=9),))
    all_wait(stage, 1)
    for _ in range(30 * 4):
        pipe(stage, helper, 1, 88)
        stage.one_pass(NS // 4)
    assert state(stage, 101) is State.CHILD
    assert not_working(stage) == []
    stage.run(20)
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.LOADER_STUCK]


def test_classify_wait__a_loader_that_idles_in_a_poll_loop_is_no_effort() -> None:
    # torch's loaders wake every five seconds to check whether their parent lives
    stage = trained()
    loader = stage.add(Proc(501, ppid=101))
    stage.run(3)
    stage.become(loader, "poll")
    stage.become(stage.rank(1), "futex", stack=LOCK)
    all_wait(stage, 1)
    for _ in range(8):
        stage.run(2)
        loader.cpu_ns += 2_000_000
        loader.mode_since_ns = stage.now_ns
    assert state(stage, 101) is State.FUTEX
    assert [verdict.cause for verdict in not_working(stage)] == [Cause.BLOCKED_LOCK]


STUCK = StorageState("8:0", inflight_count=3, completed_count=100, suspended=False)
FILE = WaitedFile(3, "file", "/data/x", Inode(0), "8:0", "ext4")


@pytest.mark.parametrize(
    ("channel", "storage", "proven"),
    [
        ("", STUCK, True),
        ("", replace(STUCK, suspended=True, inflight_count=0), True),
        ("", replace(STUCK, inflight_count=0), False),
        ("", None, False),
        # one long call to a server, such as the upload of a file at its close
        ("request_wait_answer", None, False),
        ("cl_sync_io_wait", None, False),
        ("nfs_wait_bit_killable", None, False),
        ("rpc_wait_bit_killable", replace(STUCK, device="0:55"), False),
        ("percpu_rwsem_wait", None, True),
        ("folio_wait_bit", None, False),
    ],
)
def test_classify_wait__storage_is_stuck_only_when_something_proves_it(
    channel: str, storage: StorageState | None, proven: bool
) -> None:
    stage = trained()
    stage.become(stage.rank(0), "write", files=(FILE,), storage=storage, wait_channel=channel)
    all_wait(stage, 0)
    stage.run(60)
    assert [verdict.cause for verdict in not_working(stage)] == ([Cause.STORAGE] if proven else [])


SERVED = WaitedFile(3, "file", "/data/x", Inode(0), "0:61", "fuse.sshfs")


def probe_each_second(stage: Stage, seconds: int, asked_ns: int, *, answered: bool) -> None:
    """The file system of rank 0 is asked, and what is known of it is said once a second."""
    for _ in range(seconds):
        (request,) = stage.job.probes()
        assert (request.pid, request.fd, request.path) == (100, 3, "")
        probe = FileSystemProbe(stage.now_ns, request.pid, request.tid, asked_ns, answered)
        stage.feed(probe)
        stage.run(1)


@pytest.mark.parametrize("answered", [False, True])
def test_classify_wait__a_server_that_leaves_a_probe_unanswered_is_named_after_30_s(
    answered: bool,
) -> None:
    stage = trained()
    stage.become(
        stage.rank(0), "read", files=(SERVED,), storage=None, wait_channel="request_wait_answer"
    )
    all_wait(stage, 0)
    stage.run(3)
    assert stage.job.probes() == []
    stage.run(2)
    asked_ns = stage.now_ns
    probe_each_second(stage, 20, asked_ns, answered=answered)
    assert not_working(stage) == []
    probe_each_second(stage, 10, asked_ns, answered=answered)
    causes = [(verdict.cause, verdict.certainty) for verdict in not_working(stage)]
    assert causes == ([] if answered else [(Cause.STORAGE, Certainty.PROVEN)])
    if not answered:
        (verdict,) = not_working(stage)
        assert verdict.acts_at_s is not None
        assert verdict.acts_at_s - verdict.since_s == Policy().storage_patience_s


def test_classify_wait__a_probe_of_an_earlier_wait_says_nothing_of_this_one() -> None:
    stage = trained()
    reader = stage.rank(0)
    stage.become(reader, "read", files=(SERVED,), wait_channel="request_wait_answer")
    all_wait(stage, 0)
    asked_ns = stage.now_ns
    stage.run(5)
    stage.become(reader, "read", files=(SERVED,), wait_channel="request_wait_answer")
    stage.run(5)
    probe = FileSystemProbe(asked_ns + 30 * NS, Pid(100), Tid(100), asked_ns, answered=False)
    stage.feed(probe)
    stage.run(30)
    assert not_working(stage) == []


def test_classify_wait__the_disk_below_a_file_is_not_asked() -> None:
    stage = trained()
    stage.become(stage.rank(0), "read", files=(FILE,))
    all_wait(stage, 0)
    stage.run(10)
    assert stage.job.probes() == []


def test_classify_wait__a_server_that_answers_no_request_is_stuck_after_the_patience() -> None:
    stage = trained(policy=Policy(storage_patience_s=120))
    silent = replace(STUCK, device="0:55")
    stage.become(stage.rank(0), "write", files=(FILE,), storage=silent)
    all_wait(stage, 0)
    stage.run(110)
    assert not_working(stage) == []
    stage.run(40)
    latest = stage.tracker.latest
    assert latest is not None
    assert latest.cause is Cause.STORAGE
    assert decide(latest, Act.SHUTDOWN).act is Act.SHUTDOWN


def test_classify_wait__storage_that_completes_requests_is_believed() -> None:
    stage = trained()
    writer = stage.rank(0)
    stage.become(writer, "write", files=(FILE,), storage=STUCK)
    all_wait(stage, 0)
    for count in range(20):
        writer.storage = replace(STUCK, completed_count=count)
        stage.run(1)
    assert not_working(stage) == []


def test_classify_wait__many_ranks_in_the_same_stuck_storage_are_no_culprits() -> None:
    stage = trained()
    for rank in (1, 3):
        stage.become(stage.rank(rank), "write", files=(FILE,), storage=STUCK)
    for rank in (0, 2):
        stage.become(stage.rank(rank), "futex", stack=COLLECTIVE)
    verdict = stage.run(60)
    assert verdict is not None
    assert (verdict.kind, verdict.cause, verdict.culprit) == (VerdictKind.HUNG, Cause.STORAGE, None)
    assert verdict.victims == (0, 1, 2, 3)


def test_classify_wait__a_sleep_is_believed_until_its_end_is_too_far() -> None:
    for seconds, cause in ((590, []), (700, [Cause.BLOCKED_SLEEP])):
        stage = trained()
        end_ns = stage.now_ns + seconds * NS
        stage.become(stage.rank(2), "sleep", timed=True, deadline_ns=end_ns)
        all_wait(stage, 2)
        stage.run(20)
        assert [verdict.cause for verdict in not_working(stage)] == cause


@pytest.mark.parametrize("number", [426, 208, 333], ids=["io_uring", "getevents", "pgetevents"])
def test_classify_wait__asynchronous_reads_are_believed_as_long_as_other_storage(
    number: int,
) -> None:
    stage = trained()
    stage.become(stage.rank(1), "read")
    all_wait(stage, 1)
    with sitting_in(number):
        stage.run(20)
        assert state(stage, 101) is State.STORAGE
        assert not_working(stage) == []


def test_classify_wait__a_call_that_is_not_listed_is_storage_where_a_file_server_is_waited_for() -> (
    None
):
    stage = trained()
    stage.become(stage.rank(1), "read", wait_channel="request_wait_answer")
    all_wait(stage, 1)
    with sitting_in(1023):
        stage.run(2)
        assert state(stage, 101) is State.STORAGE


def test_classify_wait__a_wait_that_a_stop_interrupted_is_no_wait_of_unknown_kind() -> None:
    # restart_syscall: what the sampler shows of poll, sleep and futex where it did not see them before
    stage = trained()
    stage.become(stage.rank(1), "read")
    with sitting_in(219):
        stage.run(8)
        assert state(stage, 101) is State.PEERS
