"""The state of one GPU at one moment, independent of the source.

Pure. None means not observed: NVML does not support the value on this GPU, or dcgm-exporter does not export it.
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
"""Bits of NVML's clocks event reasons (nvml.h). An idle GPU and clocks set by an administrator do
not count."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU, and its memory there."""

    pid: int
    """Process id in the host's pid namespace; NVML gives that to a program that runs there."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU. `gpu`, `uuid` and `pci_bus_id` are written as dcgm-exporter writes them."""

    gpu: str
    """Index of NVML, as a decimal number."""
    uuid: str = ""
    pci_bus_id: str = ""
    """PCI address with an eight-digit domain in capitals ("00000000:5D:00.0")."""
    boottime_ns: int = 0
    """Boottime at which the reading began; 0: never read."""
    model: str = ""
    serial: str = ""
    """Serial number of the board; empty if NVML does not report it."""
    utilization: float | None = None
    """Fraction (0 to 1) of the last sampling period (1 s or less) in which at least one kernel ran."""
    memory_utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    throttle: int | None = None
    """Bit mask with the values of `THROTTLE_REASONS`."""
    temperature_c: float | None = None
    ecc_corrected_count: int | None = None
    """Corrected ECC errors since the driver was loaded; None if not supported."""
    ecc_uncorrected_count: int | None = None
    nvlink_sent_bytes: int | None = None
    """Bytes over all links; the counter may restart at 0."""
    nvlink_received_bytes: int | None = None
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    namespace: str = ""
    """Namespace of the pod that uses the GPU, if the source reports it (dcgm-exporter)."""
    pod: str = ""
    unanswered: str = ""
    """The call that does not answer; if set, only the identity of the GPU is valid."""

    @property
    def device(self) -> str:
        """PCI address in the kernel's form ("0000:5d:00.0"); empty if unknown."""
        return kernel_address(self.pci_bus_id)

    @property
    def used_by_bytes(self) -> int | None:
        """Memory in use by all listed processes; the memory in use on the GPU if none is listed."""
        listed = [
            process.memory_bytes for process in self.processes if process.memory_bytes is not None
        ]
        return sum(listed) if listed else self.memory_used_bytes
