"""A training whose group of ranks may change: work, then an all-reduce over gloo, without DDP."""

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bench.lifebench.life import CPU_SHARE, STEP_S, event_log, phase_of
from testbed.workloads.training import Options, Pace


class GroupTraining:
    """One rank's; `group` is the one whose ranks train together, None for all."""

    def __init__(self, step_s: float = STEP_S, init_method: str | None = None) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.log = event_log(self.rank)
        self.log.write("start")
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=init_method,
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(minutes=30),
        )
        # a thread of PyTorch that is left at the end of the interpreter aborts the process now and then
        atexit.register(dist.destroy_process_group)
        self.group: Any = None
        self.pace = Pace(Options(step_s=step_s, cpu_share=CPU_SHARE))
        self._step_s = step_s
        self._gradients = torch.ones(50_000)
        self._steps = 0
        self.log.write("ready")

    def smaller(self, ranks: Sequence[int]) -> Any:
        """A group of some ranks; every rank calls this."""
        return dist.new_group(list(ranks))

    def step(self) -> None:
        """Work, and the gradients."""
        self.pace.compute()
        dist.all_reduce(self._gradients, group=self.group)
        self._gradients /= self.world
        self.log.write("step", step=self._steps)
        self._steps += 1

    def train(self, seconds: float, during: Callable[[], None] | None = None) -> None:
        """Train for about this many seconds, all ranks with equal steps; `during` is called before each."""
        for _ in range(max(1, round(seconds / self._step_s))):
            if during is not None:
                during()
            self.step()

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Record when the phase begins and ends on this rank."""
        with phase_of(self.log):
            yield
