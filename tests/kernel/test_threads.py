"""Where threads wait, since when, and in which state: each kind of wait by its own thread."""

import ctypes
import os
import platform
import signal
import time
from pathlib import Path

import pytest

from kcover_ebpf.facts.kernel import NO_SYSCALL, ProcessTotals, TaskState, ThreadSample, Tick
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from tests.kernel.helpers import (
    CLOSELY,
    EACH_PASS,
    of_kind,
    program,
    running,
    state_of,
    until,
    until_asleep,
    waiting,
    watch,
)

# arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
SYSCALLS = {
    "x86_64": {"futex": 202, "poll": 7, "read": 0, "sleep": 35, "vfork": 58, "yield": 24},
    "aarch64": {"futex": 98, "poll": 73, "read": 63, "sleep": 101, "vfork": 220, "yield": 124},
}[platform.machine()]
GLIBC_SLEEP = {"x86_64": 230, "aarch64": 115}[platform.machine()]
WAITS = ("futex", "poll", "read", "sleep", "vfork")
TICK_NS = 10_000_000
PTRACE_ATTACH, PTRACE_DETACH = 16, 17


def threads_of(kernel: KernelSampler, pid: Pid) -> dict[int, ThreadSample]:
    """A pass; the samples of the process by tid."""
    samples = of_kind(kernel.sample([]), ThreadSample)
    assert {sample.pid for sample in samples} <= {pid}
    return {sample.tid: sample for sample in samples}


def totals_of(kernel: KernelSampler) -> ProcessTotals:
    return of_kind(kernel.sample([]), ProcessTotals)[0]


class States:
    """The last state of each thread of one process: a thread is sent when its state changes."""

    def __init__(self, kernel: KernelSampler, pid: Pid) -> None:
        self._kernel, self._pid = kernel, pid
        self._states: dict[int, TaskState] = {}
        self.count(TaskState.OTHER)

    def count(self, state: TaskState) -> int:
        """A pass; how many threads are in this state."""
        samples = threads_of(self._kernel, self._pid)
        self._states |= {tid: sample.state for tid, sample in samples.items()}
        return sum(task_state is state for task_state in self._states.values())


def test_threads_that_wait_are_seen_in_their_system_calls(kernel: KernelSampler) -> None:
    with waiting(*WAITS) as (target, tids):
        watch(kernel, target.pid)
        samples = threads_of(kernel, target.pid)
        main = samples[target.pid]
        sites = {kind: samples[tid] for kind, tid in tids.items()}
        vfork_child_is_watched = len(samples) == len(WAITS) + 1
    assert vfork_child_is_watched
    for kind, sample in sites.items():
        expected = {SYSCALLS[kind], GLIBC_SLEEP} if kind == "sleep" else {SYSCALLS[kind]}
        assert sample.syscall in expected, kind
        state = TaskState.UNINTERRUPTIBLE if kind == "vfork" else TaskState.SLEEPING
        assert sample.state is state, kind
        assert sample.user_sp > 0
        assert sample.user_ip > 0
        assert sample.comm == "waits"
    futex = sites["futex"].args
    assert (futex[1] & 0x7F, futex[2], futex[3]) == (0, 0, 0), "untimed FUTEX_WAIT for 0"
    # arm64 has no poll: the C library calls ppoll, whose third argument points to the time-out
    assert sites["poll"].args[1] == 1
    assert platform.machine() == "aarch64" or sites["poll"].args[2] == 600000
    assert sites["read"].args[2] == 1
    assert main.syscall == SYSCALLS["read"]
    assert main.args[0] == 0


@pytest.mark.parametrize(
    ("kind", "call", "family"),
    [
        ("clone3", "clone3", SyscallFamily.CHILD),
        ("uring", "io_uring_enter", SyscallFamily.ASYNC_IO),
    ],
)
def test_a_thread_that_waits_by_a_newer_call_is_seen_in_it(
    kernel: KernelSampler, kind: str, call: str, family: SyscallFamily
) -> None:
    table = SyscallTable(platform.machine())
    with waiting(kind) as (target, tids):
        watch(kernel, target.pid)
        number = threads_of(kernel, target.pid)[tids[kind]].syscall
    assert (table.name(number), table.family(number)) == (call, family)


def test_since_when_a_thread_waits_is_known_at_first_sight(kernel: KernelSampler) -> None:
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with waiting(*WAITS) as (target, tids):
        all_wait_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        time.sleep(1.5)
        watch(kernel, target.pid)
        samples = threads_of(kernel, target.pid)
    assert set(tids.values()) <= samples.keys()
    for tid in tids.values():
        for since_ns in (samples[tid].site_since_ns, samples[tid].idle_since_ns):
            assert before_ns - TICK_NS < since_ns < all_wait_ns + 1_000_000_000
        assert samples[tid].start_ns <= samples[tid].site_since_ns + TICK_NS


def test_a_thread_that_stays_is_sent_once(kernel: KernelSampler) -> None:
    with waiting("futex", "poll") as (target, tids):
        watch(kernel, target.pid)
        first = threads_of(kernel, target.pid)
        assert set(tids.values()) < set(first)
        kernel.request(target.pid, EACH_PASS)
        for _ in range(5):
            assert threads_of(kernel, target.pid) == {}
        kernel.request(target.pid, CLOSELY)
        again = threads_of(kernel, target.pid)
        assert threads_of(kernel, target.pid) == {}, "what did not run has nothing new to report"
        kernel.request(target.pid, EACH_PASS)
        assert threads_of(kernel, target.pid) == {}
        kernel.request(target.pid, CLOSELY)
        assert set(threads_of(kernel, target.pid)) == set(first)
    assert set(again) == set(first)
    for tid, sample in again.items():
        assert sample.site_since_ns == first[tid].site_since_ns
        assert sample.idle_since_ns == pytest.approx(first[tid].idle_since_ns, abs=TICK_NS)


def test_a_thread_that_spins_counts_as_moving(kernel: KernelSampler) -> None:
    with waiting("spin", "yield") as (target, tids):
        watch(kernel, target.pid)
        # A yielder on a busy machine may get less CPU than makes a move.
        kernel.request(target.pid, CLOSELY)
        used_ns = threads_of(kernel, target.pid)[tids["spin"]].cpu_ns
        moved = 0
        while moved < 5:
            time.sleep(0.2)
            facts = kernel.sample([])
            tick = of_kind(facts, Tick)[0]
            samples = {int(sample.tid): sample for sample in of_kind(facts, ThreadSample)}
            spin, yielder = samples[tids["spin"]], samples[tids["yield"]]
            assert spin.state is yielder.state is TaskState.RUNNING
            assert spin.syscall == NO_SYSCALL
            assert yielder.syscall in (SYSCALLS["yield"], NO_SYSCALL)
            # on a busy machine it may not have had its turn; it moved with 2% of the time
            if 20 * (spin.cpu_ns - used_ns) > tick.period_ns:
                assert spin.site_since_ns == tick.boottime_ns
                moved += 1
            used_ns = spin.cpu_ns
    assert moved == 5


def test_a_thread_that_comes_to_rest_is_sent_once_more(kernel: KernelSampler) -> None:
    with running(program("works"), "cpu", "100") as target:
        watch(kernel, target.pid)
        kernel.sample([])
        target.work()
        until_asleep(target.pid)
        moved = threads_of(kernel, target.pid)[target.pid]
        at_rest = threads_of(kernel, target.pid)[target.pid]
        assert threads_of(kernel, target.pid) == {}
    assert moved.site_since_ns == moved.boottime_ns
    assert at_rest.site_since_ns == moved.site_since_ns
    assert at_rest.cpu_ns == moved.cpu_ns


def test_run_delay_grows_when_threads_compete(kernel: KernelSampler) -> None:
    cpu = min(os.sched_getaffinity(0))
    with running("taskset", "-c", str(cpu), program("waits"), "spin", "spin") as target:
        tids = [int(target.line().split()[1]) for _ in range(2)]
        watch(kernel, target.pid)
        began_s = time.monotonic()
        after = before = threads_of(kernel, target.pid)

        def both_waited() -> bool:
            nonlocal after
            after = threads_of(kernel, target.pid)
            waited = (after[tid].run_delay_ns - before[tid].run_delay_ns for tid in tids)
            return all(delay > 200_000_000 for delay in waited)

        until(both_waited, "each of them has waited for the other")
        took_ns = (time.monotonic() - began_s) * 1e9
    worked = [after[tid].cpu_ns - before[tid].cpu_ns for tid in tids]
    assert sum(worked) < 1.1 * took_ns


def test_threads_that_are_stopped_and_continued_stay_in_their_wait(kernel: KernelSampler) -> None:
    with waiting("futex", "poll") as (target, tids):
        watch(kernel, target.pid)
        before = threads_of(kernel, target.pid)
        kernel.request(target.pid, EACH_PASS)
        states = States(kernel, target.pid)
        os.kill(target.pid, signal.SIGSTOP)
        until(lambda: states.count(TaskState.STOPPED) == 3, "three stopped threads")
        kernel.request(target.pid, CLOSELY)
        stopped = threads_of(kernel, target.pid)
        os.kill(target.pid, signal.SIGCONT)
        until(lambda: states.count(TaskState.SLEEPING) == 3, "three sleeping threads")
        kernel.request(target.pid, EACH_PASS)
        kernel.sample([])
        kernel.request(target.pid, CLOSELY)
        after = threads_of(kernel, target.pid)
    for tid in tids.values():
        assert stopped[tid].state is TaskState.STOPPED
        assert after[tid].state is TaskState.SLEEPING
        assert stopped[tid].site_since_ns == before[tid].site_since_ns, "a stop is no move"


def test_a_thread_under_a_debugger_is_seen_as_traced(kernel: KernelSampler) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with waiting("futex") as (target, _tids):
        watch(kernel, target.pid, EACH_PASS)
        states = States(kernel, target.pid)
        assert libc.ptrace(PTRACE_ATTACH, target.pid, None, None) == 0
        try:
            until(lambda: states.count(TaskState.TRACED) == 1, "one traced thread")
            kernel.request(target.pid, CLOSELY)
            assert threads_of(kernel, target.pid)[target.pid].state is TaskState.TRACED
        finally:
            os.waitpid(target.pid, 0x40000000)  # __WALL
            assert libc.ptrace(PTRACE_DETACH, target.pid, None, None) == 0
        until(lambda: states.count(TaskState.TRACED) == 0, "no traced thread")


def freezers() -> list[tuple[Path, str, str, str]]:
    """(root, file, freeze, thaw) of each hierarchy that can freeze here."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup2":
            found.append((Path(folder), "cgroup.freeze", "1", "0"))
        elif kind == "cgroup" and "freezer" in options.split(","):
            found.append((Path(folder), "freezer.state", "FROZEN", "THAWED"))
    return found


@pytest.mark.parametrize("version", ["cgroup.freeze", "freezer.state"])
def test_threads_of_a_frozen_control_group_are_seen_as_frozen(
    kernel: KernelSampler, version: str
) -> None:
    ways = [way for way in freezers() if way[1] == version]
    if not ways:
        pytest.skip(f"needs {version}: no such cgroup hierarchy is mounted")
    root, file, freeze, thaw = ways[0]
    group = root / f"kcover-frozen-{os.getpid()}"
    group.mkdir()
    try:
        with waiting("futex", "poll", "spin") as (target, tids):
            (group / "cgroup.procs").write_text(str(target.pid))
            watch(kernel, target.pid)
            before = threads_of(kernel, target.pid)
            kernel.request(target.pid, EACH_PASS)
            states = States(kernel, target.pid)
            (group / file).write_text(freeze)
            until(lambda: states.count(TaskState.FROZEN) == 4, "four frozen threads")
            kernel.request(target.pid, CLOSELY)
            frozen = threads_of(kernel, target.pid)
            (group / file).write_text(thaw)
            until(lambda: states.count(TaskState.FROZEN) == 0, "no frozen thread")
    finally:
        until(lambda: not group.exists() or _rmdir(group), "an empty cgroup")
    assert {frozen[tid].state for tid in tids.values()} == {TaskState.FROZEN}
    for kind in ("futex", "poll"):
        assert frozen[tids[kind]].site_since_ns == before[tids[kind]].site_since_ns


def _rmdir(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def test_a_thread_that_ended_is_not_sent(kernel: KernelSampler) -> None:
    with running(program("works"), "threads", "23") as target:
        watch(kernel, target.pid)
        kernel.request(target.pid, CLOSELY)
        target.work()
        samples = threads_of(kernel, target.pid)
        assert set(samples) == {target.pid}
        assert totals_of(kernel).thread_count == 1


@pytest.mark.parametrize("watched_before", [True, False])
def test_a_wait_that_was_stopped_and_continued_is_the_same_wait(
    kernel: KernelSampler, watched_before: bool
) -> None:
    """Timed waits continue as restart_syscall, which says nothing about what is waited for."""
    with waiting("poll", "sleep", "futex", "read") as (target, tids):
        before = {}
        if watched_before:
            watch(kernel, target.pid)
            before = threads_of(kernel, target.pid)
        os.kill(target.pid, signal.SIGSTOP)
        every = (target.pid, *tids.values())
        until(lambda: {state_of(target.pid, tid) for tid in every} == {"T"}, "stopped threads")
        os.kill(target.pid, signal.SIGCONT)
        until_asleep(target.pid, *every)
        if watched_before:
            kernel.request(target.pid, CLOSELY)
        else:
            watch(kernel, target.pid)
        after = threads_of(kernel, target.pid)
        raw = Path(f"/proc/{target.pid}/task/{tids['sleep']}/syscall").read_text().split()[0]
        names = {
            tid: SyscallTable(platform.machine()).name(one.syscall) for tid, one in after.items()
        }
    assert SyscallTable(platform.machine()).name(int(raw)) == "restart_syscall"
    if watched_before:
        assert {tid: one.syscall for tid, one in after.items()} == {
            tid: one.syscall for tid, one in before.items()
        }
        assert {tid: one.args for tid, one in after.items()} == {
            tid: one.args for tid, one in before.items()
        }
    else:
        assert names[tids["sleep"]] == "restart_syscall"
        # ppoll, which arm64 has instead of poll, writes back what is left of its time, and starts anew
        polls = "ppoll" if platform.machine() == "aarch64" else "restart_syscall"
        assert names[tids["poll"]] == polls
    assert (names[tids["futex"]], names[tids["read"]]) == ("futex", "read")


def test_since_when_a_thread_waits_is_known_whatever_class_the_sensor_is_scheduled_by(
    kernel: KernelSampler,
) -> None:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        burn_s = time.thread_time() + 0.3
        while time.thread_time() < burn_s:
            time.sleep(0.001)
            end_s = time.thread_time() + 0.02
            while time.thread_time() < end_s:
                pass
        with waiting("futex", "read") as (target, tids):
            began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 200_000_000
            watch(kernel, target.pid)
            samples = threads_of(kernel, target.pid)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    assert len(tids) == 2
    for tid in tids.values():
        assert samples[tid].idle_since_ns > began_ns


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the 32-bit interface of x86")
def test_a_call_of_the_32_bit_interface_is_not_taken_for_another_call(
    kernel: KernelSampler,
) -> None:
    with waiting("compat") as (target, tids):
        if not Path(f"/proc/{target.pid}/task/{tids['compat']}").exists():
            pytest.skip("needs a kernel with CONFIG_IA32_EMULATION")
        watch(kernel, target.pid)
        sample = threads_of(kernel, target.pid)[tids["compat"]]
    assert SyscallTable("x86_64").family(sample.syscall) is SyscallFamily.OTHER
