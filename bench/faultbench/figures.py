"""Figures of the report from the compact records of runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
CONFIDENCE = 0.95


def quantile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank quantile, None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def poisson_upper_bound(count: int, confidence: float = CONFIDENCE) -> float:
    """The largest mean for which at most `count` events are still credible; 3.0 for none at 95%."""
    low, high = 0.0, 10.0 + 4.0 * count
    for _ in range(100):
        mean = (low + high) / 2
        terms = (math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))
        if sum(terms) > 1 - confidence:
            low = mean
        else:
            high = mean
    return high


@dataclass(frozen=True, slots=True)
class Share:
    """Text such as "3 of 7"."""

    right: int
    total: int

    def __str__(self) -> str:
        return f"{self.right}/{self.total}" if self.total else "-"

    @property
    def percent(self) -> float | None:
        """In percent, None of nothing."""
        return 100 * self.right / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class Figures:
    """Marks of a set of fault runs; latencies in seconds from the onset, and in steps."""

    runs: int
    recall: Share
    rank: Share
    cause: Share
    latency_s: tuple[float | None, float | None, float | None]
    latency_steps: tuple[float | None, float | None, float | None]


def valid_faults(records: Sequence[Record]) -> list[Record]:
    """Runs with a fault that really happened."""
    return [r for r in records if r.get("valid") and r["is_fault"]]


def share(records: Sequence[Record], key: str) -> Share:
    """How many of the records that have a mark have a good one."""
    marked = [r for r in records if r[key] is not None]
    return Share(sum(bool(r[key]) for r in marked), len(marked))


def figures(records: Sequence[Record]) -> Figures:
    """The marks of fault runs. A run without a verdict counts against recall only."""
    faults = valid_faults(records)
    latencies = [r for r in faults if r["latency_s"] is not None]

    def quantiles(of: Callable[[Record], float]) -> tuple[float | None, float | None, float | None]:
        values = [of(r) for r in latencies]
        return quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99)

    return Figures(
        runs=len(faults),
        recall=share(faults, "detected"),
        rank=share(faults, "rank_right"),
        cause=share(faults, "cause_right"),
        latency_s=quantiles(lambda r: float(r["latency_s"])),
        latency_steps=quantiles(lambda r: float(r["latency_s"] / r["step_s"])),
    )


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Wrong shutdowns and verdicts over the job-hours in which every one would be wrong."""

    hours: float
    shut_downs: int
    verdicts: int

    @property
    def per_1000_hours(self) -> float | None:
        """Wrong shutdowns in 1,000 job-hours, None without any hours."""
        return 1000 * self.shut_downs / self.hours if self.hours else None

    @property
    def bound_per_1000_hours(self) -> float | None:
        """The 95% upper bound of the rate, None without any hours."""
        return 1000 * poisson_upper_bound(self.shut_downs) / self.hours if self.hours else None


def false_alarms(records: Sequence[Record]) -> FalseAlarms:
    """Sum up all healthy time: quiet phases, and what came before each fault.

    Of a job that was ended before its fault or phase could begin, too: it is no valid run because of that.
    """
    judged = [r for r in records if "false_shut_down" in r]
    return FalseAlarms(
        hours=sum(r["healthy_s"] for r in judged) / 3600,
        shut_downs=sum(bool(r["false_shut_down"]) for r in judged),
        verdicts=sum(r["false_verdicts"] for r in judged),
    )
