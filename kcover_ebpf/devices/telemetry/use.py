"""What a GPU is used for, and how much data it moved between two readings. Pure."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.telemetry.reading import GpuReading
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.tunables.devices import (
    GPU_BUSY_SHARE,
    GPU_CHANGED_PERCENT,
    GPU_CHANGED_POWER_SHARE,
    GPU_LOW_POWER_SHARE,
    GPU_MODEL_BYTES,
)


@dataclass(frozen=True, slots=True)
class GpuState:
    """The latest state of one GPU."""

    reading: GpuReading
    use: GpuUse
    use_since_ns: int
    """Boottime of the first of the consecutive readings with this use."""
    nvlink_bytes: int = 0
    """Bytes since the previous reading; 0 for the first one and if it is not counted."""
    pcie_bytes: int = 0
    changed: bool = False
    """Utilisation or power differs considerably from the previous reading."""


def use_of(reading: GpuReading) -> GpuUse:
    """The use of the GPU by this one reading."""
    if reading.utilization is None:
        return GpuUse.UNKNOWN
    if reading.utilization == 0:
        used_bytes = reading.used_by_bytes
        is_in_use = used_bytes is not None and used_bytes > GPU_MODEL_BYTES
        return GpuUse.MEMORY_HELD if is_in_use else GpuUse.IDLE
    if reading.power_w is None or not reading.power_limit_w or reading.utilization < GPU_BUSY_SHARE:
        return GpuUse.WORKING
    is_low = reading.power_w < GPU_LOW_POWER_SHARE * reading.power_limit_w
    return GpuUse.LOW_POWER if is_low else GpuUse.WORKING


def after(previous_state: GpuState | None, reading: GpuReading) -> GpuState:
    """The state after one more reading."""
    use = use_of(reading)
    since_ns = reading.boottime_ns
    if previous_state is not None and previous_state.use is use:
        since_ns = previous_state.use_since_ns
    if previous_state is None:
        return GpuState(reading, use, since_ns)
    old = previous_state.reading
    return GpuState(
        reading,
        use,
        since_ns,
        nvlink_bytes=_grown(old.nvlink_sent_bytes, reading.nvlink_sent_bytes)
        + _grown(old.nvlink_received_bytes, reading.nvlink_received_bytes),
        pcie_bytes=_grown(old.pcie_sent_bytes, reading.pcie_sent_bytes)
        + _grown(old.pcie_received_bytes, reading.pcie_received_bytes),
        changed=_changed(old, reading),
    )


def _grown(before: int | None, now: int | None) -> int:
    # after a reset the GPU counts from 0
    return max(0, now - before) if before is not None and now is not None else 0


def _changed(old_reading: GpuReading, new_reading: GpuReading) -> bool:
    shares = old_reading.utilization, new_reading.utilization
    if shares[0] is not None and shares[1] is not None:
        # NVML's whole percents as fractions, which binary floats cannot hold exactly
        by_percent = round(100 * abs(shares[1] - shares[0]))
        if by_percent >= GPU_CHANGED_PERCENT:
            return True
    if old_reading.power_w is None or new_reading.power_w is None or not new_reading.power_limit_w:
        return False
    return (
        abs(new_reading.power_w - old_reading.power_w)
        >= GPU_CHANGED_POWER_SHARE * new_reading.power_limit_w
    )
