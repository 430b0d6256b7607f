"""Which pods use which GPU of this node: by NVML's processes, the device files that they have open, or dcgm-exporter.

Includes pods that are not watched: a process belongs to the pod in whose control group it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.api.container_cgroup import containers_of_process
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.telemetry.reading import GpuReading
from kcover_ebpf.host.bounded import read_bytes


@dataclass(frozen=True, slots=True)
class GpuPod:
    """One pod that uses one GPU."""

    gpu: GpuReading
    pod: Pod
    memory_bytes: int | None = None
    """Memory used by the pod's processes, from NVML; None if unknown."""


class GpuPods:
    """Joins GPUs with pods. Used by one thread."""

    def __init__(self, registry: PodRegistry, proc: Path = Path("/proc")) -> None:
        self._registry, self._proc = registry, proc

    def of(
        self, readings: Iterable[GpuReading], opened: Mapping[str, tuple[str, ...]]
    ) -> tuple[GpuPod, ...]:
        """Users by GPU and pod name; `opened`: uid of a pod -> PCI addresses whose device files it has open."""
        found = []
        for gpu in readings:
            memory = self._of_processes(gpu)
            for uid, devices in opened.items():
                if gpu.device in devices:
                    memory.setdefault(uid, None)
            pods = {uid: pod for uid in memory if (pod := self._registry.pod(uid)) is not None}
            if gpu.pod and not pods:
                assigned = self._registry.named(gpu.namespace, gpu.pod)
                pods = {} if assigned is None else {assigned.uid: assigned}
            users = sorted(
                pods.values(), key=lambda other_pod: (other_pod.namespace, other_pod.name)
            )
            found += [GpuPod(gpu, pod, memory.get(pod.uid)) for pod in users]
        return tuple(found)

    def _of_processes(self, gpu: GpuReading) -> dict[str, int | None]:
        memory: dict[str, int | None] = {}
        for process in gpu.processes:
            try:
                text = read_bytes(self._proc / str(process.pid) / "cgroup").decode()
            except (OSError, ValueError):
                continue
            for uid in {container.pod_uid for container in containers_of_process(text)[:1]}:
                before = memory.get(uid)
                known = [size for size in (before, process.memory_bytes) if size is not None]
                memory[uid] = sum(known) if known else None
        return memory
