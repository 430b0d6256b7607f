"""Clocks of progress: the bytes that carry a job's payload, on any path, and the activity of its GPUs. Pure.

A job needs one clock that moves while it is healthy and stops while it hangs. Which one that is depends on the job: TCP
between its ranks, RDMA ports, NVLink, PCIe, changes of its GPUs' utilisation and power, or the code of its lead
threads. All of them report to `JobProgress.progress`, and the cadence is learned from those that move.
"""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.devices import GpuSeen
from kcover_ebpf.tunables.diagnosis import (
    GPU_CLOCK_LOST_NS,
    NVLINK_FLOOR_BYTES,
    PAYLOAD_SHARE,
    PCIE_FLOOR_BYTES,
    PCIE_SHARE,
)


@dataclass(slots=True)
class ByteClock:
    """The bytes that one process moves over one kind of path."""

    floor_bytes: int
    """Bytes of one pass up to which they are never more than heartbeats."""
    typical_share: float = PAYLOAD_SHARE
    """Share of its usual payload bytes per pass below which bytes are heartbeats."""
    moved_ns: int = 0
    """Boottime of the last pass that moved more than heartbeats; 0 before the first."""
    _typical_bytes: float = 0.0

    def observe(self, moved_bytes: int, now_ns: int) -> bool:
        """Take the bytes of one pass; True if they are more than heartbeats."""
        if moved_bytes < max(self.floor_bytes, self.typical_share * self._typical_bytes):
            return False
        # a slow average over the passes that carried payload: a heartbeat alone never becomes typical
        weight = 0.1 if self._typical_bytes else 1.0
        self._typical_bytes += weight * (moved_bytes - self._typical_bytes)
        self.moved_ns = now_ns
        return True


@dataclass(slots=True)
class GpuClock:
    """Progress as shown by the GPUs of one process.

    A busy GPU shows none: a kernel that waits for its peers, or never ends, keeps it as busy as training.
    """

    seen: GpuSeen | None = None
    """The last reading; None before the first, and after the clock was lost."""
    _nvlink_clock: ByteClock = field(default_factory=lambda: ByteClock(NVLINK_FLOOR_BYTES))
    _pcie_clock: ByteClock = field(default_factory=lambda: ByteClock(PCIE_FLOOR_BYTES, PCIE_SHARE))
    _moved: bool = False

    def observe(self, seen: GpuSeen, *, has_other: bool) -> bool:
        """Take a reading; True if it shows progress.

        `has_other`: payload of the process is observed on another path. Bytes over PCIe count only if it is not: a GPU
        that waits for the network may read host memory all the time.
        """
        self.seen = seen
        at_ns = seen.boottime_ns
        by_nvlink = self._nvlink_clock.observe(seen.nvlink_bytes, at_ns)
        by_pcie = self._pcie_clock.observe(seen.pcie_bytes, at_ns)
        moved = by_nvlink or seen.changed or (by_pcie and not has_other and not self.nvlink_ns)
        self._moved = self._moved or moved
        return moved

    @property
    def nvlink_ns(self) -> int:
        """Boottime of the last reading that shows payload on NVLink; 0 before the first."""
        return self._nvlink_clock.moved_ns

    def is_lost(self, now_ns: int) -> bool:
        """True once a clock that moved is no longer read."""
        return (
            self._moved
            and self.seen is not None
            and now_ns - self.seen.boottime_ns > GPU_CLOCK_LOST_NS
        )
