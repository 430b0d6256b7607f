"""What one sample of a thread shows by itself: whether it is stopped, where and in which call it waits. Pure."""

from __future__ import annotations

from kcover_ebpf.facts.kernel import NO_SYSCALL, TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallFamily, SyscallTable

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
