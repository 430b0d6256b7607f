"""Calls as sentences."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.waits.call_text import in_short
from kcover_ebpf.facts.futex import Lock
from kcover_ebpf.facts.host import ThreadReading, WaitedFile
from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.trace.describe_call import CallDetails, WaitTarget, in_detail
from tests.unit.support.thread_samples import sample

WORD = 0x7F00DEAD0010
ARGS = (WORD, 0x80, 2, 0, 0, 0)


def file(fd: int, kind: str, target: str, fs_type: str = "") -> WaitedFile:
    return WaitedFile(fd, kind, target, Inode(1), "8:1", fs_type)


PIPE = file(5, "pipe", "pipe:[99]")
TCP = file(9, "socket", "socket:[77]")
DATA = file(7, "file", "/data/shard-3", "nfs4")
LOADER = WaitTarget("pipe", "rank 2's loader 4715", pid=4715, rank=2, fd=5)
PEER = WaitTarget("tcp", "rank 3 10.0.0.3:4242 (96 B unread)", pid=4716, rank=3, fd=9)
CHILD = WaitTarget("child", "rank 2's loader 4715", pid=4715, rank=2)
MUTEX = Lock("mutex", True, 4712)

# name: (state, call, args, known, text, kinds of what it waits for)
CASES: dict[str, tuple[str, str, tuple[int, ...], CallDetails, str, list[str]]] = {
    "a mutex with its holder": (
        "S",
        "futex",
        ARGS,
        CallDetails(lock=MUTEX, names={4712: "saver"}),
        "futex: mutex 0x7f00dead0010 owned by thread 4712 (saver)",
        ["lock"],
    ),
    "a mutex whose holder is gone": (
        "S",
        "futex",
        ARGS,
        CallDetails(lock=Lock("mutex", False, None)),
        "futex: mutex 0x7f00dead0010 owned by a thread that has exited, shared between processes",
        ["lock"],
    ),
    "a semaphore": (
        "S",
        "futex",
        ARGS,
        CallDetails(lock=Lock("semaphore", True, None)),
        "futex: semaphore 0x7f00dead0010 (no owner recorded)",
        ["lock"],
    ),
    "a join": (
        "S",
        "futex",
        ARGS,
        CallDetails(lock=Lock("thread", False, 4712), names={4712: "saver"}),
        "joins thread 4712 (saver)",
        ["thread"],
    ),
    "a lock that could not be read": (
        "S",
        "futex",
        ARGS,
        CallDetails(),
        "futex 0x7f00dead0010",
        ["lock"],
    ),
    "a pipe with its partner": (
        "S",
        "read",
        (5, 0, 0, 0, 0, 0),
        CallDetails(files=(PIPE,), ends={5: [LOADER]}, wait_channel="pipe_read"),
        "read fd 5 pipe with rank 2's loader 4715 [pipe_read]",
        ["pipe"],
    ),
    "a pipe that no other process has open": (
        "S",
        "read",
        (5, 0, 0, 0, 0, 0),
        CallDetails(files=(PIPE,)),
        "read fd 5 pipe:[99]".replace("pipe:[99]", "pipe"),
        ["pipe"],
    ),
    "a socket with its rank and queue": (
        "S",
        "recvfrom",
        (9, 0, 0, 0, 0, 0),
        CallDetails(files=(TCP,), ends={9: [PEER]}),
        "recvfrom fd 9 tcp with rank 3 10.0.0.3:4242 (96 B unread)",
        ["tcp"],
    ),
    "a file on its file system": (
        "D",
        "pread64",
        (7, 0, 0, 0, 0, 0),
        CallDetails(files=(DATA,), wait_channel="rpc_wait_bit_killable"),
        "pread64 fd 7 /data/shard-3 (nfs4) [rpc_wait_bit_killable] (state D)",
        ["file"],
    ),
    "a poll with its end": (
        "S",
        "poll",
        (0, 2, 5000, 0, 0, 0),
        CallDetails(files=(PIPE, TCP), ends={5: [LOADER], 9: [PEER]}, timed=True, left="4.2s"),
        (
            "poll fd 5 pipe with rank 2's loader 4715, "
            "fd 9 tcp with rank 3 10.0.0.3:4242 (96 B unread) (ends in 4.2s)"
        ),
        ["pipe", "tcp"],
    ),
    "a sleep": (
        "S",
        "clock_nanosleep",
        (0, 0, 1, 1, 0, 0),
        CallDetails(timed=True, left="1h 00m"),
        "clock_nanosleep (ends in 1h 00m)",
        ["timer"],
    ),
    "a time-out that cannot be read": (
        "S",
        "clock_nanosleep",
        (0, 0, 1, 1, 0, 0),
        CallDetails(timed=True),
        "clock_nanosleep (timed, its end cannot be read)",
        ["timer"],
    ),
    "any child": (
        "S",
        "wait4",
        (0xFFFFFFFF, 0, 0, 0, 0, 0),
        CallDetails(children=[CHILD]),
        "wait4: for rank 2's loader 4715",
        ["child"],
    ),
    "another child": (
        "S",
        "wait4",
        (4799, 0, 0, 0, 0, 0),
        CallDetails(children=[CHILD]),
        "wait4: for a child",
        [],
    ),
    "a device": (
        "D",
        "ioctl",
        (4, 0xC020462A, 0, 0, 0, 0),
        CallDetails(files=(file(4, "device", "/dev/nvidia0"),)),
        "ioctl 0xc020462a on /dev/nvidia0 (NVIDIA driver) (state D)",
        ["device"],
    ),
    "a file lock": (
        "S",
        "flock",
        (7, 2, 0, 0, 0, 0),
        CallDetails(
            files=(DATA,), lock_holders=[WaitTarget("process", "rank 1", pid=4710, rank=1)]
        ),
        "flock: lock on /data/shard-3, owned by rank 1",
        ["process"],
    ),
    "stopped": ("T", "futex", ARGS, CallDetails(lock=MUTEX), "stopped (SIGSTOP)", []),
    "frozen": ("F", "futex", ARGS, CallDetails(), "frozen (cgroup)", []),
    "running": ("R", "", (0,) * 6, CallDetails(), "running in user space", []),
    "in a page fault": ("D", "", (0,) * 6, CallDetails(), "page fault", []),
}


@pytest.mark.parametrize("name", CASES)
def test_in_detail__a_call_is_decoded(name: str) -> None:
    state, call, args, known, text, kinds = CASES[name]
    said, targets = in_detail(TaskState(state), call, args, known)
    assert said == text
    assert [target.kind for target in targets] == kinds


def test_in_detail__the_holder_of_a_mutex_can_be_followed() -> None:
    _, (target,) = in_detail(TaskState.SLEEPING, "futex", ARGS, CallDetails(lock=MUTEX))
    assert (target.tid, target.address) == (4712, hex(WORD))


def test_in_detail__many_descriptors_are_counted() -> None:
    files = tuple(file(fd, "eventfd", "anon_inode:[eventfd]") for fd in range(9))
    text, targets = in_detail(
        TaskState.SLEEPING, "epoll_wait", (3, 0, 0, 0, 0, 0), CallDetails(files=files)
    )
    assert text.endswith(", and 5 more")
    assert len(targets) == 9


@given(
    st.sampled_from("RSDTtFZ?"),
    st.integers(-1, 500),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 6),
    st.lists(st.builds(file, st.integers(-1, 99), st.text(), st.text()), max_size=6),
)
def test_in_detail__any_call_is_decoded(
    state: str, number: int, args: tuple[int, ...], files: list[WaitedFile]
) -> None:
    name = SyscallTable("x86_64").name(number)
    text, _ = in_detail(TaskState(state), name, args, CallDetails(files=tuple(files)))
    assert text


TABLE = SyscallTable("x86_64")
FD9 = WaitedFile(9, "pipe", "pipe:[77]", Inode(77), "", "")
READING = ThreadReading(0, Pid(1), Tid(1), "futex_wait", 30 * NS, True, (FD9,), (), None, ())
RUN = TaskState.RUNNING


@pytest.mark.parametrize(
    ("said", "reading", "state", "text"),
    [
        (sample(1), None, State.FUTEX, "futex"),
        (
            sample(1, 0),
            READING,
            State.READ,
            "read fd 9 pipe pipe:[77] [futex_wait] (ends in 30 s)",
        ),
        (sample(1, -1, RUN), None, State.SPINNING, "running in user space (a loop in place)"),
        (sample(1, -1), None, State.FAULTING, "page fault"),
        (sample(1, state=TaskState.STOPPED), READING, State.STOPPED, "stopped (SIGSTOP)"),
        (sample(1, state=TaskState.FROZEN), None, State.FROZEN, "frozen (cgroup)"),
        (sample(1, 18, TaskState.UNINTERRUPTIBLE), None, State.STORAGE, "pwrite64 (state D)"),
        (
            sample(99),
            replace(READING, files=(), boottime_ns=40 * NS),
            State.FUTEX,
            "futex [futex_wait] (ends in 0 s)",
        ),
    ],
)
def test_in_short__the_words_for_a_wait(
    said: ThreadSample, reading: ThreadReading | None, state: State, text: str
) -> None:
    assert in_short(said, reading, TABLE, state) == text
