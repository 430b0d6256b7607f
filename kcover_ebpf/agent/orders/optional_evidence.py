"""Evidence that the operator must enable and the job must request: names of GPU kernels, checkpoints of pods.

Both come from dumps that contain memory of the program. Of a GPU's dump only names of kernels are kept. A
checkpoint stays where the kubelet writes it, and its path is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from kcover_ebpf.agent.containers import processes
from kcover_ebpf.agent.orders.evidence_thread import EvidenceRequest
from kcover_ebpf.api.order import Verb
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError
from kcover_ebpf.model.traced import GpuKernel
from kcover_ebpf.trace.gpu_kernels import KernelReading
from kcover_ebpf.tunables.agent import CHECKPOINT_LIMIT_S, GPU_DUMP_WAIT_S, SNAPSHOT_LIMIT_S

Checkpoint = Callable[[str, str, str, float], tuple[str, ...]]
"""Called with namespace, pod, container and seconds to wait: has a checkpoint written, returns its paths. Raises
`ApiError`.
"""
_MOST_CHECKPOINTS = 8
"""The most checkpoints for one order."""


@dataclass(slots=True)
class OptionalReadings:
    """What was read, and what was left out."""

    kernels: tuple[GpuKernel, ...] = ()
    checkpoints: tuple[str, ...] = ()
    """`POD/CONTAINER: PATH on the node` for each checkpoint."""
    unobserved: list[str] = field(default_factory=list)


class OptionalEvidence:
    """Called by the thread of orders before a stop, and by that of evidence."""

    def __init__(
        self, *, gpu_core_dumps: bool = False, checkpoint: Checkpoint | None = None
    ) -> None:
        """`checkpoint`: None if the operator wants no checkpoints."""
        self._reads_kernels, self._checkpoint = gpu_core_dumps, checkpoint
        self._before_stop: dict[str, OptionalReadings] = {}
        """Readings by incident, taken before the stop because a stopped driver writes no dump."""

    def before_stop(self, request: EvidenceRequest) -> None:
        """Read the kernels, if the operator wants them; delays the stop by at most `GPU_DUMP_WAIT_S`."""
        if not self._reads_kernels:
            return
        end_s = time.monotonic() + GPU_DUMP_WAIT_S
        reading = KernelReading(processes(request.found), GPU_DUMP_WAIT_S)
        kernels, unobserved = reading.finish({}, end_s)
        self._before_stop = {request.incident: OptionalReadings(kernels, (), unobserved)}

    def begin(
        self, request: EvidenceRequest
    ) -> Callable[[Mapping[int, int | None], float], OptionalReadings]:
        """Start reading; the returned function gives the results, by rank number, by a deadline (monotonic)."""
        before = self._before_stop.pop(request.incident, None)
        if request.verb is not Verb.SNAPSHOT:
            return lambda ranks, _: _numbered(before or OptionalReadings(), ranks)
        kernels = None
        if self._reads_kernels:
            kernels = KernelReading(processes(request.found), SNAPSHOT_LIMIT_S)
        checkpoints = self._checkpoints(request)

        def finish(ranks: Mapping[int, int | None], end_s: float) -> OptionalReadings:
            readings = OptionalReadings()
            if kernels is not None:
                readings.kernels, readings.unobserved = kernels.finish(ranks, end_s)
            if checkpoints is not None:
                checkpoints.finish(readings, end_s)
            return readings

        return finish

    def _checkpoints(self, request: EvidenceRequest) -> _Checkpoints | None:
        if self._checkpoint is None or not request.checkpointed:
            return None
        return _Checkpoints(self._checkpoint, request.gang.namespace, request.checkpointed)


def _numbered(readings: OptionalReadings, ranks: Mapping[int, int | None]) -> OptionalReadings:
    readings.kernels = tuple(
        replace(kernel, rank=ranks.get(kernel.pid)) for kernel in readings.kernels
    )
    return readings


class _Checkpoints:
    """Checkpoint requests: the kubelet may take minutes for one, and continues after we stop waiting."""

    def __init__(
        self, checkpoint: Checkpoint, namespace: str, wanted: Collection[tuple[str, str]]
    ) -> None:
        self._lock = threading.Lock()
        self._written: list[str] = []
        self._refused: list[str] = []
        self._names = [f"{pod}/{container}" for pod, container in wanted][:_MOST_CHECKPOINTS]
        self._skipped = len(wanted) - len(self._names)
        self._threads = [
            threading.Thread(
                target=self._ask, args=(checkpoint, namespace, pod, container), name="kcover-checkpoint",
                daemon=True,
            )
            for pod, container in list(wanted)[:_MOST_CHECKPOINTS]
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _ask(self, checkpoint: Checkpoint, namespace: str, pod: str, container: str) -> None:
        name = f"{pod}/{container}"
        try:
            paths = checkpoint(namespace, pod, container, CHECKPOINT_LIMIT_S)
        except ApiError as error:
            with self._lock:
                self._refused.append(f"checkpoint of {name} ({error})")
            return
        with self._lock:
            self._written += (f"{name}: {path}" for path in paths)

    def finish(self, readings: OptionalReadings, end_s: float) -> None:
        """Checkpoints that are finished by this time."""
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        pending = [
            name
            for name, thread in zip(self._names, self._threads, strict=True)
            if thread.is_alive()
        ]
        with self._lock:
            readings.checkpoints = tuple(sorted(self._written))
            readings.unobserved += sorted(self._refused)
        readings.unobserved += (
            f"checkpoint of {name} (the kubelet is still writing it to its folder checkpoints)"
            for name in pending
        )
        if self._skipped > 0:
            readings.unobserved.append(f"checkpoints of {self._skipped} more containers")
