"""Clocks of progress: bytes that move over sockets and over RDMA ports."""

from __future__ import annotations

from kcover_ebpf.diagnosis.history.progress_clocks import ByteClock
from kcover_ebpf.facts.devices import FabricMoved
from kcover_ebpf.ids import NS, Pid
from tests.unit.support.scripted_job import Stage


def test_byte_clock__a_heartbeat_is_no_progress_and_never_becomes_typical() -> None:
    clock = ByteClock(1000)
    assert not clock.observe(999, NS)
    assert clock.observe(1000, 2 * NS)
    assert [clock.observe(1_000_000, at * NS) for at in range(3, 30)] == [True] * 27
    assert not any(clock.observe(50_000, at * NS) for at in range(30, 300))
    assert clock.observe(500_000, 300 * NS)
    assert clock.moved_ns == 300 * NS


def test_progress_clocks__a_job_whose_data_goes_over_rdma_learns_its_cadence_from_that() -> None:
    stage = Stage(world=4, connected=False)
    for proc in stage.procs.values():
        stage.become(proc, "run")
    for second in range(120):
        stage.run(1)
        if second % 5 == 0:
            for proc in stage.procs.values():
                stage.feed(FabricMoved(stage.now_ns, Pid(proc.pid), 40_000_000))
    assert stage.job.pace.learned(stage.job.members.ranks)
    assert 4.5 < stage.job.pace.longest_s < 6
    assert not [verdict for verdict in stage.verdicts if verdict.kind.is_fault]
