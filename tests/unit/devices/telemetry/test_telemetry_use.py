"""What a GPU is used for, and what moved between two readings of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.devices.telemetry.reading import GpuProcess, GpuReading
from kcover_ebpf.devices.telemetry.use import after, use_of
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.ids import NS

GIB = 1 << 30
TRAINING = GpuReading(
    gpu="0", boottime_ns=NS, utilization=0.99, power_w=610.0, power_limit_w=700.0, memory_used_bytes=60 * GIB
)  # fmt: skip


@pytest.mark.parametrize(
    ("reading", "use"),
    [
        (TRAINING, GpuUse.WORKING),
        (replace(TRAINING, power_w=150.0), GpuUse.LOW_POWER),
        (replace(TRAINING, power_w=150.0, utilization=0.5), GpuUse.WORKING),
        (replace(TRAINING, power_w=150.0, power_limit_w=None), GpuUse.WORKING),
        (replace(TRAINING, power_w=None), GpuUse.WORKING),
        (replace(TRAINING, utilization=None), GpuUse.UNKNOWN),
        (replace(TRAINING, utilization=0.0), GpuUse.MEMORY_HELD),
        (replace(TRAINING, utilization=0.0, memory_used_bytes=GIB // 2), GpuUse.IDLE),
        (replace(TRAINING, utilization=0.0, memory_used_bytes=None), GpuUse.IDLE),
        # the driver's own memory is not a process's
        (replace(TRAINING, utilization=0.0, processes=(GpuProcess(1, GIB // 2),)), GpuUse.IDLE),
    ],
)
def test_use_of__what_a_gpu_is_used_for(reading: GpuReading, use: GpuUse) -> None:
    assert use_of(reading) is use


def test_after__a_use_counts_from_its_first_reading() -> None:
    state = after(None, replace(TRAINING, utilization=0.0))
    state = after(state, replace(TRAINING, utilization=0.0, boottime_ns=3 * NS))
    assert (state.use, state.use_since_ns) == (GpuUse.MEMORY_HELD, NS)
    state = after(state, replace(TRAINING, boottime_ns=5 * NS))
    assert (state.use, state.use_since_ns) == (GpuUse.WORKING, 5 * NS)


def test_after__counters_that_begin_anew_moved_nothing() -> None:
    first = replace(TRAINING, nvlink_sent_bytes=100, nvlink_received_bytes=50, pcie_sent_bytes=7)
    state = after(None, first)
    assert (state.nvlink_bytes, state.pcie_bytes) == (0, 0)
    state = after(state, replace(first, nvlink_sent_bytes=130, nvlink_received_bytes=55))
    assert (state.nvlink_bytes, state.pcie_bytes) == (35, 0)
    state = after(state, replace(first, nvlink_sent_bytes=2, nvlink_received_bytes=60))
    assert state.nvlink_bytes == 5
    state = after(state, replace(first, nvlink_sent_bytes=None, pcie_sent_bytes=9))
    assert (state.nvlink_bytes, state.pcie_bytes) == (0, 2)


@pytest.mark.parametrize(
    ("reading", "changed"),
    [
        (TRAINING, False),
        (replace(TRAINING, utilization=0.80), False),
        (replace(TRAINING, utilization=0.79), True),
        (replace(TRAINING, power_w=510.0), False),
        (replace(TRAINING, power_w=505.0), True),
        (replace(TRAINING, power_w=None, utilization=None), False),
    ],
)
def test_after__a_change_is_more_than_noise(reading: GpuReading, changed: bool) -> None:
    assert after(after(None, TRAINING), reading).changed is changed
