"""Bytes over RDMA ports, as a clock of progress: RDMA passes all sockets by; and the errors that the ports count.

A read of a port's counters is a command to its firmware and may hang with it, so a thread reads them. No other
thread waits for it: while it is stuck there are no facts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue

from kcover_ebpf.devices.rdma_errors import PortErrorReader
from kcover_ebpf.facts.devices import FabricErrors, FabricMoved
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import PORT_HOLDERS_S, RDMA_ERRORS_S, RDMA_TRAFFIC_S

_LANES = 4
"""port_xmit_data and port_rcv_data count octets divided by 4 (kernel: ABI/stable/sysfs-class-infiniband)."""
# (file below ports/N, unit in bytes); EFA has its own names
_COUNTERS = (
    ("counters/port_xmit_data", _LANES),
    ("counters/port_rcv_data", _LANES),
    ("hw_counters/tx_bytes", 1),
    ("hw_counters/rx_bytes", 1),
)


_Fact = FabricMoved | FabricErrors


class FabricReader:
    """Reads the counters of all RDMA ports of this host, and who has them open.

    Errors are read only of ports that a member has open, and more rarely.
    """

    def __init__(self, root: Path, files: OpenFiles) -> None:
        self._files = files
        self._rdma = root / "sys/class/infiniband"
        self._before: dict[Path, int] = {}
        """The last value of each counter."""
        self._nodes: dict[Pid, frozenset[str]] = {}
        self._devices: dict[str, Path] = {}
        """By device file."""
        self._errors = PortErrorReader()
        self._holders_due_s = self._errors_due_s = 0.0

    @property
    def has_ports(self) -> bool:
        """Whether there is any RDMA device on this host now."""
        return self._rdma.is_dir() and any(self._rdma.iterdir())

    def read(self, members: Collection[Pid], boottime_ns: int, now_s: float) -> list[_Fact]:
        """What happened since the last call at the ports that each of `members` has open; `now_s`: any steady clock."""
        moved = self._moved()
        if now_s >= self._holders_due_s:
            self._holders_due_s = now_s + PORT_HOLDERS_S
            self._nodes.clear()
        unknown = [pid for pid in members if not self._nodes.get(pid)]
        self._nodes |= self._files.of(unknown, moved.keys())
        self._nodes = {pid: self._nodes.get(pid, frozenset()) for pid in members}
        found = ((pid, sum(moved.get(node, 0) for node in self._nodes[pid])) for pid in members)
        facts: list[_Fact] = [FabricMoved(boottime_ns, pid, count) for pid, count in found if count]
        if now_s >= self._errors_due_s:
            self._errors_due_s = now_s + RDMA_ERRORS_S
            facts += self._grown(boottime_ns)
        return facts

    def _grown(self, boottime_ns: int) -> Iterator[FabricErrors]:
        """The errors of ports whose device a member has open."""
        opened = {node for nodes in self._nodes.values() for node in nodes}
        grown = self._errors.grown([self._devices[node] for node in sorted(opened)])
        for pid, nodes in self._nodes.items():
            for node in sorted(nodes):
                for port in grown[self._devices[node]]:
                    yield FabricErrors(boottime_ns, pid, port.port, port.device, port.counters)

    def _moved(self) -> dict[str, int]:
        """Bytes since the last call, by device file; a counter read for the first time moved nothing."""
        moved: dict[str, int] = {}
        before, self._before = self._before, {}
        for device in self._rdma.iterdir() if self._rdma.is_dir() else ():
            node = self._node(device)
            self._devices[node] = device
            counted = (
                self._moved_by(port / name, before) * unit
                for port in (device / "ports").glob("*")
                for name, unit in _COUNTERS
            )
            # several devices of one PCI function have the same file here
            moved[node] = moved.get(node, 0) + sum(counted)
        return moved

    def _moved_by(self, counter: Path, before: Mapping[Path, int]) -> int:
        """By how much a counter grew. One that cannot be read now keeps its last value: it did not begin at 0."""
        known = before.get(counter)
        try:
            count = int(counter.read_text())
        except (OSError, ValueError):
            if known is not None:
                self._before[counter] = known
            return 0
        self._before[counter] = count
        # a device that was reset counts from 0 again
        return max(0, count - known) if known is not None else 0

    @staticmethod
    def _node(device: Path) -> str:
        names = sorted(path.name for path in (device / "device/infiniband_verbs").glob("uverbs*"))
        return f"/dev/infiniband/{names[0]}" if names else device.name


class FabricWatch:
    """A `FabricReader` in its own thread."""

    def __init__(self, reader: FabricReader) -> None:
        self._reader = reader
        self._members: Collection[Pid] = ()
        self._found: SimpleQueue[_Fact] = SimpleQueue()
        self._over = threading.Event()
        threading.Thread(target=self._work, name="kcover-fabric", daemon=True).start()

    def tick(self, members: Collection[Pid]) -> Iterator[_Fact]:
        """What was read since the last call; never waits. `members`: whose ports matter from now on."""
        self._members = tuple(members)
        with contextlib.suppress(Empty):
            while True:
                yield self._found.get_nowait()

    def close(self) -> None:
        """Read no more; a read under way is left behind."""
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(RDMA_TRAFFIC_S):
            now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            with contextlib.suppress(OSError):
                for fact in self._reader.read(self._members, now_ns, time.monotonic()):
                    self._found.put(fact)
