"""One line about what a thread does: its call, the first file that it waits on, and the end of a timed wait. Pure."""

from __future__ import annotations

from kcover_ebpf.facts.host import ThreadReading
from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS
from kcover_ebpf.model.process_state import State

STOPPED = {
    TaskState.STOPPED: "stopped (SIGSTOP)",
    TaskState.FROZEN: "frozen (cgroup)",
    TaskState.TRACED: State.TRACED.text,
}
_NOTES = {
    State.ON_DEVICE: State.ON_DEVICE.text,
    State.NAPPING: State.NAPPING.text,
    State.SPINNING: "a loop in place",
    State.THROTTLED: "runnable, but gets no CPU",
}


def in_short(
    sample: ThreadSample, reading: ThreadReading | None, table: SyscallTable, state: State
) -> str:
    """The call with the first file it waits on, its kernel function and its end. `state` may add a note."""
    if sample.state in STOPPED:
        return STOPPED[sample.state]
    parts = [table.name(sample.syscall) or outside_calls(sample.state)]
    if reading is not None:
        parts += [f"fd {file.fd} {file.kind} {file.target}" for file in reading.files[:1]]
        parts += [f"[{reading.wait_channel}]"] if reading.wait_channel else []
        parts += [f"(thread {reading.lock_thread} holds it)"] if reading.lock_thread else []
        if reading.timed and reading.deadline_ns is not None:
            left_s = max(0.0, (reading.deadline_ns - reading.boottime_ns) / NS)
            parts.append(f"(ends in {left_s:.0f} s)")
    parts += [f"({_NOTES[state]})"] if state in _NOTES else []
    return " ".join(parts) + interruptible(sample.state)


def outside_calls(state: TaskState) -> str:
    """Text for a thread that is in no system call."""
    return "running in user space" if state is TaskState.RUNNING else "page fault"


def interruptible(state: TaskState) -> str:
    """Suffix for a thread that no signal reaches; else empty."""
    return " (state D)" if state is TaskState.UNINTERRUPTIBLE else ""
