"""Which processes use a device: from the driver's reports, open files and NVML's process lists."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kcover_ebpf.devices.inventory import open_holders, topology
from kcover_ebpf.devices.inventory.gpu_vendors import Gpu
from kcover_ebpf.facts.devices import CudaContext, DeviceHeld
from kcover_ebpf.facts.kernel import Fact, ProcessExit
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import DEVICES_FIRST_WAIT_S

if TYPE_CHECKING:
    from kcover_ebpf.devices.nvml import Nvml


class DeviceUsers:
    """The devices of this host and the processes that use them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.open_files = OpenFiles()
        """Finds open device files; another process can be set to read them."""
        self._holders = open_holders.OpenHolders()
        self._readers: Readers[str, topology.Topology] = Readers("kcover-devices")
        self._is_stale = False
        self.has_begun = False
        """True after the first `refresh`; before that, the absence of users means nothing."""
        self.topology = topology.Topology()
        self.nvml: Nvml | None = None
        """Set while NVML is the rung in use, because its process lists are then available too."""

    def learn(self) -> None:
        """Reread the inventory of devices; `refresh` calls this."""
        self._is_stale = True

    def refresh(self) -> None:
        """Take over what the reader of open files has found; called once per pass.

        Devices that disappeared stay known, because they may have failed. The first call waits for the answer; it
        happens after privileges were dropped, because threads keep those they started with.
        """
        if self.has_begun and not self._is_stale and not self._readers.is_asked("devices"):
            return
        wait_s, self.has_begun = 0.0 if self.has_begun else DEVICES_FIRST_WAIT_S, True
        self._take(0.0)
        if self._is_stale and self._readers.ask("devices", partial(topology.read, self._root)):
            self._is_stale = False
        self._take(wait_s)

    def _take(self, wait_s: float) -> None:
        for _, found_topology in self._readers.take(("devices",), wait_s):
            if found_topology is not None:
                self.topology = self.topology.joined(found_topology)

    def observe(self, fact: Fact) -> None:
        """Record that a process opened or closed a GPU; other facts are ignored."""
        match fact:
            case DeviceHeld():
                self._holders.on_opened(fact)
            case CudaContext():
                self._holders.on_context(fact)
            case ProcessExit():
                self._holders.on_exit(fact.pid)
            case _:
                pass

    def below(self, device: str) -> set[str]:
        """GPUs and network devices at or below a PCI address."""
        found = {gpu.device for gpu in self.topology.gpus_below(device)}
        return found | {port.device for port in self.topology.ports_below(device)}

    def function_of(self, port: str) -> str:
        """PCI address of a port with the name that facts use ("mlx5_0/1", "eth0"); empty if unknown."""
        name = port.partition("/")[0]
        return next((port.device for port in self.topology.ports if port.name == name), "")

    def uuid(self, device: str) -> str:
        """UUID of a GPU as NVML writes it; empty for other devices and if the driver did not report it."""
        return next((gpu.uuid for gpu in self.topology.gpus if gpu.device == device), "")

    def of(
        self, device: str, members: Collection[Pid], now_ns: int, instance: int | None = None
    ) -> set[Pid]:
        """The `members` that use a device, or its MIG instance if the users of the instance are known."""
        concerned: set[Pid] = set()
        for gpu in self.topology.gpus:
            if gpu.device == device:
                concerned |= self._of_gpu(gpu, members, now_ns, instance)
        nodes = {port.node for port in self.topology.ports if port.device == device and port.node}
        return concerned | self.open_files.holders(members, nodes)

    def of_any_gpu(self, members: Collection[Pid], now_ns: int) -> set[Pid]:
        """The `members` that use any GPU."""
        gpus = self.topology.gpus
        return {pid for gpu in gpus for pid in self._of_gpu(gpu, members, now_ns, None)}

    def held_gpu(self, pid: Pid, now_ns: int) -> str:
        """PCI address of one GPU that the process uses; empty if it uses none."""
        gpus = self.topology.gpus
        held = (gpu.device for gpu in gpus if self._of_gpu(gpu, (pid,), now_ns, None))
        return next(held, "")

    def _of_gpu(
        self, gpu: Gpu, members: Collection[Pid], now_ns: int, instance: int | None
    ) -> set[Pid]:
        reported = self._holders.of(gpu.minor, gpu.uuid, now_ns)
        listed = self.nvml.users(gpu.device) if self.nvml is not None else ()
        reported |= {user.pid for user in listed}
        held = reported & set(members) | self.open_files.holders(members, gpu.nodes)
        if instance is None:
            return held
        nodes = topology.mig_nodes(self._root, gpu.minor, instance)
        users = {user.pid for user in listed if user.gpu_instance == instance}
        return (self.open_files.holders(held, nodes) | users & held) or held
