"""Which process computes on which GPU: by NVML's process list, otherwise by open device files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kcover_ebpf.devices.inventory.gpu_vendors import Gpu
from kcover_ebpf.devices.telemetry.use import GpuState
from kcover_ebpf.facts.devices import GpuSeen, GpuUse
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import GPU_HOLDERS_S


class GpuHolders:
    """Remembers open files of processes for a while. Used by one thread."""

    def __init__(self, gpus: Callable[[], Iterable[Gpu]], files: OpenFiles) -> None:
        self._gpus, self._files = gpus, files
        self._open: dict[Pid, frozenset[str]] = {}
        self._due_s = 0.0

    def of(
        self, members: Collection[Pid], states: Sequence[GpuState], now_s: float
    ) -> Mapping[Pid, list[GpuState]]:
        """The GPUs of each of `members` that has one.

        A process opens the files of all GPUs that it can see, so NVML's list has priority: open files are used only
        for processes that the list contains on no GPU.
        """
        found: dict[Pid, list[GpuState]] = {}
        wanted = frozenset(members)
        for state in states:
            for process in state.reading.processes:
                if (pid := Pid(process.pid)) in wanted:
                    found.setdefault(pid, []).append(state)
        self._read_open(wanted, now_s)
        by_device = {state.reading.device: state for state in states}
        for pid in wanted - found.keys():
            opened = self._open.get(pid, frozenset())
            held = [by_device[device] for device in opened if device in by_device]
            if held:
                found[pid] = held
        return found

    def _read_open(self, wanted: frozenset[Pid], now_s: float) -> None:
        nodes = {node: gpu.device for gpu in self._gpus() for node in gpu.nodes}
        if now_s >= self._due_s:
            self._due_s = now_s + GPU_HOLDERS_S
            self._open.clear()
        for pid, paths in self._files.of(wanted - self._open.keys(), nodes.keys()).items():
            self._open[pid] = frozenset(nodes[path] for path in paths)
        for pid in self._open.keys() - wanted:
            del self._open[pid]


def seen_by(pid: Pid, states: Sequence[GpuState]) -> GpuSeen:
    """One fact with all GPUs of a process."""
    uses = {state.use for state in states}
    powers = [state.reading.power_w for state in states if state.reading.power_w is not None]
    return GpuSeen(
        boottime_ns=max(state.reading.boottime_ns for state in states),
        pid=pid,
        devices=tuple(sorted(state.reading.device for state in states)),
        use=uses.pop() if len(uses) == 1 else GpuUse.WORKING,
        use_since_ns=max(state.use_since_ns for state in states),
        power_w=sum(powers) if powers else None,
        nvlink_bytes=sum(state.nvlink_bytes for state in states),
        pcie_bytes=sum(state.pcie_bytes for state in states),
        changed=any(state.changed for state in states),
    )
