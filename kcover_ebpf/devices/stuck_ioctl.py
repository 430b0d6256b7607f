"""Calls of the GPU driver that hang in the kernel.

No signal ends them, so killing the job does not free the device.
"""

from __future__ import annotations

from collections.abc import Callable

from kcover_ebpf.devices.device_users import DeviceUsers
from kcover_ebpf.facts.devices import DriverCall
from kcover_ebpf.facts.host import ThreadReading
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import STUCK_CALL_NS

_NODES = ("/dev/nvidia",)


class StuckCalls:
    """Finds driver calls that hang among the readings of threads that make no progress."""

    def __init__(
        self, users: DeviceUsers, is_stuck: Callable[[Pid, int], bool] | None = None
    ) -> None:
        """`is_stuck`: whether a thread is in state D now."""
        self._whose = users
        self._is_stuck = is_stuck or _in_state_d
        self._since_ns: dict[int, int] = {}
        self._reported: set[int] = set()

    def observe(self, reading: ThreadReading) -> DriverCall | None:
        """A fact for each hanging call, returned once; None for other readings."""
        node = reading.files[0].target if len(reading.files) == 1 else ""
        tid = int(reading.tid)
        if not node.startswith(_NODES) or not self._is_stuck(reading.pid, tid):
            self._since_ns.pop(tid, None)
            self._reported.discard(tid)
            return None
        since_ns = self._since_ns.setdefault(tid, reading.boottime_ns)
        if tid in self._reported or reading.boottime_ns - since_ns < STUCK_CALL_NS:
            return None
        self._reported.add(tid)
        device = self._device(reading, node)
        uuid = self._whose.uuid(device)
        channel = reading.wait_channel
        return DriverCall(
            reading.boottime_ns, reading.pid, tid, since_ns, node, device, uuid, channel
        )

    def _device(self, reading: ThreadReading, node: str) -> str:
        """PCI address of the GPU of a device file.

        The control file is shared by all GPUs: for it, the GPU that is open.
        """
        gpus = self._whose.topology.gpus
        named = [gpu.device for gpu in gpus if node == f"/dev/nvidia{gpu.minor}"]
        found = named or [
            gpu.device
            for gpu in gpus
            if self._whose.of(gpu.device, {reading.pid}, reading.boottime_ns)
        ]
        return found[0] if len(found) == 1 else ""


def _in_state_d(pid: Pid, tid: int) -> bool:
    return procfs.task_state(pid, tid) == "D"
