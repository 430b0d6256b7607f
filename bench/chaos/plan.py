"""What happens when, from a seed. Pure: the same seed and length give the same plan."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from bench.chaos.invariants import KILLED

FAULT_EVERY_S = 75.0
"""Between two faults of one job, on average: the detection of a hang, a restart and the learning after it take 50."""
DISTURBANCE_EVERY_S = 9.0
FIRST_S = 20.0
LAST_S = 60.0
"""Before the end nothing new begins, so that what was begun can be seen to its end."""


class Kind(Enum):
    """What is done; the value is the name in the report."""

    STOP_RANK = "stop a rank"
    KILL_RANK = KILLED
    KILL_AGENT = "kill an agent"
    KILL_HELPER = "kill a process of an agent's"
    KILL_CONTROLLER = "kill a controller"
    FILL_DISK = "fill an agent's disk"
    CUT_API = "stop the API server"
    DROP_RECORDS = "flood the sensor"
    FLOOD_LOG = "flood the kernel log"
    RESTART_CONTAINERD = "restart containerd"
    DELETE_INCIDENTS = "delete incidents"
    DELETE_REPORTS = "delete reports"
    MOVE_CLOCK = "move a clock by 10 s"


FAULTS = {Kind.STOP_RANK: 3, Kind.KILL_RANK: 1}
"""Weights: only a hang needs all components to be detected and repaired."""
HELPERS = {Kind.KILL_HELPER: 9, Kind.KILL_AGENT: 1}
"""Of the agent's processes alone, far more often than in a run of everything."""
HELPER_EVERY_S = 3.0
EVERYTHING = {
    Kind.KILL_AGENT: 4,
    Kind.KILL_HELPER: 4,
    Kind.KILL_CONTROLLER: 3,
    Kind.FILL_DISK: 2,
    Kind.CUT_API: 3,
    Kind.DROP_RECORDS: 2,
    Kind.FLOOD_LOG: 2,
    Kind.RESTART_CONTAINERD: 1,
    Kind.DELETE_INCIDENTS: 3,
    Kind.DELETE_REPORTS: 3,
    Kind.MOVE_CLOCK: 2,
}
_SECONDS = {
    Kind.FILL_DISK: (5.0, 30.0),
    Kind.CUT_API: (2.0, 15.0),
    Kind.DROP_RECORDS: (5.0, 20.0),
    Kind.FLOOD_LOG: (2.0, 10.0),
    Kind.MOVE_CLOCK: (5.0, 60.0),
}


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that is done."""

    at_s: float
    """Seconds after the start."""
    kind: Kind
    target: int
    """Number of the job, node or replica; taken modulo their count."""
    rank: int = 0
    seconds: float = 0.0
    """How long it lasts; 0 where it is over at once."""


def plan(seed: int, length_s: float, jobs: int, *, helpers: bool = False) -> list[Act]:
    """All acts of a run, by time; jobs 0 to `jobs`-1 may be given faults.

    `helpers`: nothing but the processes of agents is disturbed.
    """
    weights, every_s = (HELPERS, HELPER_EVERY_S) if helpers else (EVERYTHING, DISTURBANCE_EVERY_S)
    chance = random.Random(seed)
    acts = []
    for job in range(jobs):
        for at_s in _moments(chance, FAULT_EVERY_S, length_s):
            (kind,) = chance.choices(list(FAULTS), list(FAULTS.values()))
            acts.append(Act(at_s, kind, job, chance.randrange(64)))
    for at_s in _moments(chance, every_s, length_s):
        (kind,) = chance.choices(list(weights), list(weights.values()))
        seconds = chance.uniform(*_SECONDS[kind]) if kind in _SECONDS else 0.0
        acts.append(Act(at_s, kind, chance.randrange(64), seconds=round(seconds, 1)))
    return sorted(acts, key=lambda act: (act.at_s, act.kind.value, act.target))


def _moments(chance: random.Random, mean_s: float, length_s: float) -> list[float]:
    found, at_s = [], FIRST_S + chance.expovariate(1 / mean_s)
    while at_s < length_s - LAST_S:
        found.append(round(at_s, 1))
        at_s += max(1.0, chance.expovariate(1 / mean_s))
    return found
