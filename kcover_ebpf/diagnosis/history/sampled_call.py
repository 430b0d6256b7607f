"""What samples of a thread show by themselves: whether it is stopped, where and in which calls it waits. Pure."""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable
from kcover_ebpf.tunables.certainty import USUAL_SHARE, USUAL_WAIT_NS, USUAL_WAITS

HELD = (TaskState.STOPPED, TaskState.FROZEN)
"""States in which a signal or a freezer keeps a thread from running."""
STOPPED = (*HELD, TaskState.TRACED)
"""The same with a debugger, which stops and resumes all the time."""


def site(sample: ThreadSample) -> tuple[int, int, int]:
    """Where a thread waits: the call, its first argument (0 outside a call) and the user stack pointer."""
    argument = 0 if sample.syscall == NO_SYSCALL else sample.args[0]
    return sample.syscall, argument, sample.user_sp


_FRAME_BYTES = 4096
"""As in bpf/sample.bpf.h."""


def waits_in_frame(sample: ThreadSample, table: SyscallTable) -> bool:
    """True at a futex in a frame of its own stack, as of CUDA's host threads that sleep until their device is done.

    That is so with CU_CTX_SCHED_BLOCKING_SYNC (driver 580); the locks of programs and interpreters lie elsewhere.
    """
    in_frame = 0 <= sample.args[0] - sample.user_sp < _FRAME_BYTES
    sleeps = sample.state is TaskState.SLEEPING
    return sleeps and in_frame and table.family(sample.syscall) is SyscallFamily.FUTEX


_FUTEX_WAITS = (0, 9)
"""FUTEX_WAIT and FUTEX_WAIT_BITSET (include/uapi/linux/futex.h), without their flags."""


def is_timed(sample: ThreadSample, table: SyscallTable) -> bool:
    """True in a sleep, and at a futex in a wait with a time-out."""
    family = table.family(sample.syscall)
    if family is SyscallFamily.SLEEP:
        return True
    waits = sample.args[1] & 0x7F in _FUTEX_WAITS
    return family is SyscallFamily.FUTEX and waits and sample.args[3] != 0


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
class UsualWaits:
    """In which calls one thread waits beside healthy training, and for how long."""

    _count: int = 0
    """Times that it was seen,"""
    _found: dict[int, tuple[int, int]] = field(default_factory=dict)
    """and by call, how often it was in a wait that lasts, and for how long at most, in nanoseconds."""

    def observe(self, sample: ThreadSample, now_ns: int) -> None:
        """Take where it is at this boottime."""
        self._count += 1
        lasts_ns = now_ns - sample.idle_since_ns
        if sample.state is TaskState.SLEEPING and lasts_ns >= USUAL_WAIT_NS:
            count, longest_ns = self._found.get(sample.syscall, (0, 0))
            self._found[sample.syscall] = count + 1, max(longest_ns, lasts_ns)

    def longest_ns(self, call: int) -> int:
        """Of its waits in this call; 0 where they are not its habit."""
        count, longest_ns = self._found.get(call, (0, 0))
        is_habit = count >= USUAL_WAITS and count >= USUAL_SHARE * self._count
        return longest_ns if is_habit else 0
