"""A small training for pods: torch DDP over gloo, or MPI when mpirun started it. One file on purpose.

It finds its place in the job from what the job controllers put into the environment, prints
`rank R step N` after each step, and runs until it is stopped. Knobs, all in the environment:

STEP_SECONDS        what a rank does by itself in a step, before it exchanges gradients (0.5)
STEPS               end after this many steps (0: never)
CHECKPOINT_EVERY    rank 0 saves each time after this many steps while the others wait (0: never)
CHECKPOINT_SECONDS  how long it then writes, past the page cache (5)
CHECKPOINT_PATH     where to (/tmp/checkpoint)
RESUME_FOLDER       if it is there, rank 0 notes each step in it, and a new start continues after the last (/resume)

SIGUSR1 makes it take memory until the kernel ends it, SIGUSR2 makes it 1.3 times slower from then on.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

PORT = "29500"
RANK_VARIABLES = (
    "RANK",  # PyTorchJob, XGBoostJob, torchrun
    "PROCESS_ID",  # JAXJob
    "PET_NODE_RANK",  # TrainJob
    "JOB_COMPLETION_INDEX",  # indexed Job, JobSet
    "LWS_WORKER_INDEX",
    "VC_TASK_INDEX",  # Volcano
    "PADDLE_TRAINER_ID",
)
WORLD_VARIABLES = (
    "WORLD_SIZE",
    "NUM_PROCESSES",
    "PET_NNODES",
    "LWS_GROUP_SIZE",
    "PADDLE_NNODES",
    "PADDLE_TRAINERS_NUM",
)
MASTER_VARIABLES = (
    "MASTER_ADDR",
    "COORDINATOR_ADDRESS",
    "PET_MASTER_ADDR",
    "LWS_LEADER_ADDRESS",
    "PADDLE_MASTER",
)


class Place(NamedTuple):
    """The place of a process in its job."""

    rank: int
    world: int
    master: str


def place(environ: Mapping[str, str], hostname: str) -> Place:
    """Read it from the environment; the last number of the host's name is a StatefulSet's rank."""
    if "TF_CONFIG" in environ:
        config = json.loads(environ["TF_CONFIG"])
        workers = config["cluster"]["worker"]
        return Place(config["task"]["index"], len(workers), workers[0].partition(":")[0])

    def first(names: tuple[str, ...], otherwise: str) -> str:
        return next((environ[name] for name in names if environ.get(name)), otherwise)

    rank = first(RANK_VARIABLES, hostname.rpartition("-")[2])
    master = first(MASTER_VARIABLES, hostname).partition(":")[0]
    return Place(int(rank), int(first(WORLD_VARIABLES, "1")), master)


def wait_for_name(name: str) -> None:
    """The name of a pod is known a moment after the pod runs."""
    while True:
        try:
            socket.getaddrinfo(name, None)
        except socket.gaierror:
            time.sleep(0.2)
        else:
            return


class TorchJob:
    """Gradient descent on random data, averaged by gloo."""

    def __init__(self, mine: Place) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        self._torch, self._dist = torch, dist
        torch.set_num_threads(1)
        wait_for_name(mine.master)
        url = f"tcp://{mine.master}:{os.environ.get('MASTER_PORT', PORT)}"
        dist.init_process_group("gloo", init_method=url, rank=mine.rank, world_size=mine.world)
        network = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
        )
        self._model = DistributedDataParallel(network)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def step(self) -> None:
        loss = self._model(self._torch.rand(32, 256)).pow(2).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def barrier(self) -> None:
        self._dist.barrier()


class MpiJob:
    """The same with MPI_Allreduce."""

    def __init__(self) -> None:
        import numpy as np
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD
        self.rank, self.world = self._world.Get_rank(), self._world.Get_size()
        self._mine, self._sum = np.random.rand(20_000), np.zeros(20_000)

    def step(self) -> None:
        self._world.Allreduce(self._mine, self._sum)

    def barrier(self) -> None:
        self._world.Barrier()


def save(path: str, seconds: float) -> None:
    """Write past the page cache for the given seconds, as a large checkpoint does."""
    part = mmap.mmap(-1, 4 << 20)  # aligned, as direct writes must be
    end = time.monotonic() + seconds
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        while time.monotonic() < end:
            os.pwrite(file, part, 0)
            time.sleep(0.05)
    finally:
        os.close(file)


def take_memory(*_: object) -> None:
    """Take all there is, and use it."""
    hoard = []
    while True:
        hoard.append(b"x" * (16 << 20))


class Pace:
    """How long a rank takes for its part of a step: a thread that sleeps is one that does not wait for others."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def slow_down(self, *_: object) -> None:
        self._step_s *= 1.3

    def work(self, began_s: float) -> None:
        time.sleep(max(0.0, began_s + self._step_s - time.monotonic()))


class Resume:
    """The last step that all ranks made, in a folder that outlives them; does nothing where there is none."""

    def __init__(self) -> None:
        self._folder = Path(os.environ.get("RESUME_FOLDER", "/resume"))

    def first(self) -> int:
        """The step to begin with; to be asked before the ranks meet, for then none of them writes."""
        try:
            return int((self._folder / "step").read_text()) + 1
        except (OSError, ValueError):
            return 1

    def note(self, number: int) -> None:
        """This step was made."""
        if self._folder.is_dir():
            new = self._folder / "step.new"
            new.write_text(str(number))
            new.replace(self._folder / "step")


def main() -> None:
    signal.signal(signal.SIGUSR1, take_memory)
    job: Any
    resume = Resume()
    first = resume.first()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        job = MpiJob()
        rank, world = job.rank, job.world
    else:
        mine = place(os.environ, socket.gethostname())
        job, rank, world = TorchJob(mine), mine.rank, mine.world
    pace = Pace(float(os.environ.get("STEP_SECONDS", "0.5")))
    signal.signal(signal.SIGUSR2, pace.slow_down)
    every = int(os.environ.get("CHECKPOINT_EVERY", "0"))
    last = int(os.environ.get("STEPS", "0"))
    print(f"rank {rank} of {world} begins", flush=True)
    for number in range(first, last + 1) if last else itertools.count(first):
        job.step()
        began = time.monotonic()
        print(f"rank {rank} step {number}", flush=True)
        if rank == 0:
            resume.note(number)
        if every and number % every == 0:
            if rank == 0:
                path = os.environ.get("CHECKPOINT_PATH", "/tmp/checkpoint")
                save(path, float(os.environ.get("CHECKPOINT_SECONDS", "5")))
            job.barrier()
        pace.work(began)


if __name__ == "__main__":
    main()
