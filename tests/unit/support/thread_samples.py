"""Samples of threads that burn a CPU, poll or wait."""

from kcover_ebpf.diagnosis.history.thread import ThreadHistory
from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import NS, Pid, Tid

TABLE = SyscallTable("x86_64")


FUTEX, POLL, EPOLL_WAIT, PPOLL, YIELD, READ, NANOSLEEP = 202, 7, 232, 271, 24, 0, 230


ENDLESS = 0xFFFFFFFF


def sample(
    at_s: float,
    call: int = FUTEX,
    state: TaskState = TaskState.SLEEPING,
    cpu_s: float = 0.0,
    args: tuple[int, int, int] = (7, 0, ENDLESS),
    *,
    sp: int = 64,
    start_ns: int = 1,
    delay_s: float = 0.0,
) -> ThreadSample:
    return ThreadSample(
        boottime_ns=int(at_s * NS),
        pid=Pid(1),
        tid=Tid(1),
        start_ns=start_ns,
        state=state,
        syscall=call,
        args=(*args, 0, 0, 0),
        user_sp=sp,
        user_ip=0,
        site_since_ns=0,
        idle_since_ns=0,
        cpu_ns=int(cpu_s * NS),
        run_delay_ns=int(delay_s * NS),
        voluntary_count=0,
        comm="python3",
    )


def seen(*samples: ThreadSample) -> ThreadHistory:
    view = ThreadHistory(samples[0])
    for thread_sample in samples[1:]:
        view.observe(thread_sample, TABLE)
    return view


def burning(count: int, calls: list[int], spread: int, step_s: float = 0.25) -> ThreadHistory:
    """A thread that burns a CPU in `calls` by turns; a register takes `spread` values."""
    return seen(
        *(
            sample(
                step * step_s,
                calls[step % len(calls)],
                TaskState.RUNNING,
                step * step_s,
                (step % spread, 0, 0),
            )
            for step in range(count)
        )
    )
