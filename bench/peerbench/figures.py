"""What an attempt comes to: seconds from the fault to each answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.faultbench.truth import Event, first

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds since the fault; None: it never came. Of a quiet phase only `ended_healthy` counts."""

    detected_s: float | None
    named_s: float | None
    """Until the right rank was named."""
    named_wrong: bool
    again_s: float | None
    """Until all ranks had made a step again, after they were restarted."""
    ended_healthy: bool


def restarts_after(events: Sequence[Event], since_s: float) -> list[Event]:
    """The ranks that were started after a time."""
    return [event for event in events if event["event"] == "start" and event["unix"] > since_s]


def trains_again_s(events: Sequence[Event], world: int) -> float | None:
    """When each rank had made a step after it was started again (unix seconds)."""
    fault = first(events, "fault")
    if fault is None:
        return None
    starts = {entry["pid"] for entry in restarts_after(events, fault["unix"])}
    steps: dict[int, float] = {}
    for event in events:
        if event["event"] == "step" and event["pid"] in starts:
            steps.setdefault(event["rank"], event["unix"])
    return max(steps.values()) if len(steps) == world else None


def figures(events: Sequence[Event], words: Iterable[Record], culprit: int, world: int) -> Figures:
    """Of one attempt; words that came before the fault count for nothing."""
    fault = first(events, "fault")
    if fault is None:
        phase = first(events, "phase_begin")
        ended = phase is not None and bool(restarts_after(events, phase["unix"]))
        return Figures(None, None, False, None, ended)
    begun = fault["unix"]
    again_s = trains_again_s(events, world)
    late = [word for word in words if begun <= word["unix"] <= (again_s or float("inf"))]
    named = [entry for entry in late if entry["rank"] is not None]
    right = [entry["unix"] for entry in named if entry["rank"] == culprit]
    # a tool that restarts the ranks must have noticed, even if it reported nothing
    restarts = [entry["unix"] for entry in restarts_after(events, begun)]
    noticed = [*(entry["unix"] for entry in late), *restarts]
    return Figures(
        min(noticed) - begun if noticed else None,
        right[0] - begun if right and named[0]["rank"] == culprit else None,
        bool(named) and named[0]["rank"] != culprit,
        again_s - begun if again_s is not None else None,
        False,
    )


def typical(rows: Sequence[Record], name: str) -> float | None:
    """The median of a figure over attempts in which it came; None where it came in less than half of them."""
    found = [row[name] for row in rows if row[name] is not None]
    return median(found) if 2 * len(found) > len(rows) else None


def as_record(way: str, fault: str, found: Figures, cost: Record) -> dict[str, Any]:
    """One line of the results."""
    values = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in asdict(found).items()
    }
    return {"way": way, "fault": fault, **values, **cost}
