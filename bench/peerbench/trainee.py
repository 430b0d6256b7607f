"""One rank of the job that all ways guard: torch DDP over gloo, below torchrun.

A fault that a rank does to itself is done once: a rank that is started again finds it in the event file and trains.
With `STEP_TIMER_S` set, every step restarts torchelastic's timer, by which its agent ends a rank that is late.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.agent.server import TORCHELASTIC_TIMER_FILE
from torch.distributed.elastic.timer import FileTimerClient

from bench.peerbench.ways import TIMEOUT, TIMER
from testbed.workloads.torch_ddp import TorchTrainer
from testbed.workloads.training import EventLog, Options, train


class TimedTrainer(TorchTrainer):
    """Sets a deadline for each step, as a training script that uses torchelastic's timer does."""

    def __init__(self, options: Options, log: EventLog, timer_s: float) -> None:
        super().__init__(options, log)
        self._timer, self._timer_s = FileTimerClient(os.environ[TORCHELASTIC_TIMER_FILE]), timer_s

    def next_batch(self) -> None:
        """See training.Trainer."""
        self._timer.acquire("step", time.time() + self._timer_s)
        super().next_batch()


def main() -> None:
    """Train as the command line and torchrun say."""
    options = Options.from_argv()
    log = EventLog(options.events, int(os.environ["RANK"]))
    log.write("start")
    if any(word in Path(options.events).read_text() for word in ('"fault"', '"phase_begin"')):
        options = replace(options, inject="")
    timeout = timedelta(seconds=float(os.environ[TIMEOUT]))
    dist.init_process_group("gloo", timeout=timeout)
    timer_s = os.environ.get(TIMER)
    trainer = TimedTrainer(options, log, float(timer_s)) if timer_s else TorchTrainer(options, log)
    train(trainer, options, log)


if __name__ == "__main__":
    main()
