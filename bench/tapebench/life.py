"""Phases of the library of life (bench/lifebench) as rounds of a scripted gang, each at a random moment.

One rank, or all of them, do something else for a while; the others have launched the next collective and wait in the
style of their shape. What a tape has no facts for is left out: ranks that leave or are started again, launchers, the
readers of logs, groups of ranks that form late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from bench.tapebench.activities import (
    CHILD,
    FLAG,
    FROZEN,
    FSYNC_DISK,
    FUSE_CLOSE,
    HELPED,
    HTTP_FD,
    LAUNCH,
    METRIC,
    NAPS,
    POLLS,
    SERIALIZE,
    SERVED,
    TRACED,
    Activity,
    asleep,
    helped,
    on_pipe,
    on_socket,
)
from bench.tapebench.gang import Plan, Round
from bench.tapebench.shapes import (
    LOADER_PID,
    Pause,
    Shape,
    evaluation,
    flap,
    following,
    no_requests,
    pid_of,
    slow_load,
    step,
)

_LENGTHS_S = (4.0, 6.0, 12.0, 15.0, 20.0, 30.0, 150.0)
"""Of the phases of the library."""
_GAP_S = 0.3
"""A rank's own work between two waits."""


def _length_s(rng: random.Random) -> float:
    return rng.choice(_LENGTHS_S) * rng.uniform(0.9, 1.1)


def _future(shape: Shape, rng: random.Random) -> Round:
    seconds = _length_s(rng)
    before = ((seconds, helped(seconds)),)
    return following(step(shape, rng), rng.randrange(shape.world), before)


def _waits(activity: Activity, loader: Activity | None = None) -> Pause:
    """One rank waits so; `loader`: what its child does meanwhile."""

    def pause(shape: Shape, rng: random.Random) -> Round:
        before = ((_length_s(rng), activity),)
        return following(step(shape, rng), rng.randrange(shape.world), before, loader)

    return pause


def _briefly(activity: Activity, shortest_s: float, longest_s: float) -> Pause:
    """One rank does so for less than a phase lasts as a rule."""

    def pause(shape: Shape, rng: random.Random) -> Round:
        before = ((rng.uniform(shortest_s, longest_s), activity),)
        return following(step(shape, rng), rng.randrange(shape.world), before)

    return pause


def _all(activity: Activity, shortest_s: float, longest_s: float) -> Pause:
    """All ranks at once."""

    def pause(shape: Shape, rng: random.Random) -> Round:
        found, before = step(shape, rng), ((rng.uniform(shortest_s, longest_s), activity),)
        for rank in range(shape.world):
            found = following(found, rank, before)
        return found

    return pause


def _again(before: Callable[[random.Random], Plan]) -> Pause:
    """One rank waits several times, with a little of its own work in between."""

    def pause(shape: Shape, rng: random.Random) -> Round:
        plan = [part for wait in before(rng) for part in (wait, (_GAP_S, LAUNCH))]
        return following(step(shape, rng), rng.randrange(shape.world), plan)

    return pause


def _hiccups(rng: random.Random) -> Plan:
    return ((rng.uniform(3.5, 6.0), HELPED),) * rng.randint(3, 4)


def _backs_off(rng: random.Random) -> Plan:
    return tuple((float(2**attempt), asleep(2.0**attempt)) for attempt in range(rng.randint(3, 5)))


def _sleeps(shape: Shape, rng: random.Random) -> Round:
    seconds = _length_s(rng)
    before = ((seconds, asleep(seconds)),)
    return following(step(shape, rng), rng.randrange(shape.world), before)


def _for_child(loader: Activity | None) -> Pause:
    """One rank reads the pipe of its child, which does `loader`; None: it fetches from outside."""

    def pause(shape: Shape, rng: random.Random) -> Round:
        rank = rng.randrange(shape.world)
        pid = LOADER_PID + rank
        fetch = on_socket("fetch", HTTP_FD, pid * 1000 + HTTP_FD, 0x800)
        before = ((_length_s(rng), on_pipe("answer", pid)),)
        return following(step(shape, rng), rank, before, loader or fetch)

    return pause


def _saves(end: Activity) -> Pause:
    def pause(shape: Shape, rng: random.Random) -> Round:
        before = (rng.uniform(2, 10), SERIALIZE), (rng.uniform(10, 60), end)
        return following(step(shape, rng), 0, before)

    return pause


def _asks_service(shape: Shape, rng: random.Random) -> Round:
    asked = on_socket("judge", HTTP_FD, pid_of(0) * 1000 + HTTP_FD, 0x860)
    return following(step(shape, rng), 0, ((_length_s(rng), asked),))


PHASES: Mapping[str, Pause] = {
    "future": _future,
    "unseen-thread": _briefly(HELPED, 4.0, 33.0),
    "hiccups": _again(_hiccups),
    "unix-socket": _waits(SERVED),
    "service": _asks_service,
    "retries": _again(_backs_off),
    "long-sleep": _sleeps,
    "polls-5ms": _waits(NAPS),
    "stale-lock": _waits(POLLS),
    "collects-garbage": _waits(METRIC),
    "spins-on-flag": _briefly(FLAG, 6.0, 10.0),
    "child-computes": _waits(CHILD, METRIC),
    "tokenizer": _for_child(METRIC),
    "download": _for_child(None),
    "input-late": slow_load,
    "saves-synced": _saves(FSYNC_DISK),
    "saves-to-bucket": _saves(FUSE_CLOSE),
    "evaluates": evaluation,
    "no-requests": no_requests,
    "port-flaps": flap(5.0),
    "port-away": flap(20.0),
    "frozen-rank": _briefly(FROZEN, 2.0, 4.0),
    "traced-rank": _briefly(TRACED, 3.0, 6.0),
    "all-frozen": _all(FROZEN, 2.0, 4.0),
    "suspended": _all(FROZEN, 8.0, 30.0),
}


def any_phase(shape: Shape, rng: random.Random) -> Round:
    """One of them."""
    return rng.choice(tuple(PHASES.values()))(shape, rng)
