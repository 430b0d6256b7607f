"""Part 1: how a thread that waits for a device looks, in each scheduling mode and when the launch queue is full."""

from __future__ import annotations

import time
from typing import Any

from tools.gpucheck import children, observe
from tools.gpucheck.cuda import Scheduling
from tools.gpucheck.plan import Notes, NotPossible, Plan

START_S = 40.0
"""Without persistence mode, the first context takes up to half a minute on machines with many devices."""
_SETTLE_S = 0.4
_SPARE_S = 1.0


def measure(plan: Plan, notes: Notes) -> None:
    cases = [
        (how, scheduling.name, "synchronize")
        for scheduling in Scheduling
        for how in ("primary", "created")
        if how == "primary" or (scheduling is not Scheduling.AUTO and not plan.quick)
    ]
    cases += [
        ("primary", name, "queue") for name in ("SPIN", "BLOCKING_SYNC")[: 1 if plan.quick else 2]
    ]
    for how, scheduling, situation in cases:
        try:
            facts = one(how, scheduling, situation, 0.6 if plan.quick else 2.0)
        except NotPossible as problem:
            facts = {"not possible here": str(problem)}
        notes.add(f"{situation} {scheduling} {how}", facts)


def one(how: str, scheduling: str, situation: str, watch_s: float) -> dict[str, Any]:
    """The description of one wait, which is ended once it was observed."""
    lasts_s = _SETTLE_S + watch_s + observe.SAMPLING_S + _SPARE_S
    command = children.module("waiter", how, scheduling, situation, str(lasts_s))
    with children.talking(command) as child:
        child.await_line("waiting", START_S)
        time.sleep(_SETTLE_S)
        facts = observe.shape(child.pid, child.pid, watch_s)
        if situation == "queue":
            longest, at = child.await_line("over", 2 * lasts_s + 10).split()
            facts["longest_launch_s"] = float(longest)
            facts["launch_that_waited"] = int(at)
    return facts
