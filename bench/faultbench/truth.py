"""What really happened in a run, from the event file of training and injector. Pure.

The detector has no part in it. All times are unix seconds unless a name says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from bench.faultbench.scenario import Effect

Event = dict[str, Any]
ALIVE = ("step", "grow")
"""Events after which the culprit still worked; memory runs out some time after it began to grow."""
SLOWED_BY = 1.15
"""Steps this many times longer than before count as slowed."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The facts of one run.

    `fault_at` is when the fault (or phase) began, None if it never did; `onset_at` when it could
    first be felt: the last step that the culprit still completed, if that is later (a loader has
    batches in stock). `end_at` is the end of a phase. `exits` are ranks with code and time.
    """

    ready_at: float | None
    fault_at: float | None
    onset_at: float | None
    end_at: float | None
    culprit_pid: int | None
    steps_before: int
    steps_after: int
    step_s_before: float | None
    step_s_after: float | None
    longest_gap_s: float
    last_step_at: float | None
    exits: tuple[tuple[int, int, float], ...]
    job_exit: tuple[int, float] | None


def parse(text: str) -> list[Event]:
    """The events of a file in the order of time; a torn last line is left out."""
    events = []
    for line in text.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return sorted(events, key=lambda event: float(event["unix"]))


def first(events: Iterable[Event], *names: str) -> Event | None:
    """The first event with one of the names, or None."""
    return next((event for event in events if event["event"] in names), None)


def step_times(events: Sequence[Event]) -> list[float]:
    """When each step was complete on the slowest rank seen."""
    done: dict[int, float] = {}
    for event in events:
        if event["event"] == "step":
            done[event["step"]] = max(done.get(event["step"], 0.0), event["unix"])
    return sorted(done.values())


def typical_gap(times: Sequence[float]) -> float | None:
    """The median time between steps in seconds, None with fewer than two gaps."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return median(gaps) if len(gaps) > 1 else None


def read_truth(
    events: Sequence[Event], culprit: int, until: float, *, continues: bool = False
) -> Truth:
    """Sum up the events of a run that was watched until the time `until`.

    `continues` says that the fault lets the training continue, so that later steps mean nothing for its
    onset.
    """
    begin = first(events, "fault", "phase_begin")
    fault_at = begin["unix"] if begin else None
    times = step_times(events)
    before = [t for t in times if fault_at is None or t <= fault_at]
    after = [t for t in times if fault_at is not None and t > fault_at]
    ends = [e["unix"] for e in events if e["event"] == "phase_end"]
    moments = [fault_at, *after, until] if fault_at else [until]
    gaps = [b - a for a, b in pairwise(moments)]
    job_exit = first(events, "job_exit")
    return Truth(
        ready_at=max((e["unix"] for e in events if e["event"] == "ready"), default=None),
        fault_at=fault_at,
        onset_at=fault_at if continues else onset(events, fault_at, culprit),
        end_at=max(ends, default=None),
        culprit_pid=begin.get("target", begin["pid"]) if begin else None,
        steps_before=len(before),
        steps_after=len(after),
        step_s_before=typical_gap(before[1:]),
        step_s_after=typical_gap(after),
        longest_gap_s=max(gaps, default=0.0),
        last_step_at=times[-1] if times else None,
        exits=tuple((e["of"], e["code"], e["unix"]) for e in events if e["event"] == "rank_exit"),
        job_exit=(job_exit["code"], job_exit["unix"]) if job_exit else None,
    )


def onset(events: Sequence[Event], fault_at: float | None, culprit: int) -> float | None:
    """When the culprit stopped making steps (or growing), or the fault began if that is later."""
    if fault_at is None:
        return None
    last: list[float] = [e["unix"] for e in events if e["event"] in ALIVE and e["rank"] == culprit]
    return max([fault_at, *last[-1:]])


def effect(truth: Truth, step_s: float, until: float) -> Effect:
    """How the training reacted between the fault and the time `until`."""
    if any(code for _, code, _ in truth.exits) or (truth.job_exit and truth.job_exit[0]):
        return Effect.DIED
    if truth.fault_at is None:
        return Effect.UNAFFECTED
    finished = truth.job_exit is not None
    silent_s = until - max(truth.fault_at, truth.last_step_at or 0.0)
    stuck = truth.steps_after == 0 or truth.longest_gap_s >= 0.6 * (until - truth.fault_at)
    if stuck and not finished and silent_s > max(3.0, 2 * step_s):
        return Effect.STALLED
    was, now = truth.step_s_before, truth.step_s_after
    if was and ((now and now > SLOWED_BY * was) or truth.longest_gap_s > max(3.0, 3 * was)):
        return Effect.SLOWED
    return Effect.UNAFFECTED
