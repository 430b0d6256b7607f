"""What one GPU does at one moment, whoever measured it. Pure.

None is what could not be observed: NVML does not support it on this GPU, or dcgm-exporter does not export it.
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory.pci import kernel_address

THROTTLE_REASONS = {
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}
"""Bits of NVML's clocks event reasons (nvml.h). Idle and clocks that were set by hand are none."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    """In the host's pid namespace, as NVML gives it to a program that runs there."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU. `gpu`, `uuid` and `pci_bus_id` are written as dcgm-exporter writes them."""

    gpu: str
    """NVML's index."""
    uuid: str = ""
    pci_bus_id: str = ""
    """Eight digits of domain, in capitals ("00000000:5D:00.0")."""
    boottime_ns: int = 0
    """When the reading began."""
    model: str = ""
    serial: str = ""
    """Of the board; empty where NVML does not say."""
    utilization: float | None = None
    """Share of the last sampling period (1 s or less) in which some kernel ran, 0 to 1."""
    memory_utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    throttle: int | None = None
    """Bits as `THROTTLE_REASONS`."""
    temperature_c: float | None = None
    ecc_corrected_count: int | None = None
    """Since the driver was loaded."""
    ecc_uncorrected_count: int | None = None
    nvlink_sent_bytes: int | None = None
    """Counters over all links; they may begin anew."""
    nvlink_received_bytes: int | None = None
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    namespace: str = ""
    """Of the pod that the GPU is assigned to, where the source says it (dcgm-exporter)."""
    pod: str = ""
    unanswered: str = ""
    """What does not answer; then nothing else but the identity is known."""

    @property
    def device(self) -> str:
        """PCI address as the kernel writes it ("0000:5d:00.0"); empty where it is not known."""
        return kernel_address(self.pci_bus_id)

    @property
    def used_by_bytes(self) -> int | None:
        """Memory of all processes, or, where none is listed, of the GPU."""
        listed = [
            process.memory_bytes for process in self.processes if process.memory_bytes is not None
        ]
        return sum(listed) if listed else self.memory_used_bytes
