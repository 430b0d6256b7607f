"""Which process uses which GPU, from the driver's open and close.

Files opened earlier are found in /proc (`host.open_files`).
"""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.devices import CudaContext, DeviceHeld
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import HOLDER_KEPT_NS

CONTROL_MINOR = 255


@dataclass(slots=True)
class _Hold:
    pid: Pid
    minor: int
    released_ns: int | None = None


class OpenHolders:
    """The reported open GPU files, by the identity of the open file."""

    def __init__(self) -> None:
        self._holds: dict[int, _Hold] = {}
        self._contexts: dict[tuple[Pid, str], CudaContext] = {}

    def on_opened(self, device_held: DeviceHeld) -> None:
        """Record an open or the last close of /dev/nvidiaN."""
        if device_held.held and device_held.minor != CONTROL_MINOR:
            self._holds[device_held.file] = _Hold(device_held.pid, device_held.minor)
        elif (hold := self._holds.get(device_held.file)) is not None:
            hold.released_ns = device_held.boottime_ns
        self._forget(device_held.boottime_ns)

    def on_context(self, cuda_context: CudaContext) -> None:
        """Record that a process began or ended using a GPU for computing."""
        if cuda_context.active:
            self._contexts[cuda_context.pid, cuda_context.uuid] = cuda_context
        else:
            self._contexts.pop((cuda_context.pid, cuda_context.uuid), None)

    def on_exit(self, pid: Pid) -> None:
        """Drop the compute contexts of a process that exited."""
        for key in [key for key in self._contexts if key[0] == pid]:
            del self._contexts[key]

    def of(self, minor: int, uuid: str, now_ns: int) -> set[Pid]:
        """The processes that use a GPU, or used it until a moment ago."""
        self._forget(now_ns)
        opened = {hold.pid for hold in self._holds.values() if hold.minor == minor}
        return opened | {pid for pid, known in self._contexts if known == uuid and uuid}

    def _forget(self, now_ns: int) -> None:
        for file, hold in list(self._holds.items()):
            if hold.released_ns is not None and now_ns - hold.released_ns > HOLDER_KEPT_NS:
                del self._holds[file]
