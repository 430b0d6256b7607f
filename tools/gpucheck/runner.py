"""Runs the parts one after the other, each with a time limit, and merges their facts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tools.gpucheck import children
from tools.gpucheck.plan import NotPossible, Plan

# Time limit of each part in seconds; together with the probe less than eleven minutes. On a large
# machine, each context takes seconds.
LIMITS_S = {
    "waits": 80.0,
    "nvml": 20.0,
    "holders": 30.0,
    "nccl": 60.0,
    "probes": 60.0,
    "sensor": 280.0,
    "overhead": 75.0,
}
_PROBE_S = 30.0


def probe(plan: Plan) -> dict[str, Any]:
    """The GPU of this machine; raises `NotPossible` if there is none, or its driver does not answer."""
    log = plan.folder / "probe.log"
    failure = children.run(children.module("probe"), _PROBE_S, log)
    said = children.last_line(log.read_text())
    if failure.startswith("its process ended with code 3"):
        raise NotPossible(said)
    if failure:
        raise NotPossible(f"the driver does not answer: {failure}")
    found: dict[str, Any] = json.loads(said)
    return found


def run_parts(
    plan: Plan, say: Callable[[str], None], lanes: Sequence[Sequence[str]] = (tuple(LIMITS_S),)
) -> dict[str, Any]:
    """Part name -> its facts, or why it left none. Lanes run in parallel."""
    with ThreadPoolExecutor(len(lanes)) as pool:
        done = pool.map(lambda lane: {name: _run(name, plan, say) for name in lane}, lanes)
        return {name: part for lane in done for name, part in lane.items()}


def _run(name: str, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    limit_s = LIMITS_S[name]
    say(f"{name}: up to {limit_s:.0f} s ...")
    began_s = time.monotonic()
    command = children.module("part", name, plan.to_json())
    failure = children.run(command, limit_s, plan.folder / f"{name}.log")
    try:
        left: dict[str, Any] = json.loads((plan.folder / f"{name}.json").read_text())
    except (OSError, ValueError):
        left = {"facts": {}}
    if failure:
        left |= {"state": "not possible here", "why": failure}
    left["seconds"] = round(time.monotonic() - began_s, 1)
    state = left["state"] + (f": {left['why']}" if left["why"] else "")
    say(f"{name}: {state} ({left['seconds']:.0f} s)")
    return left


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
