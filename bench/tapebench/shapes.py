"""Healthy GPU-shaped jobs: how they start, step, wait and pause."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.tapebench.activities import (
    FSYNC_DISK,
    FUSE_CLOSE,
    HTTP_FD,
    IMPORTS,
    LAUNCH,
    METRIC,
    SERIALIZE,
    STORE_FD,
    WAIT_STYLES,
    Activity,
    on_pipe,
    on_socket,
)
from bench.tapebench.gang import Plan, Round

Pause = Callable[["Shape", random.Random], Round]
FIRST_PID = 100
LOADER_PID = 500
"""The loader of rank N has this number plus N."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of job; times in seconds."""

    name: str
    step_s: float = 2.0
    style: str = "spin"
    launch_share: float = 0.15
    """Part of a step in which the host works."""
    rdma: bool = True
    proxies: bool = True
    """NCCL's network threads are used (ranks on several hosts, or without peer access)."""
    autograd: bool = False
    late_s: tuple[float, float] = (0.0, 1.5)
    """How much later than the first the last rank appears."""
    pause: Pause | None = None
    every_s: tuple[float, float] = (300.0, 600.0)
    """Between two pauses."""
    loaders: bool = False
    background: bool = False
    """Every rank has a thread that samples metrics and writes logs all the time."""
    helper: bool = False
    """Every rank has a thread for which its first thread may wait."""
    dead_telemetry: bool = False
    http: bool = False
    hours: float = 1.0
    """Length of one tape, at most."""
    world: int = 8
    """Ranks."""
    first_step_s: tuple[float, float] = field(default=(10.0, 60.0))
    """The first step: kernels are compiled, communicators made."""

    @property
    def tail(self) -> Activity:
        """How its ranks wait for their devices."""
        return WAIT_STYLES[self.style]


def pid_of(rank: int) -> int:
    """The process of a rank."""
    return FIRST_PID * (rank + 10)


def tails(shape: Shape) -> dict[int, Activity]:
    """All ranks wait in the style of the shape."""
    return dict.fromkeys(range(shape.world), shape.tail)


def start(shape: Shape, rng: random.Random) -> Round:
    """Imports, then the store: who came waits for all."""
    plans = {rank: ((rng.uniform(4, 9), IMPORTS),) for rank in range(shape.world)}
    waits = {
        rank: on_socket("store", STORE_FD, pid_of(rank) * 1000 + STORE_FD, 0x700)
        for rank in range(shape.world)
    }
    return Round(plans, waits, 0.1)


def step(shape: Shape, rng: random.Random, *, device_s: float | None = None) -> Round:
    """One training step; the last part of it exchanges gradients."""
    work_s = min(shape.launch_share * shape.step_s, 2.0)
    plans = {rank: ((work_s * rng.uniform(0.85, 1.15), LAUNCH),) for rank in range(shape.world)}
    rest_s = shape.step_s - work_s if device_s is None else device_s
    rest_s *= rng.uniform(0.97, 1.03)
    return Round(plans, tails(shape), rest_s, min(0.3 * rest_s, 2.0))


def following(step_round: Round, rank: int, before: Plan, loader: Activity | None = None) -> Round:
    """The round that begins with `before` on one rank, whose loader does `loader` meanwhile."""
    plans = dict(step_round.plans)
    plans[rank] = (*before, *step_round.plans[rank])
    loaders = {} if loader is None else {rank: loader}
    return Round(plans, step_round.tails, step_round.device_s, step_round.data_s, loaders)


def fsync_checkpoint(shape: Shape, rng: random.Random) -> Round:
    """Rank 0 writes and waits for a disk that completes requests all the time."""
    before = (rng.uniform(5, 20), SERIALIZE), (rng.uniform(60, 90), FSYNC_DISK)
    return following(step(shape, rng), 0, before)


def fuse_checkpoint(shape: Shape, rng: random.Random) -> Round:
    """Rank 0 closes a file on a bucket: the whole object is uploaded in one call."""
    before = (rng.uniform(5, 20), SERIALIZE), (rng.uniform(20, 90), FUSE_CLOSE)
    return following(step(shape, rng), 0, before)


def shard_checkpoint(shape: Shape, rng: random.Random) -> Round:
    """All ranks write their shard."""
    found = step(shape, rng)
    for rank in range(shape.world):
        before = (rng.uniform(2, 6), SERIALIZE), (rng.uniform(10, 80), FSYNC_DISK)
        found = following(found, rank, before)
    return found


def evaluation(shape: Shape, rng: random.Random) -> Round:
    """Rank 0 runs its own steps; the others have launched the next collective."""
    batch_s = rng.choice((0.3, 2.0, 15.0))
    count = int(rng.uniform(60, 300) / batch_s)
    batch = (0.1 * batch_s, LAUNCH), (0.9 * batch_s, shape.tail)
    return following(step(shape, rng), 0, batch * count)


def host_evaluation(shape: Shape, rng: random.Random) -> Round:
    """Rank 0 computes a metric in Python, without its device; the others have launched the next collective."""
    return following(step(shape, rng), 0, ((rng.uniform(20, 240), METRIC),))


def slow_load(shape: Shape, rng: random.Random) -> Round:
    """The loader of one rank, or of all, waits for the network for half a minute."""
    found = step(shape, rng)
    who = range(shape.world) if rng.random() < 0.3 else [rng.randrange(shape.world)]
    for rank in who:
        loader = LOADER_PID + rank
        waits_s = rng.uniform(20, 40)
        fetch = on_socket("fetch", HTTP_FD, loader * 1000 + HTTP_FD, 0x800)
        found = following(found, rank, ((waits_s, on_pipe("next batch", loader)),), fetch)
    return found


def flap(seconds: float) -> Pause:
    """A port is down for this long: data is sent again, and the step takes that much longer."""

    def pause(shape: Shape, rng: random.Random) -> Round:
        found = step(shape, rng)
        return Round(found.plans, found.tails, found.device_s + seconds, found.data_s)

    return pause


def bubbles(shape: Shape, rng: random.Random) -> Round:
    """A pipeline: each stage waits for the one before it, and for the one behind it on the way back."""
    plans = {}
    slot_s = shape.step_s / (2 * shape.world)
    for rank in range(shape.world):
        wait_s = rank * slot_s * rng.uniform(0.95, 1.05)
        plans[rank] = ((wait_s + 0.001, shape.tail), (slot_s, LAUNCH))
    return Round(plans, tails(shape), slot_s * (shape.world + 1), shape.step_s * 0.4)


def no_requests(shape: Shape, rng: random.Random) -> Round:
    """An inference gang without a request: rank 0 waits for clients, the others for its broadcast."""
    idle_s = rng.choice((5.0, 30.0, 120.0, 600.0)) * rng.uniform(0.8, 1.2)
    found = step(shape, rng)
    waits = on_socket("requests", HTTP_FD, pid_of(0) * 1000 + HTTP_FD, 0x840)
    return following(found, 0, ((idle_s, waits),))
