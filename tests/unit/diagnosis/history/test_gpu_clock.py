"""GPUs as clocks of progress: NVLink, PCIe, changes of utilisation and power; and what a lost clock means."""

from __future__ import annotations

from dataclasses import replace

from kcover_ebpf.diagnosis.history.progress_clocks import GpuClock
from kcover_ebpf.facts.devices import GpuSeen, GpuUse
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.diagnosis import UNLEARNED_STALL_S
from tests.unit.support.scripted_job import Stage

MIB = 1 << 20
BUSY = GpuSeen(NS, Pid(7), ("0000:5d:00.0",), GpuUse.WORKING, NS, power_w=600.0)


def observe(clock: GpuClock, has_other: bool = False, **fields: int | bool) -> bool:
    return clock.observe(replace(BUSY, **fields), has_other=has_other)  # type: ignore[arg-type]


def test_gpu_clock__that_a_gpu_is_busy_shows_no_progress() -> None:
    clock = GpuClock()
    assert not any(observe(clock, boottime_ns=at * NS) for at in range(1, 100))
    assert observe(clock, changed=True)


def test_gpu_clock__flags_that_cross_nvlink_are_no_payload() -> None:
    clock = GpuClock()
    assert not observe(clock, nvlink_bytes=MIB - 1)
    assert observe(clock, nvlink_bytes=2_000 * MIB, boottime_ns=3 * NS)
    assert clock.nvlink_ns == 3 * NS
    assert not observe(clock, nvlink_bytes=100 * MIB)


def test_gpu_clock__pcie_counts_where_no_other_path_carries_payload() -> None:
    clock = GpuClock()
    assert observe(clock, pcie_bytes=20 * MIB)
    assert not observe(clock, pcie_bytes=20 * MIB, has_other=True)
    assert not observe(clock, pcie_bytes=9 * MIB), "a GPU that waits may read the host's memory"
    assert observe(clock, pcie_bytes=20 * MIB)
    assert observe(clock, nvlink_bytes=9 * MIB)
    assert not observe(clock, pcie_bytes=20 * MIB)


def training(stage: Stage, seconds: int, each_s: int = 5, **fields: int | bool) -> None:
    """The GPUs of all ranks are read every two seconds, and show a step every `each_s`."""
    for second in range(seconds):
        stage.run(1)
        moved = fields if second % each_s == 0 else {}
        for proc in stage.procs.values():
            if second % 2 == 0 or moved:
                seen = replace(BUSY, boottime_ns=stage.now_ns, pid=Pid(proc.pid), **moved)  # type: ignore[arg-type]
                stage.feed(seen)


def silent_job() -> Stage:
    """Ranks that compute, and exchange nothing that the host sees."""
    stage = Stage(world=4, connected=False)
    for proc in stage.procs.values():
        stage.become(proc, "run")
    return stage


def test_gpu_clock__a_job_learns_its_cadence_from_nvlink() -> None:
    stage = silent_job()
    training(stage, 120, nvlink_bytes=900 * MIB)
    assert stage.job.pace.learned(stage.job.members.ranks)
    assert 4.5 < stage.job.pace.longest_s < 6
    assert not [verdict for verdict in stage.verdicts if verdict.kind.is_fault]


def test_gpu_clock__a_job_learns_its_cadence_from_its_gpus_power() -> None:
    stage = silent_job()
    training(stage, 120, each_s=7, changed=True)
    assert stage.job.pace.learned(stage.job.members.ranks)
    assert 6.5 < stage.job.pace.longest_s < 8


def test_gpu_clock__a_gpu_that_stays_busy_hides_no_stall() -> None:
    stage = silent_job()
    training(stage, 120, nvlink_bytes=900 * MIB)
    assert not stage.job.attention.stalled
    training(stage, 40, each_s=10**6)
    silent_s = stage.job.pace.silence_s(stage.job.members.ranks, stage.now_ns)
    assert 38 < silent_s < 46
    assert stage.job.attention.suspicious


def test_gpu_clock__readings_that_end_say_nothing_about_the_job() -> None:
    stage = silent_job()
    training(stage, 120, nvlink_bytes=900 * MIB)
    (pid, *_) = stage.job.members.ranks
    assert stage.job.pace.threshold_s(pid) < UNLEARNED_STALL_S
    stage.run(12)
    assert stage.job.pace.silence_s(stage.job.members.ranks, stage.now_ns) < 3, "begun anew"
    assert stage.job.pace.threshold_s(pid) == 60
    stage.run(40)
    assert not stage.job.attention.stalled
    assert not [verdict for verdict in stage.verdicts if verdict.kind.is_fault]
    training(stage, 120, nvlink_bytes=900 * MIB)
    assert stage.job.pace.learned(stage.job.members.ranks)
