"""Ranks whose messages are no all-reduce: serving from rank 0, a pipeline, a gather, a new group, a late rank."""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import service
import torch
import torch.distributed as dist
from group_training import GroupTraining


def serve_idle(job: GroupTraining) -> None:
    """A model over several ranks: rank 0 hands out each request; for 20 s there is none."""
    here, there = Pipe()

    def users() -> None:
        for _ in range(40):
            time.sleep(0.45)
            there.send(1)
        with job.phase():
            time.sleep(20)
        for _ in range(15):
            time.sleep(0.45)
            there.send(1)
        there.send(0)

    if job.rank == 0:
        threading.Thread(target=users).start()
    order = torch.ones(1)
    while True:
        if job.rank == 0:
            order[0] = float(here.recv())
        dist.broadcast(order, 0)
        if not order:
            return
        job.step()


def pipeline(job: GroupTraining) -> None:
    """Each rank has a stage; stage 0 waits 12 s for the thread that asks the data service."""
    values = torch.ones(20_000)

    def steps(seconds: float) -> None:
        for number in range(round(seconds / 0.4)):
            if job.rank:
                dist.recv(values, job.rank - 1)
            job.pace.compute()
            if job.rank + 1 < job.world:
                dist.send(values, job.rank + 1)
            job.log.write("step", step=number)

    steps(18)
    if job.rank == 0:
        with job.phase(), ThreadPoolExecutor(1) as pool:
            pool.submit(service.get, "/late/12").result()
    steps(8)


def produce(connection: Connection) -> None:
    """The process that makes rank 0's batches."""
    for number in range(100):
        time.sleep(12 if number == 45 else 0.05)
        connection.send(number)
        connection.recv()


def gather(job: GroupTraining) -> None:
    """All send their samples to rank 0, whose own are late: what the others sent lies unread."""
    here, there = Pipe()
    if job.rank == 0 and os.fork() == 0:
        produce(there)
        os._exit(0)
    samples = torch.ones(500_000)
    places = [torch.ones_like(samples) for _ in range(job.world)] if job.rank == 0 else None
    for number in range(70):
        if job.rank == 0:
            if number == 45:
                job.log.write("phase_begin")
            here.recv()
            here.send(0)
            if number == 45:
                job.log.write("phase_end")
        dist.gather(samples, places)
        job.step()


def new_group(job: GroupTraining) -> None:
    """All form another group; rank 3 comes 12 s later, because it saves first."""
    job.train(18)
    if job.rank == 3:
        with job.phase(), open("state", "wb") as file:
            for _ in range(24):
                file.write(bytes(200_000))
                os.fsync(file.fileno())
                time.sleep(0.5)
    job.group = job.smaller(range(job.world))
    job.train(8)


def new_groups(job: GroupTraining) -> None:
    """All form another group, again and again; the store is in the launcher."""
    job.train(22)
    for _ in range(12):
        job.group = job.smaller(range(job.world))
        job.train(2)


def late(job: GroupTraining) -> None:
    """Rank 3 evaluates for 30 s by itself and comes to the barrier last."""
    job.train(18)
    if job.rank == 3:
        with job.phase():
            for _ in range(60):
                job.pace.burn(0.05)
                time.sleep(0.45)
    dist.barrier()
    job.train(8)


RUNS: dict[str, Callable[[GroupTraining], None]] = {
    "serve-idle": serve_idle,
    "pipeline": pipeline,
    "gather": gather,
    "new-group": new_group,
    "new-groups": new_groups,
    "late": late,
}

if __name__ == "__main__":
    RUNS[sys.argv[1]](GroupTraining())
