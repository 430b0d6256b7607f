"""A reading of real children in known waits, and parsers on any text."""

import ctypes
import fcntl
import os
import platform
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.facts.host import CodeSeen, ReadingRequest, ThreadReading, Unreadable
from kcover_ebpf.host.blocked_call import kind_of, parse_locks
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.host.thread_reader import ThreadReader, ThreadReadings
from kcover_ebpf.ids import Inode, Pid, Tid
from tests.unit.support.children import child_in
from tests.unit.support.patience import soon
from tests.unit.support.thread_readings import reading_in, reading_of

pytestmark = pytest.mark.needs("root")

NEAR_NS = 300_000_000

UNTIMED = {
    "lock": "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()",
    "poll": "r, w = os.pipe(); p = select.poll(); p.register(r); ready(); p.poll()",
    "epoll": "r, w = os.pipe(); p = select.epoll(); p.register(r); ready(); p.poll()",
    "select": "r, w = os.pipe(); ready(); select.select([r], [], [])",
    "read": "r, w = os.pipe(); ready(); os.read(r, 1)",
    "pause": "ready(); signal.pause()",
    "a timer that is not set": "timer = libc.timerfd_create(1, 0); ready(); os.read(timer, 8)",
}


@pytest.mark.parametrize("name", UNTIMED)
def test_thread_reader__a_wait_without_a_time_out_has_no_end(name: str) -> None:
    found, _ = reading_in(UNTIMED[name])
    assert (found.timed, found.deadline_ns) == (False, None)
    assert found.stack
    assert found.lock_holders == ()


SET_TIMER = "timer = libc.timerfd_create(1, 0); libc.timerfd_settime(timer, 0, struct.pack('4q', 0, 0, 77, 0), None);"
TIMED = {
    "lock": "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire(timeout=77)",
    "poll": "r, w = os.pipe(); p = select.poll(); p.register(r); ready(); p.poll(77000)",
    "epoll": "r, w = os.pipe(); p = select.epoll(); p.register(r); ready(); p.poll(77)",
    "select": "r, w = os.pipe(); ready(); select.select([r], [], [], 77)",
    "sleep": "ready(); time.sleep(77)",
    "nanosleep": "ready(); libc.nanosleep(struct.pack('qq', 77, 0), None)",
    "relative sleep": "ready(); libc.clock_nanosleep(1, 0, struct.pack('qq', 77, 0), None)",
    "sleep by the wall": """
end = int(time.time()) + 77
ready(); libc.clock_nanosleep(0, 1, struct.pack('qq', end, int(time.time() % 1 * 1e9)), None)""",
    "ppoll": """
r, w = os.pipe(); fds = struct.pack('ihh', r, 1, 0)
ready(); libc.ppoll(fds, 1, struct.pack('qq', 77, 0), None)""",
    "timerfd": SET_TIMER + "ready(); os.read(timer, 8)",
    "epoll of a timerfd": SET_TIMER + "p = select.epoll(); p.register(timer); ready(); p.poll()",
    "epoll_pwait2": """
e = select.epoll(); room = ctypes.create_string_buffer(64)
ready(); libc.syscall(ctypes.c_long(441), e.fileno(), room, 1, struct.pack('qq', 77, 0), None, 8)""",
}
if platform.machine() == "x86_64":
    TIMED["select by its own number"] = """
r, w = os.pipe(); fds = ctypes.create_string_buffer((1 << r).to_bytes(8, sys.byteorder), 128)
ready(); libc.syscall(ctypes.c_long(23), r + 1, fds, None, None, struct.pack('qq', 76, 999_999))"""


@pytest.mark.parametrize("name", TIMED)
def test_thread_reader__a_wait_with_a_time_out_ends_when_it_says(name: str) -> None:
    found, since_ns = reading_in(TIMED[name])
    assert found.timed
    assert found.deadline_ns is not None
    assert found.deadline_ns - since_ns == pytest.approx(77e9, abs=NEAR_NS)


def test_thread_reader__a_time_out_at_an_unreadable_address_is_timed_without_an_end() -> None:
    # a child cannot be kept asleep with a bad pointer, so the time-out is unmapped behind its back
    found, _ = reading_in(
        """
import mmap
page = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
page[:16] = struct.pack('qq', 77, 0)
threading.Thread(target=lambda: (time.sleep(0.05),
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(4096)), ready(), time.sleep(99)),
    daemon=True).start()
libc.syscall(ctypes.c_long(271 if os.uname().machine == "x86_64" else 73), None, 0,
    ctypes.c_void_p(address), None, 8)"""
    )
    assert (found.timed, found.deadline_ns) == (True, None)


def test_thread_reader__the_files_of_a_poll_are_all_reported() -> None:
    found, _ = reading_in("""
r, w = os.pipe(); a, b = socket.socketpair(); i = os.open("/etc/passwd", 0)
for each, at in ((r, 40), (a.fileno(), 41), (r, 42), (i, 43)): os.dup2(each, at)
p = select.poll()
for at in (40, 41, 42): p.register(at, select.POLLPRI)
ready(); p.poll()""")
    assert [(file.fd, file.kind) for file in found.files] == [
        (40, "pipe"),
        (41, "unix"),
        (42, "pipe"),
    ]
    assert found.files[0].inode == found.files[2].inode != found.files[1].inode


def test_thread_reader__the_files_of_a_select_are_those_of_its_three_sets() -> None:
    found, _ = reading_in("""
r, w = os.pipe(); a, b = socket.socketpair()
for each, at in ((r, 3 + 64), (a.fileno(), 70), (r, 200), (r, 201)): os.dup2(each, at)
ready(); select.select([67, 200], [], [70])""")
    assert [(file.fd, file.kind) for file in found.files] == [
        (67, "pipe"),
        (70, "unix"),
        (200, "pipe"),
    ]


def test_thread_reader__the_files_of_an_epoll_are_those_it_watches() -> None:
    found, _ = reading_in("""
r, w = os.pipe(); os.dup2(r, 40); e = select.epoll(); e.register(40)
ready(); e.poll()""")
    assert [(file.fd, file.kind) for file in found.files] == [(40, "pipe")]


def test_thread_reader__a_read_on_a_pipe_names_the_pipe() -> None:
    reader, writer = os.pipe()
    try:
        with child_in("ready(); os.read(0, 1)", stdin=reader) as request:
            found = reading_of(request)
        (file,) = found.files
        assert (file.fd, file.kind, file.inode) == (0, "pipe", os.fstat(writer).st_ino)
    finally:
        os.close(reader)
        os.close(writer)
    assert "pipe" in found.wait_channel


def test_thread_reader__a_read_on_a_socket_names_the_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, child_in("ready(); os.read(0, 1)", stdin=theirs.fileno()) as request:
        (file,) = reading_of(request).files
        assert (file.kind, file.inode) == ("unix", os.fstat(theirs.fileno()).st_ino)


def test_thread_reader__the_open_of_a_fifo_is_recognized_by_its_kernel_function(
    tmp_path: Path,
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found, _ = reading_in("ready(); os.open(sys.argv[1], os.O_RDONLY)", str(fifo))
    assert found.wait_channel == "wait_for_partner"
    assert [(file.fd, file.target) for file in found.files] == [(-1, str(fifo)[:120])]


@pytest.mark.parametrize("call", ["flock(0, fcntl.LOCK_EX)", "lockf(0, fcntl.LOCK_EX)"])
def test_thread_reader__who_holds_the_file_lock_is_reported(tmp_path: Path, call: str) -> None:
    (tmp_path / "lock").touch()
    with open(tmp_path / "lock", "r+") as one, open(tmp_path / "lock", "r+") as two:
        lock = fcntl.flock if call.startswith("flock") else fcntl.lockf
        lock(one, fcntl.LOCK_EX)
        with child_in(f"ready(); fcntl.{call}", stdin=two.fileno()) as request:
            found = reading_of(request)
        assert found.lock_holders == (os.getpid(),)
        (file,) = found.files
        assert (file.kind, file.target) == ("file", str(tmp_path / "lock")[:120])
        device = tmp_path.stat().st_dev
        if file.fs_type in ("ext4", "tmpfs", "xfs"):
            assert file.device == f"{os.major(device)}:{os.minor(device)}"
        assert file.fs_type


MUTEX = """
import mmap
word = (ctypes.c_char * 64).from_buffer(mmap.mmap(-1, 64))
shared = ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(shared)
libc.pthread_mutexattr_setpshared(shared, int(sys.argv[1] == "process"))
libc.pthread_mutex_init(word, shared)
def hold():
    libc.pthread_mutex_lock(word)
    os.write(int(sys.argv[2]), b"%d" % threading.get_native_id())
    time.sleep(60)
if sys.argv[1] == "thread":
    threading.Thread(target=hold, daemon=True).start()
elif not os.fork():
    hold()
time.sleep(0.2)
ready()
libc.pthread_mutex_lock(word)
"""


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_thread_reader__who_holds_a_lock_in_memory_is_reported(kind: str) -> None:
    theirs, ours = os.pipe()
    os.set_inheritable(ours, True)
    with child_in(MUTEX, (kind, str(ours)), pass_fds=(ours,)) as request:
        holder = int(os.read(theirs, 20))
        found = reading_of(request)
        if kind == "process":
            os.kill(holder, signal.SIGKILL)
    os.close(theirs)
    os.close(ours)
    expected = (None, (holder,)) if kind == "process" else (holder, ())
    assert (found.lock_thread, found.lock_holders) == expected


def test_thread_reader__a_thread_that_runs_or_is_gone_says_nothing_and_delays_no_other() -> None:
    reader = ThreadReader(ThreadReadings(platform.machine()))
    with subprocess.Popen(["true"]) as child:
        pass
    gone = ReadingRequest(Pid(child.pid), Tid(child.pid), 0)
    here = ReadingRequest(Pid(os.getpid()), Tid(os.getpid()), boottime_ns())
    both = reader.read([gone, here], timeout_s=5)
    found = {item.pid: item for item in both if isinstance(item, ThreadReading)}
    empty = found[gone.pid]
    assert (empty.wait_channel, empty.timed, empty.files, empty.stack) == ("", False, (), ())


class Stuck:
    """A reader at whose first processes no reading ends until `over` is set."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int) -> None:
        readings = ThreadReadings(platform.machine())
        self.reader = ThreadReader(readings)
        self.over = threading.Event()
        self.bad = [ReadingRequest(Pid(number), Tid(number), 0) for number in range(1, count + 1)]
        self.good = [ReadingRequest(Pid(number), Tid(number), 0) for number in range(1001, 1004)]
        self.begun: list[Pid] = []
        real = readings.reading

        def slow(request: ReadingRequest) -> ThreadReading | CodeSeen:
            self.begun.append(request.pid)
            if request in self.bad:
                self.over.wait()
            return real(request)

        patch.setattr(readings, "reading", slow)
        patch.setattr("kcover_ebpf.host.read_workers.READ_STUCK_S", 0.1)

    def turn(self, timeout_s: float = 0.2) -> tuple[set[int], set[int]]:
        """(pids that were read, pids that cannot be read)."""
        time.sleep(0.06)  # passes are a second apart, and fractions of one under suspicion
        found = self.reader.read([*self.bad, *self.good], timeout_s)
        seen = {int(item.pid) for item in found if isinstance(item, ThreadReading)}
        return seen, {int(item.pid) for item in found if isinstance(item, Unreadable)}


GOOD = {1001, 1002, 1003}
ENDLESS_S = 1e6
"""Whoever waited for a stuck process for so long would never return."""


@pytest.fixture
def stuck(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    made = Stuck(monkeypatch, request.param)
    yield made
    made.over.set()


@pytest.mark.parametrize("stuck", [1, 5, 12], indirect=True)
def test_thread_reader__a_process_that_cannot_be_read_costs_no_other_its_reading(
    stuck: Stuck,
) -> None:
    turns = [stuck.turn() for _ in range(11)] + [stuck.turn(ENDLESS_S) for _ in range(5)]
    assert all(seen == GOOD for seen, _ in turns[-5:])
    # it is asked for once, waited for in the pass that asked, and reported once
    bad = {request.pid for request in stuck.bad}
    assert sorted(pid for pid in stuck.begun if pid in bad) == sorted(bad)
    reported = [pid for _, unreadable in turns for pid in unreadable]
    assert sorted(reported) == sorted(bad)


@pytest.mark.parametrize("stuck", [1], indirect=True)
def test_boottime_ns__since_when_it_cannot_be_read_is_reported_and_what_returns_is_taken(
    stuck: Stuck,
) -> None:
    began_ns = boottime_ns()
    reported = [*stuck.reader.read(stuck.bad, 0.0)]
    soon(lambda: 1 in stuck.begun)  # on a busy machine the reader's thread begins late
    asked_ns = boottime_ns()
    time.sleep(0.1)
    reported += stuck.reader.read([])
    (found,) = [item for item in reported if isinstance(item, Unreadable)]
    assert began_ns <= found.since_ns <= asked_ns
    assert found.boottime_ns - found.since_ns > 100_000_000
    stuck.over.set()
    late = soon(lambda: [item for item in stuck.reader.read([]) if item.pid == 1])
    assert [type(item) for item in late] == [ThreadReading]


@pytest.mark.parametrize("stuck", [40], indirect=True)
def test_thread_reader__there_is_an_end_to_the_threads_that_are_left_behind(
    stuck: Stuck,
) -> None:
    before = threading.active_count()
    for _ in range(20):
        stuck.turn(0.1)
    assert threading.active_count() - before <= 16
    assert stuck.turn(ENDLESS_S) == (set(), set())
    stuck.over.set()
    assert soon(lambda: stuck.turn()[0] >= GOOD)


LOCKS = """\
1: POSIX  ADVISORY  WRITE 700 00:19:333 0 EOF
1: -> POSIX  ADVISORY  WRITE 701 00:19:333 0 EOF
2: FLOCK  ADVISORY  WRITE 800 08:01:12 0 EOF
2: -> FLOCK  ADVISORY  WRITE 801 08:01:12 0 EOF
2: -> FLOCK  ADVISORY  READ 802 08:01:12 0 EOF
3: OFDLCK ADVISORY  READ -1 08:01:13 0 EOF
4: LEASE  ACTIVE    READ 900 08:01:14 0 EOF
"""


@pytest.mark.parametrize(
    ("pid", "holders"), [(701, (700,)), (801, (800,)), (802, (800,)), (700, ()), (5, ()), (-1, ())]
)
def test_parse_locks__the_lock_table_says_who_holds_what_one_waits_for(
    pid: int, holders: tuple[int, ...]
) -> None:
    assert parse_locks(LOCKS, Pid(pid)) == holders


LOCK_WORDS = ["1:", "2:", "->", "POSIX", "FLOCK", "-1", "--1", "²", "7", "8", "\n"]
LOCK_LINES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.lists(st.sampled_from(LOCK_WORDS), max_size=9).map(" ".join),
    )
).map("\n".join)


@given(LOCK_LINES, st.integers(-1, 9))
@example("1: POSIX ADVISORY WRITE 8 x\n1: -> POSIX ADVISORY WRITE 7 x", 7)
def test_parse_locks__any_lock_table_gives_a_pid_of_it_or_nothing(text: str, waiter: int) -> None:
    numbers = {int(word) for word in text.split() if word.removeprefix("-").isdecimal()}
    found = parse_locks(text, Pid(waiter))
    assert set(found) <= (numbers if waiter in numbers else set())


@pytest.mark.parametrize(
    ("target", "kind", "inode"),
    [
        ("pipe:[77]", "pipe", 77),
        ("socket:[1]", "socket", 1),
        ("anon_inode:[eventpoll]", "eventpoll", 0),
        ("anon_inode:inotify", "inotify", 0),
        ("/dev/null", "null", 0),
        ("/dev/pts/3", "tty", 0),
        ("/dev/nvidia0", "device", 0),
        ("/dev/shm/torch_1", "file", 0),
        ("/mnt/data:[x]", "file", 0),
        ("/a/b (deleted)", "file", 0),
        ("/tmp/a:[\u00b2]", "file", 0),
        ("/mnt/data:[5]", "file", 0),
    ],
)
def test_kind_of__the_kind_of_a_file_is_read_from_its_link(
    target: str, kind: str, inode: int
) -> None:
    assert kind_of(target) == (kind, Inode(inode))


@given(st.text())
@example("pipe:[77]")
@example("anon_inode:[eventpoll]")
def test_kind_of__any_link_has_a_kind_that_it_names_or_one_of_ours(target: str) -> None:
    kind, inode = kind_of(target)
    assert kind in {"null", "tty", "device", "file"} or kind in target
    assert inode == 0 or target.startswith(f"{kind}:[")


def test_thread_reader__of_a_thread_that_burns_the_mappings_and_the_words_at_its_own_stack_pointer_are_read() -> (
    None
):
    reader = ThreadReader(ThreadReadings(platform.machine()))
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value or 0
    stack = (ctypes.c_uint64 * 256)(address)
    me = Pid(os.getpid())
    request = ReadingRequest(
        me, Tid(os.getpid()), 0, burning_sp=ctypes.addressof(stack), wants_modules=True
    )
    (seen,) = reader.read([request], timeout_s=5)
    assert isinstance(seen, CodeSeen)
    (home,) = [module.name for module in seen.modules if module.start <= address < module.end]
    assert seen.stack[0].startswith((f"{home}+", f"{home}~"))
    assert "[vdso]" in {module.name for module in seen.modules}
