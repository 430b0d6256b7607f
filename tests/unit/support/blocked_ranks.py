"""Ranks of a scripted job in calls that it has no word for, and second threads beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kcover_ebpf.facts.kernel import TaskState, ThreadSample
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.model.process_state import State

from . import scripted_job
from .scripted_job import Proc, Stage

WRITE = 1


def state(stage: Stage, pid: int) -> State:
    return stage.job.snapshot().processes[Pid(pid)].state


@contextmanager
def sitting_in(number: int) -> Iterator[None]:
    """Processes of the script that are in `read` are in another call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scripted_job.CALLS, "read", number)
        yield


def second_thread(proc: Proc, state: TaskState, since_ns: int, now_ns: int) -> ThreadSample:
    """Another thread of `proc`, in a write since `since_ns`."""
    return ThreadSample(
        boottime_ns=now_ns,
        pid=Pid(proc.pid),
        tid=Tid(proc.pid + 5000),
        start_ns=1,
        state=state,
        syscall=WRITE,
        args=(9, 0, 0, 0, 0, 0),
        user_sp=0x9000,
        user_ip=0,
        site_since_ns=since_ns,
        idle_since_ns=since_ns,
        cpu_ns=0,
        run_delay_ns=0,
        voluntary_count=0,
        comm="worker",
    )
