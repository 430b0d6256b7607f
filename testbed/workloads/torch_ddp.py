"""PyTorch DistributedDataParallel over gloo on the CPU, with data loader workers.

Needs RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment, as torchrun sets them
(launch.py does too).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from testbed.workloads import faults, phases, remote
from testbed.workloads.training import EventLog, Options, train

BATCH = 8
FEATURES = 64


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]
    """Random samples; on the culprit, after `inject_step` batches, the loader's fault."""

    def __init__(self, options: Options, log: EventLog, first: int, armed: bool) -> None:
        self._options, self._log, self._first = options, log, first
        self._armed = armed and options.inject.startswith("worker-")
        self._late = options.inject in ("loader-late", "loaders-late")
        self._asks = armed or options.inject == "loaders-late"
        self._slow = options.inject == "slow-loader"
        self._slow_until: float | None = None

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with faults.WORKER_LOCK:  # what a logging call in a data set does
            due = self._first + index >= self._options.inject_step * BATCH
        if due and self._armed:
            self._armed = False
            faults.in_worker(self._options, self._log)
        if due and self._slow:
            self._read_slowly()
        if due and self._late:
            self._late = False
            self._read_late()
        return torch.randn(FEATURES), torch.tensor(index % 10)

    def _read_late(self) -> None:
        self._log.write("phase_begin", kind=self._options.inject)
        if self._asks:
            remote.get(self._options.inject_path)
        self._log.write("phase_end", kind=self._options.inject)

    def _read_slowly(self) -> None:
        if self._slow_until is None:
            self._slow_until = time.monotonic() + self._options.inject_s
            self._log.write("phase_begin", kind="slow-loader")
        elif time.monotonic() > self._slow_until:
            self._slow = False
            self._log.write("phase_end", kind="slow-loader")
        with open(self._options.inject_path, "rb") as file:
            for _ in range(16):
                file.read(1 << 16)
                time.sleep(3 * self._options.step_s / BATCH / 16)


def batches(
    options: Options, log: EventLog, rank: int, done: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The input of a rank that took `done` batches from loaders before, by a new loader with workers."""
    samples = Samples(options, log, done * BATCH, armed=rank == options.inject_rank)
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]] = DataLoader(
        samples,
        batch_size=BATCH,
        num_workers=options.workers,
        prefetch_factor=2,
        multiprocessing_context="spawn" if "spawned" in options.inject else None,
    )
    return iter(loader)


class TorchTrainer:
    """A small network under DDP; see training.Trainer."""

    def __init__(self, options: Options, log: EventLog) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._options, self._log = options, log
        self._batches = 0
        torch.set_num_threads(1)
        self._port = int(os.environ["MASTER_PORT"])
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        # A second and third group only where the fault needs them: each costs threads and sockets.
        crossed = options.inject == "crossed"
        self._groups = [dist.new_group(range(self.world)) for _ in range(2 * crossed)]
        torch.manual_seed(0)
        layers = [torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
        self._network = torch.nn.Sequential(*layers)
        self._loss_function = torch.nn.CrossEntropyLoss()
        self._wrap()
        self.new_epoch()

    def _wrap(self) -> None:
        self._model = DistributedDataParallel(self._network)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def new_epoch(self) -> None:
        """See training.Trainer."""
        self._input = batches(self._options, self._log, self.rank, self._batches)

    def next_batch(self) -> None:
        """See training.Trainer."""
        self._x, self._y = next(self._input)
        self._batches += 1

    def update(self) -> None:
        """See training.Trainer."""
        self._loss = self._loss_function(self._model(self._x), self._y)
        self._optimizer.zero_grad()
        self._loss.backward()
        self._optimizer.step()

    def reduce_loss(self) -> None:
        """See training.Trainer."""
        dist.all_reduce(self._loss.detach().clone().reshape(1))

    def barrier(self) -> None:
        """See training.Trainer."""
        dist.barrier()

    def mismatch(self, kind: str, culprit: bool) -> None:
        """See training.Trainer."""
        if kind == "crossed":
            for group in self._groups[::-1] if culprit else self._groups:
                dist.all_reduce(torch.ones(64), group=group)
        elif kind == "sizes":
            dist.all_reduce(torch.ones(1000 if culprit else 100_000))
        elif kind == "barrier" and culprit:
            dist.barrier()

    def rejoin(self) -> None:
        """See training.Trainer; the new group meets at the next port."""
        del self._model
        dist.destroy_process_group()
        self._port += 1
        host = os.environ["MASTER_ADDR"]
        url = f"tcp://{host}:{self._port}"
        dist.init_process_group("gloo", init_method=url, rank=self.rank, world_size=self.world)
        self._wrap()

    def close(self) -> None:
        """See training.Trainer."""
        dist.barrier()
        dist.destroy_process_group()


def train_as(options: Options) -> None:
    """Train as the rank that the environment says."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = EventLog(options.events, rank)
    log.write("start")
    phases.at_start(options, rank, world, log)
    train(TorchTrainer(options, log), options, log)


def main() -> None:
    """Train as the command line says."""
    train_as(Options.from_argv())


if __name__ == "__main__":
    main()
