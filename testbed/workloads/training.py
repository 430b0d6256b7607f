"""The training loop that the workloads share, and the truth it writes down.

A step is a little arithmetic plus a sleep, the way a host waits for its device, followed by the
framework's real collective. Everything that happens is appended to an event file as JSON lines:
`unix` (seconds, CLOCK_REALTIME), `mono` (seconds, CLOCK_MONOTONIC), `rank`, `pid`, `event`. The
file is written by the training itself and by the injector, never by the detector.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Options:
    """What a rank is given on its command line; times in seconds.

    `inject` names a fault or a quiet phase (see faults.py and phases.py), "" for none. It begins
    on rank `inject_rank` (a phase decides itself who takes part) before step `inject_step` and,
    where it has a length, lasts `inject_s`. `steps` 0 means: until stopped. `background`, HOST:PORT of a
    collector, has each rank do more than training (background.py).
    """

    step_s: float = 0.5
    cpu_share: float = 0.1
    steps: int = 0
    workers: int = 1
    events: str = ""
    inject: str = ""
    inject_rank: int = 0
    inject_step: int = 0
    inject_s: float = 20.0
    inject_path: str = ""
    inject_factor: float = 1.0
    background: str = ""
    verbose: bool = False

    @classmethod
    def from_argv(cls, argv: list[str] | None = None) -> Options:
        """Parse `--step-s 0.5 ...`; an unknown option ends the program with code 2."""
        parser = argparse.ArgumentParser(description=__doc__)
        for option in fields(cls):
            flag = "--" + option.name.replace("_", "-")
            if isinstance(option.default, bool):
                parser.add_argument(flag, action="store_true")
            else:
                parser.add_argument(flag, type=type(option.default), default=option.default)
        return cls(**vars(parser.parse_args(argv)))


class EventLog:
    """Appends one JSON line per event; lines of several processes do not mix (O_APPEND, short)."""

    def __init__(self, path: str, rank: int | None) -> None:
        self._path, self._rank = path, rank
        self._fd = os.open(path or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __reduce__(self) -> tuple[type[EventLog], tuple[str, int | None]]:
        """A process that was spawned opens the file again."""
        return EventLog, (self._path, self._rank)

    def write(self, event: str, **more: Any) -> None:
        """Record `event` now, with both clocks and the writing process."""
        line = {
            "unix": round(time.time(), 4),
            "mono": round(time.monotonic(), 4),
            "rank": self._rank,
            "pid": os.getpid(),
            "event": event,
            **more,
        }
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Trainer(Protocol):
    """One framework's real training, as seen from the shared loop."""

    rank: int
    world: int

    def next_batch(self) -> None:
        """Fetch input; blocks as long as the data loader does."""

    def update(self) -> None:
        """Do the step's own collectives (gradients)."""

    def reduce_loss(self) -> None:
        """Do the small collective at the end of a step."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def mismatch(self, kind: str, culprit: bool) -> None:
        """Call collectives in another order or size than the others do; may block for ever."""

    def new_epoch(self) -> None:
        """Restart the data loader's workers."""

    def rejoin(self) -> None:
        """Leave the process group and form it again."""

    def close(self) -> None:
        """Leave the process group in good order."""


class Pace:
    """Length of the next step's computation in seconds; a fault or phase may change it.

    `wait` takes seconds: how the host waits for work of its own device.
    """

    def __init__(self, options: Options, wait: Callable[[float], None] = time.sleep) -> None:
        self.options = options
        self.wait = wait
        self.factor = 1.0
        self.tail: np.random.Generator | None = None
        self._matrix = np.random.default_rng(0).random((96, 96))

    def compute(self) -> None:
        """Work `cpu_share` of a step and wait for the rest of it."""
        length_s = self.options.step_s * self.factor
        if self.tail is not None:
            length_s *= min(0.5 + float(self.tail.pareto(1.5)), 15.0)
        self.burn(length_s * self.options.cpu_share)
        self.wait(length_s * (1 - self.options.cpu_share))

    def burn(self, seconds: float) -> None:
        """Multiply small matrices for the given seconds: no system call, the clock is in the vDSO."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._matrix @ self._matrix


@dataclass(slots=True)
class Run:
    """What a fault or a phase gets to work with."""

    trainer: Trainer
    options: Options
    log: EventLog
    pace: Pace
    skip_update: bool = False
    skip_loss: bool = False
    steps_left: int | None = None
    factors: list[float] = field(default_factory=list)
    ends_mono: float | None = None

    @property
    def is_culprit(self) -> bool:
        """Whether this rank is the one the fault is for."""
        return self.trainer.rank == self.options.inject_rank


def train(trainer: Trainer, options: Options, log: EventLog, pace: Pace | None = None) -> None:
    """Train until `options.steps` are done (0: for ever), and do the one injection on the way."""
    from testbed.workloads import background, faults, phases

    run = Run(trainer, options, log, pace or Pace(options))
    if options.steps:
        run.steps_left = options.steps
    if options.background:
        background.begin(Path(options.events).parent, trainer.rank, options.background)
    log.write("ready")
    step = 0
    while run.steps_left is None or run.steps_left > 0:
        if step == options.inject_step and options.inject:
            phases.begin(run)
            faults.begin(run)
        phases.before_step(run)
        one_step(run)
        log.write("step", step=step)
        if options.verbose and trainer.rank == 0:
            print(f"step {step} done", file=sys.stderr, flush=True)
        step += 1
        if run.steps_left is not None:
            run.steps_left -= 1
    trainer.close()
    phases.at_end(run)
    log.write("done")


def one_step(run: Run) -> None:
    """Input, computation, gradients, loss; what a fault leaves out is left out once."""
    run.trainer.next_batch()
    run.pace.compute()
    if run.skip_update:
        run.skip_update = False
    else:
        run.trainer.update()
    if run.skip_loss:
        run.skip_loss = False
    else:
        run.trainer.reduce_loss()
