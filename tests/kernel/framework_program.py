"""Two ranks under a framework that recovers by itself, run by its Python: framework_program.py FRAMEWORK FOLDER.

Each rank prints `run N rank R step S pid P`. Where the file `raise` is in the folder, rank 1 raises once.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

SPAN_S = 0.3


def train(run: int, folder: Path, rank: int) -> None:
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    for step in range(sys.maxsize):
        dist.all_reduce(total)
        time.sleep(SPAN_S)
        with (folder / f"steps-{rank}").open("a") as log:
            log.write(f"run {run} rank {rank} step {step} pid {os.getpid()}\n")
        if rank == 1 and (folder / "raise").exists():
            (folder / "raise").unlink()
            raise RuntimeError("a fault of this rank")


def launched(folder: Path) -> None:
    """By torchrun, or ft_launcher, which says the same of restarts."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    train(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), folder, dist.get_rank())


def lightning(folder: Path) -> None:
    """Below torchrun, which starts its ranks again."""
    import torch
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.setup(torch.nn.Linear(1, 1))
    train(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), folder, fabric.global_rank)


def in_process(folder: Path) -> None:
    """NVRx calls the function of a rank again, in the same process."""
    import torch.distributed as dist
    from nvidia_resiliency_ext import inprocess

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def call(call_wrapper: Any = None) -> None:
        port = int(os.environ["MASTER_PORT"]) + 1 + call_wrapper.iteration
        patience = datetime.timedelta(seconds=60)
        store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=patience)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        train(call_wrapper.iteration, folder, rank)

    call.__annotations__ = {"call_wrapper": inprocess.CallWrapper}  # by its type it is found
    again = inprocess.initialize.RetryController(max_iterations=5)
    inprocess.Wrapper(initialize=again, health_check=None)(call)()


def ray(folder: Path) -> None:
    """Ray Train starts all workers again."""
    import ray as cluster
    from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
    from ray.train.torch import TorchTrainer

    def work() -> None:
        rank = get_context().get_world_rank()
        run = len(list(folder.glob(f"run-{rank}-*")))
        (folder / f"run-{rank}-{run}").touch()
        train(run, folder, rank)

    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "600"  # a minute is short on a busy host
    while not cluster.is_initialized():
        cluster.shutdown()
        with suppress(Exception):  # it waits half a minute for its own raylet
            cluster.init(num_cpus=4, include_dashboard=False)
    settings = RunConfig(
        failure_config=FailureConfig(max_failures=3), storage_path=str(folder / "store")
    )
    TorchTrainer(work, scaling_config=ScalingConfig(num_workers=2), run_config=settings).fit()


def torchft(folder: Path) -> None:
    """One replica group of two, with one rank each: the other continues without it, and takes it up again."""
    import torch
    from torchft import Manager, ProcessGroupGloo

    group = int(os.environ["REPLICA_GROUP_ID"])
    run = len(list(folder.glob(f"run-{group}-*")))
    (folder / f"run-{group}-{run}").touch()
    state = {"total": torch.zeros(1)}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=10)),
        state_dict=lambda: dict(state),
        load_state_dict=state.update,
        min_replica_size=1,
        replica_id=f"group-{group}",
    )
    for step in range(sys.maxsize):
        manager.start_quorum()
        manager.allreduce(torch.ones(1)).wait()
        manager.should_commit()
        time.sleep(SPAN_S)
        with (folder / f"steps-{group}").open("a") as log:
            log.write(f"run {run} rank {group} step {step} pid {os.getpid()}\n")


if __name__ == "__main__":
    programs = (launched, lightning, in_process, ray, torchft)
    {program.__name__: program for program in programs}[sys.argv[1]](Path(sys.argv[2]))
