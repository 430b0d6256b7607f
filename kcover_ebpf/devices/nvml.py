"""The last rung of the Xid ladder: NVML, used if neither the driver's functions nor the kernel log can be read.

It comes last because it keeps the driver loaded while it is open, reports neither process nor message, and may drop
the first errors of a burst. Its calls can hang with the GPU, so a thread makes them. Process lists read before a
fault stay available after it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.nvml_library import address_of, initialise
from kcover_ebpf.facts.devices import Rung, XidReported
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.probes import ProbeStatus, Refusal
from kcover_ebpf.tunables.devices import NVML_EVENT_MS, NVML_USERS_S

_NO_INSTANCE = 0xFFFFFFFF
_SEES = "Xids and which process computes on a GPU, where no other source reports them"
_NO_PACKAGE = "the package nvidia-ml-py is not installed (pip install kcover-ebpf[gpu])"
_NO_LIBRARY = "libnvidia-ml.so.1 not found"


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that NVML lists on a GPU."""

    pid: Pid
    gpu_instance: int | None
    """MIG instance; None if it uses the whole GPU."""


class Nvml:
    """Starts listening when it is created; `take` and `users` never wait."""

    def __init__(self, root: Path) -> None:
        """`root`: root folder of the host's files, which may contain the library."""
        self._root = root
        self._reported: queue.SimpleQueue[XidReported] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._settled = threading.Event()
        self._users: Mapping[str, tuple[GpuUser, ...]] = {}
        self._state: tuple[str, Refusal | None] = ("it does not answer", Refusal.REFUSED)
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    @property
    def works(self) -> bool:
        """True while the library is open and events are being read."""
        return self._state[1] is None

    def status(self, timeout_s: float = 0.0) -> ProbeStatus:
        """The status in the form of a probe. Waits at most `timeout_s` seconds for a library that does not answer."""
        self._settled.wait(timeout_s)
        reason, refusal = self._state
        return ProbeStatus("gpu", "nvml", refusal is None, reason, _SEES, refusal)

    def take(self) -> list[XidReported]:
        """Xids reported since the last call; never waits."""
        found = []
        while not self._reported.empty():
            found.append(self._reported.get_nowait())
        return found

    def users(self, device: str) -> tuple[GpuUser, ...]:
        """Processes on a GPU by NVML's last answer, at most ten seconds old."""
        return self._users.get(device, ())

    def close(self) -> None:
        """Stop listening; a call that hangs is abandoned with its thread."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._state = _NO_PACKAGE, Refusal.NO_LIBRARY
            self._settled.set()
            return
        try:
            initialise(pynvml, self._root)
            try:
                self._listen(pynvml)
            finally:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError_LibraryNotFound:
            self._state = _NO_LIBRARY, Refusal.NO_LIBRARY
        except pynvml.NVMLError as error:
            absent = error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
            self._state = f"NVML: {error}", Refusal.NO_DRIVER if absent else Refusal.REFUSED
        self._settled.set()

    def _listen(self, nvml: Any) -> None:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        addresses = {_key(handle): address_of(nvml, handle) for handle in handles}
        events = nvml.nvmlEventSetCreate()
        try:
            for handle in handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._state = "", None
            next_snapshot_s = 0.0
            while not self._stopped.is_set():
                if time.monotonic() >= next_snapshot_s:
                    self._users = {
                        addresses[_key(handle)]: _users(nvml, handle) for handle in handles
                    }
                    next_snapshot_s = time.monotonic() + NVML_USERS_S
                self._settled.set()
                self._wait(nvml, events, addresses)
        finally:
            nvml.nvmlEventSetFree(events)

    def _wait(self, nvml: Any, events: Any, addresses: Mapping[int, str]) -> None:
        try:
            event = nvml.nvmlEventSetWait(events, NVML_EVENT_MS)
        except nvml.NVMLError_Timeout:
            return
        self._reported.put(
            XidReported(
                time.clock_gettime_ns(time.CLOCK_BOOTTIME),
                addresses.get(_key(event.device), ""),
                int(event.eventData),
                "",
                Rung.NVML,
                confirmed=True,
                gpu_instance=_instance(event.gpuInstanceId),
                compute_instance=_instance(event.computeInstanceId),
            )
        )


def _key(handle: Any) -> int:
    import ctypes

    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)


def _users(nvml: Any, handle: Any) -> tuple[GpuUser, ...]:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return ()
    return tuple(GpuUser(Pid(item.pid), _instance(item.gpuInstanceId)) for item in found)
