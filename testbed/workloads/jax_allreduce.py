"""Data-parallel training with JAX: one CPU device a process, collectives over gloo.

Needs RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment (launch.py sets them).
"""

from __future__ import annotations

import os

import numpy as np

from testbed.workloads import phases
from testbed.workloads.training import EventLog, Options, train

PARAMETERS = 20_000


class JaxTrainer:
    """A jitted mean over all processes as gradient exchange; see training.Trainer."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp
        from jax.experimental import multihost_utils
        from jax.sharding import NamedSharding, PartitionSpec

        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
        jax.distributed.initialize(address, self.world, self.rank)
        mesh = jax.make_mesh((self.world,), ("data",))
        self._split = NamedSharding(mesh, PartitionSpec("data"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._mean = jax.jit(lambda rows: jnp.mean(rows, axis=0), out_shardings=everywhere)
        self._jax = jax
        self._sync = multihost_utils.sync_global_devices
        self._random = np.random.default_rng(self.rank)
        self.next_batch()

    def _average(self, row: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        rows = self._jax.make_array_from_process_local_data(self._split, row[None])
        self._mean(rows).block_until_ready()

    def next_batch(self) -> None:
        """See training.Trainer."""
        self._x = self._random.standard_normal(PARAMETERS).astype(np.float32)

    def update(self) -> None:
        """See training.Trainer."""
        self._average(self._x)

    def reduce_loss(self) -> None:
        """See training.Trainer."""
        self._average(self._x[:1])

    def barrier(self) -> None:
        """See training.Trainer."""
        self._sync("barrier")

    def mismatch(self, kind: str, culprit: bool) -> None:
        """See training.Trainer; one rank goes to its own barrier."""
        if kind == "barrier" and culprit:
            self._average(np.ones(7, np.float32))

    def new_epoch(self) -> None:
        """There is no loader with workers here."""
        raise NotImplementedError("this workload has no data loader workers")

    def rejoin(self) -> None:
        """JAX's distributed runtime is formed once here."""
        raise NotImplementedError("this workload joins once")

    def close(self) -> None:
        """See training.Trainer."""
        self._jax.distributed.shutdown()


def main() -> None:
    """Train as the command line says."""
    options = Options.from_argv()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = EventLog(options.events, rank)
    log.write("start")
    phases.at_start(options, rank, world, log)
    train(JaxTrainer(), options, log)


if __name__ == "__main__":
    main()
