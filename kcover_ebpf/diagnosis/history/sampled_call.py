"""Facts that single samples of a thread show: whether it is stopped, and where and in which calls it waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.host import WAKING_KINDS, ThreadReading
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable
from kcover_ebpf.tunables.certainty import (
    KNOWN_PASSES,
    USUAL_SHARE,
    USUAL_SPAN_NS,
    USUAL_UNSEEN_NS,
    USUAL_WAIT_NS,
    USUAL_WAITS,
)
from kcover_ebpf.tunables.sampling import LONGEST_PASS_NS

HELD = (TaskState.STOPPED, TaskState.FROZEN)
"""States in which a signal or a freezer keeps a thread from running."""
STOPPED = (*HELD, TaskState.TRACED)
"""The same states without those of a debugger, which stops and resumes all the time."""


@dataclass(frozen=True, slots=True)
class RegisterSample:
    """Where one sample found a thread that had used a CPU."""

    boottime_ns: int
    calls_nothing: bool
    """It is in user space, or runnable there."""
    spin_call: bool
    """True for a call of a busy waiter, as in `asks_again`."""
    sleeps: bool
    """It is in a sleep of a time: it paces itself, so it is no tight loop."""
    registers: tuple[int, ...]
    works: bool
    """It is in its own code, in a process where waits for a device would be found elsewhere."""
    at_calls: bool
    """It is in the C library, where calls are made."""


def site(sample: ThreadSample) -> tuple[int, int, int]:
    """Place of a thread's wait: the call, its first argument (0 outside a call) and the user stack pointer."""
    argument = 0 if sample.syscall == NO_SYSCALL else sample.args[0]
    return sample.syscall, argument, sample.user_sp


def cpu_shares(earlier_sample: ThreadSample, later_sample: ThreadSample) -> tuple[float, float]:
    """Shares of the time between two samples: on a CPU, and either on a CPU or waiting for one."""
    used_ns = later_sample.cpu_ns - earlier_sample.cpu_ns
    wanted_ns = later_sample.wanted_ns - earlier_sample.wanted_ns
    # a thread at rest is not sent: all its CPU time belongs to the last pass
    since_ns = later_sample.previous_ns or later_sample.boottime_ns - LONGEST_PASS_NS
    interval_ns = max(1, later_sample.boottime_ns - max(earlier_sample.boottime_ns, since_ns))
    share, wanted = used_ns / interval_ns, wanted_ns / interval_ns
    ready = earlier_sample.state is later_sample.state is TaskState.RUNNING
    if ready and later_sample.voluntary_count == earlier_sample.voluntary_count:
        # It never slept. The kernel adds a wait for a CPU when it ends: the rest of the time it waited for one.
        wanted = max(wanted, 1.0)
    return share, wanted


def left_cpu_ns(earlier_sample: ThreadSample, later_sample: ThreadSample) -> int:
    """Boottime at which a thread left its CPU: its CPU time since the earlier sample was one uninterrupted burn."""
    used_ns = max(0, later_sample.wanted_ns - earlier_sample.wanted_ns)
    return min(earlier_sample.boottime_ns + used_ns, later_sample.boottime_ns)


_FRAME_BYTES = 4096
"""Size of the stack frame that bpf/sample.bpf.h compares with; the two must agree."""


def waits_in_frame(sample: ThreadSample, table: SyscallTable) -> bool:
    """True at a futex in a frame of its own stack, as of CUDA's host threads that sleep until their device is done.

    They do so with CU_CTX_SCHED_BLOCKING_SYNC (driver 580); the locks of programs and interpreters are elsewhere.
    """
    in_frame = 0 <= sample.args[0] - sample.user_sp < _FRAME_BYTES
    sleeps = sample.state is TaskState.SLEEPING
    return sleeps and in_frame and table.family(sample.syscall) is SyscallFamily.FUTEX


_SENDS = frozenset({"sendto", "sendmsg", "sendmmsg"})


def written_fd(sample: ThreadSample, table: SyscallTable) -> int | None:
    """The descriptor to which a sleeping thread writes or sends; None if it does neither."""
    family = table.family(sample.syscall)
    sends = family is SyscallFamily.NETWORK and table.name(sample.syscall) in _SENDS
    if sample.state is TaskState.RUNNING or not (sends or family is SyscallFamily.WRITE):
        return None
    return sample.args[0] & 0xFFFFFFFF


_FUTEX_WAITS = (0, 9)
"""FUTEX_WAIT and FUTEX_WAIT_BITSET (include/uapi/linux/futex.h), without their flags."""


_FUTEX_PRIVATE = 0x80
"""FUTEX_PRIVATE_FLAG of the same header: no other process can release the wait."""


def is_shared_futex(sample: ThreadSample) -> bool:
    """True if a thread at a futex may be released by another process: a semaphore of processes in shared memory.

    False in futex_waitv, whose flags are not among the arguments.
    """
    command = sample.args[1]
    return command & 0x7F in _FUTEX_WAITS and not command & _FUTEX_PRIVATE


def is_timed(sample: ThreadSample, table: SyscallTable) -> bool:
    """True in a sleep, and at a futex in a wait with a time-out."""
    family = table.family(sample.syscall)
    if family is SyscallFamily.SLEEP:
        return True
    waits = sample.args[1] & 0x7F in _FUTEX_WAITS
    return family is SyscallFamily.FUTEX and waits and sample.args[3] != 0


def may_await_thread(
    sample: ThreadSample, readings: Sequence[ThreadReading], table: SyscallTable
) -> bool:
    """True at a lock, and at a pipe, Unix socket or eventfd alone, whose other end its own process may have."""
    if table.family(sample.syscall) is SyscallFamily.FUTEX:
        return True
    files = readings[-1].files if readings else ()
    return bool(files) and all(file.kind in WAKING_KINDS for file in files)


def asks_again(sample: ThreadSample, table: SyscallTable) -> bool:
    """True in sched_yield, or in a poll with time-out 0: the calls of a busy waiter."""
    family = table.family(sample.syscall)
    return family is SyscallFamily.YIELD or (
        family is SyscallFamily.POLL and poll_timeout_ms(sample, table) == 0
    )


def poll_timeout_ms(sample: ThreadSample, table: SyscallTable) -> int | None:
    """Time-out of a poll or epoll_wait that carries it by value: milliseconds, -1 for none; None if by pointer."""
    name = table.name(sample.syscall)
    raw = {"poll": sample.args[2], "epoll_wait": sample.args[3], "epoll_pwait": sample.args[3]}.get(
        name
    )
    if raw is None:
        return None
    value = raw & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@dataclass(slots=True)
class FoundWaits:
    """Waits of one thread at one place during which its rank made progress; times are boottime nanoseconds."""

    count: int = 0
    longest_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0

    def are_habit(self, seen_count: int) -> bool:
        """True if there are many of them, over a long time, and they are a good part of all samples of the thread."""
        if self.last_ns - self.first_ns < USUAL_SPAN_NS:
            return False
        return self.count >= USUAL_WAITS and self.count >= USUAL_SHARE * seen_count


@dataclass(slots=True)
class UsualWaits:
    """Calls in which one side thread waits while its rank makes progress, and the lengths of these waits."""

    _count: int = 0
    """Samples that found it somewhere else than before."""
    _found: dict[int, FoundWaits] = field(default_factory=dict)
    """System call -> waits in it."""
    _calls: set[int] = field(default_factory=set)
    """System calls in which it was ever found asleep, however short the sleep."""
    _asleep: int = 0
    """Samples that found it asleep."""
    _first_ns: int = 0
    _seen_ns: int = 0
    """Nanoseconds from the first of these samples to the last."""
    _idle_since_ns: int = -1
    _is_counted: bool = False
    """The wait that began at `_idle_since_ns` is already counted."""

    def observe(self, sample: ThreadSample, moved_ns: int) -> None:
        """Take its position; its rank last moved data at the boottime `moved_ns`."""
        if sample.state is TaskState.SLEEPING:
            self._note_asleep(sample, moved_ns)
        if sample.idle_since_ns != self._idle_since_ns:
            self._count, self._idle_since_ns = self._count + 1, sample.idle_since_ns
            self._is_counted = False
        lasted_ns = moved_ns - sample.idle_since_ns
        if sample.state is not TaskState.SLEEPING or lasted_ns < USUAL_WAIT_NS:
            return
        waits = self._in_call(sample.syscall, sample.idle_since_ns)
        waits.count += not self._is_counted
        waits.longest_ns, waits.last_ns = max(waits.longest_ns, lasted_ns), moved_ns
        self._is_counted = True

    def observe_again(self, sample: ThreadSample, moved_ns: int) -> None:
        """Note that it is in the place of its last sample, in the same wait or in a similar one.

        The length is not observed: up to `USUAL_UNSEEN_NS`, it may be one wait since it was found there before.
        """
        if sample.state is not TaskState.SLEEPING:
            return
        self._note_asleep(sample, moved_ns)
        waits = self._in_call(sample.syscall, sample.boottime_ns)
        unseen_ns = min(moved_ns - waits.last_ns, USUAL_UNSEEN_NS)
        waits.longest_ns, waits.last_ns = max(waits.longest_ns, unseen_ns), moved_ns
        self._count, waits.count = self._count + 1, waits.count + 1

    def _note_asleep(self, sample: ThreadSample, moved_ns: int) -> None:
        # one that wants a CPU and gets none would be found asleep on another machine: it shows nothing
        self._calls.add(sample.syscall)
        self._first_ns = self._first_ns or moved_ns
        self._asleep, self._seen_ns = self._asleep + 1, moved_ns - self._first_ns

    def lacks(self, call: int) -> bool:
        """True if enough samples over a long time found the thread asleep, and none of them in this call."""
        is_known = self._asleep >= KNOWN_PASSES and self._seen_ns >= USUAL_SPAN_NS
        return is_known and call not in self._calls

    def _in_call(self, call: int, first_ns: int) -> FoundWaits:
        return self._found.setdefault(call, FoundWaits(first_ns=first_ns, last_ns=first_ns))

    def longest_ns(self, call: int) -> int:
        """Longest of its waits in this call; 0 unless they are its habit."""
        waits = self._found.get(call)
        return waits.longest_ns if waits is not None and waits.are_habit(self._count) else 0


def register_sample(
    sample: ThreadSample, table: SyscallTable, *, works: bool, at_calls: bool
) -> RegisterSample:
    """What is kept of a sample; `works` and `at_calls` are fields of it."""
    return RegisterSample(
        boottime_ns=sample.boottime_ns,
        calls_nothing=sample.syscall == NO_SYSCALL,
        spin_call=asks_again(sample, table),
        sleeps=table.family(sample.syscall) is SyscallFamily.SLEEP,
        registers=(sample.user_sp, *sample.args),
        works=works,
        at_calls=at_calls,
    )
