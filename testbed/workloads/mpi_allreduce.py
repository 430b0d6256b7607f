"""Data-parallel training with Open MPI through mpi4py; mpirun starts it."""

from __future__ import annotations

import os
import time

import numpy as np

from testbed.workloads import phases
from testbed.workloads.training import EventLog, Options, train

PARAMETERS = 20_000


class MpiTrainer:
    """Gradient descent on random data, averaged by MPI_Allreduce; see training.Trainer."""

    def __init__(self, options: Options) -> None:
        from mpi4py import MPI  # importing it starts MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.world = self._world.Get_rank(), self._world.Get_size()
        crossed = options.inject == "crossed"
        self._groups = [self._world.Dup() for _ in range(2 * crossed)]
        self._naps = options.inject == "child-wait"
        self._random = np.random.default_rng(self.rank)
        self._weights = np.zeros(PARAMETERS)
        self.next_batch()

    def next_batch(self) -> None:
        """See training.Trainer."""
        self._x = self._random.standard_normal(PARAMETERS)

    def update(self) -> None:
        """See training.Trainer."""
        self._loss = float(self._weights @ self._x) - 1.0
        gradient = self._loss * self._x
        total = np.empty_like(gradient)
        if self._naps:
            request = self._world.Iallreduce(gradient, total)
            while not request.Test():
                time.sleep(0.002)
        else:
            self._world.Allreduce(gradient, total)
        self._weights -= 1e-6 * total / self.world

    def reduce_loss(self) -> None:
        """See training.Trainer."""
        self._world.allreduce(self._loss)

    def barrier(self) -> None:
        """See training.Trainer."""
        self._world.Barrier()

    def mismatch(self, kind: str, culprit: bool) -> None:
        """See training.Trainer."""
        if kind == "crossed":
            for group in self._groups[::-1] if culprit else self._groups:
                group.Allreduce(np.ones(PARAMETERS), np.empty(PARAMETERS))
        elif kind == "sizes":
            size = 1000 if culprit else 100_000
            self._world.Allreduce(np.ones(size), np.empty(size))
        elif kind == "barrier" and culprit:
            self._world.Barrier()

    def new_epoch(self) -> None:
        """There is no loader with workers here."""
        raise NotImplementedError("this workload has no data loader workers")

    def rejoin(self) -> None:
        """Open MPI 4 cannot form the world a second time."""
        raise NotImplementedError("MPI_Init can be called once only")

    def close(self) -> None:
        """See training.Trainer; MPI_Finalize waits for all ranks."""
        self._mpi.Finalize()


def main() -> None:
    """Train as the command line says."""
    options = Options.from_argv()
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    world = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    log = EventLog(options.events, rank)
    log.write("start")
    phases.at_start(options, rank, world, log)
    train(MpiTrainer(options), options, log)


if __name__ == "__main__":
    main()
