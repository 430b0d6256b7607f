"""What the programs of phases share: real training at a steady pace, and the record of when the phase was.

A program is started with these variables, with the folder of the phases and the root of the source on its path:
LIFE_FOLDER (its own folder, also the current one), LIFE_EVENTS (the event file), LIFE_HOST (the number of its host),
LIFE_ADDRESS (the address of the host of the program outside the job) and, on several hosts, LIFE_NETWORK (prefix of
the names of their network namespaces).

    from bench.lifebench.life import torch_training
    with torch_training(step_s=0.4) as job:
        job.train(20)
        with job.phase():
            ...
        job.train(10)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from testbed.workloads.training import EventLog, Options, Pace, Run, Trainer, one_step

STEP_S = 0.4
CPU_SHARE = 0.05


def folder() -> Path:
    """Where a program may write."""
    return Path(os.environ["LIFE_FOLDER"])


def event_log(rank: int | None) -> EventLog:
    """The record of the run; `rank` None for a process that is no rank."""
    return EventLog(os.environ["LIFE_EVENTS"], rank)


def events(name: str) -> list[str]:
    """The lines of the record so far that are such an event, of all ranks."""
    text = Path(os.environ["LIFE_EVENTS"]).read_text()
    return [line for line in text.splitlines() if f'"event": "{name}"' in line]


def await_events(name: str, count: int = 1) -> None:
    """Wait until there are this many; for programs outside the job."""
    while len(events(name)) < count:
        time.sleep(0.1)


@contextmanager
def phase_of(log: EventLog) -> Iterator[None]:
    """Record when the phase begins and ends."""
    log.write("phase_begin")
    try:
        yield
    finally:
        log.write("phase_end")


class Training:
    """One rank's training with a framework's real collectives."""

    def __init__(self, trainer: Trainer, options: Options, log: EventLog) -> None:
        self.trainer, self.log = trainer, log
        self.rank, self.world = trainer.rank, trainer.world
        self.pace = Pace(options)
        self._run = Run(trainer, options, log, self.pace)
        self._steps = 0
        log.write("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.trainer.close()
            self.log.write("done")

    def step(self) -> None:
        """Input, computation, gradients, loss."""
        one_step(self._run)
        self.log.write("step", step=self._steps)
        self._steps += 1

    def train(self, seconds: float, during: Callable[[int], None] | None = None) -> None:
        """Train for about this many seconds, all ranks with equal steps; `during` gets the number before each."""
        for number in range(max(1, round(seconds / self._run.options.step_s))):
            if during is not None:
                during(number)
            self.step()

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Record when the phase begins and ends on this rank."""
        with phase_of(self.log):
            yield


def torch_training(
    step_s: float = STEP_S, cpu_share: float = CPU_SHARE, workers: int = 0
) -> Training:
    """A rank of DistributedDataParallel over gloo, with `workers` processes that load its input."""
    from testbed.workloads.torch_ddp import TorchTrainer

    options = Options(step_s=step_s, cpu_share=cpu_share, workers=workers)
    log = event_log(int(os.environ["RANK"]))
    log.write("start")
    return Training(TorchTrainer(options, log), options, log)


def mpi_training(step_s: float = STEP_S, cpu_share: float = CPU_SHARE) -> Training:
    """A rank of an Open MPI job."""
    from testbed.workloads.mpi_allreduce import MpiTrainer

    options = Options(step_s=step_s, cpu_share=cpu_share)
    log = event_log(int(os.environ["OMPI_COMM_WORLD_RANK"]))
    log.write("start")
    return Training(MpiTrainer(options), options, log)
