"""The PyTorch workload as a program starts its ranks itself: no launcher hands each of them a RANK.

The first argument is who starts the ranks, the second their number; the rest goes to each rank:

- spawn: `torch.multiprocessing.spawn`.
- fork: Accelerate's launcher for notebooks on hosts without a GPU. It forks, as the one for GPUs does.
- ray: Ray Train. A rank is an actor, and its training runs in a thread that is not the first.
- numbered: `--rank N` on the command line of each process, as from a shell loop.
- bare: processes that agree among themselves who is who, by a file.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

from testbed.ports import free_port
from testbed.workloads import torch_ddp
from testbed.workloads.training import Options

RAY_CPUS = 8
"""CPUs that Ray may use: it starts no more ranks than that, however many the host has."""


def become(rank: int, world: int, port: int) -> None:
    """Give this process its number; /proc shows the environment at its start, so this is invisible to others."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def spawned(local: int, first: int, world: int, port: int, options: Options) -> None:
    """The rank that is the `local`th on a node whose first one is `first`."""
    become(first + local, world, port)
    torch_ddp.train_as(options)


def spawn(count: int, options: Options) -> None:
    """One process a rank; RANK and WORLD_SIZE, where they are set, are those of the node."""
    node, nodes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    port = int(os.environ["MASTER_PORT"]) if nodes > 1 else free_port()
    mp.spawn(spawned, (node * count, nodes * count, port, options), nprocs=count)


def forked(options: Options) -> None:
    """A rank of a framework that has formed the process group itself."""
    become(dist.get_rank(), dist.get_world_size(), 0)
    torch_ddp.train_as(options)


def fork(count: int, options: Options) -> None:
    """Accelerate's real launcher."""
    from accelerate import debug_launcher

    debug_launcher(forked, (options,), num_processes=count)


def actor(config: dict[str, Any]) -> None:
    """A rank of Ray Train."""
    forked(config["options"])


def ray(count: int, options: Options) -> None:
    """Ray Train on its own Ray."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(num_cpus=RAY_CPUS, include_dashboard=False, _temp_dir=folder)
        scaling = ScalingConfig(num_workers=count, use_gpu=False)
        config, storage = {"options": options}, RunConfig(storage_path=folder)
        trainer = TorchTrainer(
            actor, train_loop_config=config, scaling_config=scaling, run_config=storage
        )
        trainer.fit()


def numbered(count: int, options: Options) -> None:
    """One rank; its number is the last word of the command line."""
    become(int(sys.argv[-1]), count, int(os.environ["RENDEZVOUS_PORT"]))
    torch_ddp.train_as(options)


def bare(count: int, options: Options) -> None:
    """One rank; its number is how many others took one before it."""
    with Path(os.environ["RENDEZVOUS_FILE"]).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        rank = file.tell()
        file.write(".")
    become(rank, count, int(os.environ["RENDEZVOUS_PORT"]))
    torch_ddp.train_as(options)


STARTERS: dict[str, Callable[[int, Options], None]] = {
    "spawn": spawn,
    "fork": fork,
    "ray": ray,
    "numbered": numbered,
    "bare": bare,
}


def main() -> None:
    """Start the ranks, or be one."""
    name, count, *rest = sys.argv[1:]
    if name == "numbered":
        rest = rest[: rest.index("--rank")]
    STARTERS[name](int(count), Options.from_argv(rest))


if __name__ == "__main__":
    main()
