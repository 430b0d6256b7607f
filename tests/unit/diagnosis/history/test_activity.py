"""What an endless loop does not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.history.activity import is_active
from kcover_ebpf.facts.devices import FabricMoved
from kcover_ebpf.facts.kernel import NO_SYSCALL, ProcessFork, SocketSample, TaskState, ThreadSample
from kcover_ebpf.ids import NS, Pid
from tests.unit.support.link_builders import edge
from tests.unit.support.scripted_job import Stage, all_wait, trained
from tests.unit.support.thread_samples import READ, TABLE, sample

LOOP = sample(1, NO_SYSCALL, TaskState.RUNNING)
INERT_S = 15


@pytest.mark.parametrize(
    ("later", "sides_run", "expected"),
    [
        (LOOP, False, False),
        (replace(LOOP, cpu_ns=NS), False, False),
        (replace(LOOP, minor_faults=1), True, True),
        (replace(LOOP, call_chars=1), True, True),
        (replace(LOOP, syscall=READ), True, True),
        (replace(LOOP, voluntary_count=1), False, True),
        (replace(LOOP, voluntary_count=1), True, False),
    ],
)
def test_activity__only_a_thread_that_computes_is_inactive(
    later: ThreadSample, sides_run: bool, expected: bool
) -> None:
    assert is_active(LOOP, later, TABLE, sides_run=sides_run) is expected


def inert_s(stage: Stage) -> float:
    found = stage.job.snapshot().processes[Pid(101)].inert_s
    assert found is not None
    return found


def in_a_loop() -> Stage:
    """Rank 1 computes among side threads that always run, and all others wait."""
    stage = trained(seconds=5)
    stage.become(stage.rank(1), "train", side_cpu=0.06)
    stage.run(40)
    stage.become(stage.rank(1), "run", side_cpu=0.06)
    all_wait(stage, 1)
    stage.run(INERT_S)
    assert inert_s(stage) > 10
    return stage


def talk(stage: Stage, received: int) -> SocketSample:
    changes = {"boottime_ns": stage.now_ns, "received_bytes": received}
    return edge(Pid(101), 60, remote=("192.0.2.1", 443), **changes)


def test_activity__who_begins_a_process_or_moves_bytes_is_no_inert_loop() -> None:
    stage = in_a_loop()
    stage.feed(ProcessFork(stage.now_ns, Pid(101), Pid(900), "python3"))
    assert inert_s(stage) == 0
    stage = in_a_loop()
    stage.feed(talk(stage, 0))
    assert inert_s(stage) > 10
    stage.feed(talk(stage, 100_000))
    assert inert_s(stage) == 0


def test_activity__a_process_that_is_not_known_may_begin_one() -> None:
    stage = Stage()
    stage.feed(ProcessFork(stage.now_ns, Pid(7), Pid(8), "sh"))
    assert Pid(7) not in stage.job.members.views
    assert Pid(8) in stage.job.members.views


def test_activity__bytes_through_a_device_are_activity() -> None:
    stage = in_a_loop()
    stage.feed(FabricMoved(stage.now_ns, Pid(101), 1 << 30))
    assert inert_s(stage) == 0
