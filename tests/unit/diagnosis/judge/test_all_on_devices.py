"""Ranks that all wait for devices: those that yield call as MPI's busy waiters do, and one may not have joined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.diagnosis.evidence.snapshot import JobSnapshot
from kcover_ebpf.diagnosis.judge import device_wait
from kcover_ebpf.diagnosis.membership.endpoints import EndpointIndex
from kcover_ebpf.facts.kernel import TaskState
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.settings import Policy
from tests.unit.support.blocked_ranks import second_thread
from tests.unit.support.gpu_ranks import SYNCHRONIZE
from tests.unit.support.scripted_job import LOCK, NANOSLEEP, Side, Stage, trained
from tests.unit.support.seen_verdicts import faults


def test_all_wait__a_library_of_a_driver_that_is_loaded_late_is_known_before_a_job_trains() -> None:
    """Where all code that a thread is found in is known: the C library's, and its own."""
    stage = Stage(connected=False)
    library = stage.modules.pop("libcuda.so.1")
    for proc in stage.procs.values():
        stage.become(proc, "yield", module="libc.so.6", called_from=SYNCHRONIZE)
    stage.run(5)
    views = stage.job.members.ranks.values()
    assert all(process.code for process in views)
    stage.modules["libcuda.so.1"] = library
    stage.run(5)
    assert all(process.code.drives_device for process in views)


def test_all_wait__steps_that_are_in_step_with_the_passes_are_no_circle_of_waits() -> None:
    """Ranks that yield until their devices are done, each found there for many passes, then at work for many."""
    stage = Stage(connected=False)
    for turn in range(60):
        for proc in stage.procs.values():
            if turn % 2:
                stage.become(proc, "yield", module="libc.so.6", called_from=())
            else:
                stage.become(proc, "run", module="python3.11", called_from=("python3.11+4",))
        stage.run(8)
    assert faults(stage) == []


@pytest.mark.parametrize(
    ("state", "believed_s"), [("NAPPING", 300), ("ON_DEVICE", 1800), ("PEERS", 0)]
)
def test_all_wait__who_has_not_launched_what_the_others_are_in_may_come_for_as_long_as_it_is_believed(
    state: str, believed_s: float
) -> None:
    for age_s in (40.0, 299.0, 301.0, 1801.0):
        ranks = [
            RankSnapshot(
                Pid(100 + number),
                Role.RANK,
                State[state] if number == 3 else State.ON_DEVICE,
                rank=number,
                age_s=age_s,
                threshold_s=2.0,
                network_busy=number != 3,
            )
            for number in range(4)
        ]
        processes = {rank.pid: rank for rank in ranks}
        snapshot = JobSnapshot(
            5000 * NS, Policy(), processes, EndpointIndex([], elsewhere=False), cadence_known=True
        )
        finding = device_wait.all_wait(snapshot, ranks)
        assert finding is not None
        assert (finding.cause, finding.rank) == (Cause.NOT_IN_COLLECTIVE, 3)
        believed = age_s < believed_s
        assert finding.kind is (VerdictKind.UNKNOWN if believed else VerdictKind.HUNG)


def test_all_wait__a_thread_that_waits_for_the_device_counts_more_than_one_that_naps_beside_it() -> (
    None
):
    """As where the driver has a thread of its own ask the device meanwhile, in each rank."""
    stage = trained()
    for number in range(4):
        stage.become(stage.rank(number), "futex", argument=3, stack=LOCK)
        stage.rank(number).sides = {101_000 + number: Side("futex", stack=SYNCHRONIZE)}
    began_ns = stage.now_ns
    for count in range(90 * 4):
        for number in range(4):
            asks = second_thread(stage.rank(number), TaskState.SLEEPING, stage.now_ns, stage.now_ns)
            asks = replace(asks, start_ns=began_ns, voluntary_count=5 * count)
            stage.feed(replace(asks, syscall=NANOSLEEP))
        stage.one_pass(NS // 4)
    assert [(fault.cause, fault.culprit) for fault in faults(stage)] == [(Cause.DEVICE_WAIT, None)]
