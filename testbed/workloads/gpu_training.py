"""Training on GPUs that are stubs: real processes and threads, which wait as those of CUDA and NCCL do.

What a host can see of such a job is there: a data loader with workers, a store with heartbeats, NCCL's threads, a
connection for telemetry, and no byte between ranks. The collectives are words in memory (stubs/). Needs RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT and what `gpu_styles.variables` sets.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

from testbed.workloads import phases
from testbed.workloads.gpu_styles import STYLES, Style
from testbed.workloads.torch_ddp import batches
from testbed.workloads.training import EventLog, Options, Pace, train

FLOAT, SUM = 7, 0
ONE, OTHER = ctypes.c_size_t(1), ctypes.c_size_t(100_000)
ALL_REDUCE, ALL_GATHER, OTHER_SIZE = range(3)
NEVER = 0xFFFFFFFF
CHANNELS, RANKS = 4, 16
DEVICE_NS = ctypes.c_int64(2_000_000)
NAP_S = 0.001
STORE_LIMIT = timedelta(seconds=120)


class Shared(ctypes.Structure):
    """As in stubs/libnccl.c: how often each rank launched on each channel, and more."""

    _fields_ = (
        ("launched", ctypes.c_uint32 * RANKS * CHANNELS),
        ("counted", ctypes.c_uint32 * RANKS * CHANNELS),
        ("pids", ctypes.c_int32 * RANKS),
        ("link_is_dead", ctypes.c_uint32),
    )


class UniqueId(ctypes.Structure):
    """As in nccl.h."""

    _fields_ = (("internal", ctypes.c_char * 128),)


class Device:
    """The stub of the driver's library, and how this rank waits for it."""

    def __init__(self, library: Path, style: Style, world: int) -> None:
        self._driver, self._style, self._world = ctypes.CDLL(str(library)), style, world
        self._waits: dict[str, Callable[..., int]] = {
            "spin": self._driver.cuStreamSynchronize,
            "yield": self._driver.cuStreamSynchronizeYielding,
            "block": self._driver.cuStreamSynchronizeBlocking,
            "nap": self._query,
        }

    def run(self, seconds: float) -> None:
        """Compute on this device alone for about this long (no two steps are alike), and wait until it is done."""
        seconds *= random.uniform(0.95, 1.05)
        self._waits[self._style.wait](None, 0, 0, ctypes.c_int64(round(seconds * 1e9)))

    def join(self, launched: ctypes.Array[ctypes.c_uint32], step: int) -> None:
        """Wait until all ranks have launched this many operations."""
        self._waits[self._style.wait](launched, self._world, step, DEVICE_NS)

    def replay(self, launched: ctypes.Array[ctypes.c_uint32], rank: int) -> None:
        """Launch a graph with a collective in it."""
        self._driver.cuGraphLaunch(launched, rank)

    def _query(
        self,
        launched: ctypes.Array[ctypes.c_uint32] | None,
        world: int,
        step: int,
        takes_ns: ctypes.c_int64,
    ) -> int:
        end = time.monotonic() + takes_ns.value / 1e9
        while self._driver.cuStreamQuery(launched, world, step) or time.monotonic() < end:
            time.sleep(NAP_S)
        return 0


class GpuTrainer:
    """Steps of kernels and one collective; see training.Trainer."""

    def __init__(self, options: Options, log: EventLog, style: Style) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._options, self._log, self._style = options, log, style
        self._batches = 0
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(*address, self.world, self.rank == 0, STORE_LIMIT)
        libraries = Path(os.environ["GPU_STUBS"])
        self.device = Device(libraries / "libcuda.so.1", style, self.world)
        with open(os.environ["NCCL_STUB_MEMORY"], "r+b") as file:
            self._shared = Shared.from_buffer(mmap.mmap(file.fileno(), 4096))
        self.new_epoch()  # the workers are forked before there are threads
        self._nccl = ctypes.CDLL(str(libraries / "libnccl.so.2"))
        self._comm = ctypes.c_void_p()
        made = ctypes.byref(self._comm)
        if self._nccl.ncclCommInitRank(made, self.world, UniqueId(b"bench"), self.rank):
            raise OSError("ncclCommInitRank failed")
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        if self.rank == 0:
            threading.Thread(
                target=send_telemetry, args=(log,), name="telemetry", daemon=True
            ).start()
        self.barrier()

    def _watch(self) -> None:
        """As PyTorch's watchdog and heartbeat: awake ten times a second, at the store once."""
        for turn in range(1 << 62):
            time.sleep(0.1)
            if turn % 10 == 0:
                self._store.set(f"heartbeat-{self.rank}", str(turn))

    def new_epoch(self) -> None:
        """See training.Trainer."""
        self._input = batches(self._options, self._log, self.rank, self._batches)

    def next_batch(self) -> None:
        """See training.Trainer."""
        next(self._input)
        self._batches += 1

    def update(self) -> None:
        """See training.Trainer."""
        if self._style.graph:
            self.device.replay(self._shared.launched[ALL_REDUCE], self.rank)
        else:
            self._nccl.ncclAllReduce(None, None, ONE, FLOAT, SUM, self._comm, None)
        self._join(ALL_REDUCE)

    def _join(self, channel: int) -> None:
        launched = self._shared.launched[channel]
        self.device.join(launched, launched[self.rank])

    def reduce_loss(self) -> None:
        """See training.Trainer; it is in the same operation."""

    def barrier(self) -> None:
        """See training.Trainer; NCCL's is a small all-reduce."""
        self._nccl.ncclAllReduce(None, None, ONE, FLOAT, SUM, self._comm, None)
        self._join(ALL_REDUCE)

    def mismatch(self, kind: str, culprit: bool) -> None:
        """See training.Trainer; also a device or a link that never gets done."""
        if kind == "dead-link":
            self._shared.link_is_dead = 1
        if kind == "kinds" and culprit:
            self._nccl.ncclAllGather(None, None, ONE, FLOAT, self._comm, None)
            self._join(ALL_GATHER)
        if kind == "sizes" and culprit:
            self._nccl.ncclAllReduce(None, None, OTHER, FLOAT, SUM, self._comm, None)
            self._join(OTHER_SIZE)
        if kind == "unreceived":
            if self.rank + 1 < self.world:
                self._nccl.ncclSend(None, ONE, FLOAT, self.rank + 1, self._comm, None)
            if self.rank and not culprit:
                self._nccl.ncclRecv(None, ONE, FLOAT, self.rank - 1, self._comm, None)
        else:
            self._nccl.ncclAllReduce(None, None, ONE, FLOAT, SUM, self._comm, None)
        self.device.join(self._shared.launched[ALL_REDUCE], NEVER)

    def rejoin(self) -> None:
        """NCCL would need another store and port."""
        raise NotImplementedError("this workload forms its communicator once")

    def close(self) -> None:
        """See training.Trainer."""
        self.barrier()


def send_telemetry(log: EventLog) -> None:
    """Send a line of telemetry a second to a program of this host, and ignore errors."""
    listener = socket.create_server(("127.0.0.1", 0))
    log.write("telemetry", port=listener.getsockname()[1])
    sender = socket.create_connection(listener.getsockname())
    taken, _ = listener.accept()
    collector = ["sh", "-c", "exec cat >/dev/null"]
    subprocess.Popen(collector, stdin=taken.fileno())
    taken.close()
    sender.setblocking(False)
    while True:
        with contextlib.suppress(OSError):  # what does not fit is left out
            sender.send(b"loss 0.1\n" * 10)
        time.sleep(1.0)


def main() -> None:
    """Train as the command line and the environment say."""
    options, style = Options.from_argv(), STYLES[os.environ["GPU_STYLE"]]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = EventLog(options.events, rank)
    log.write("start")
    phases.at_start(options, rank, world, log)
    trainer = GpuTrainer(options, log, style)
    train(trainer, options, log, Pace(options, trainer.device.run))


if __name__ == "__main__":
    main()
