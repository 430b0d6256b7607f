"""The arithmetic of the cost bench: paired ratios and their bootstrap interval. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 10_000
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the bounds of its 95% confidence interval."""

    value: float
    low: float
    high: float


def bootstrap(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], seed: int = 0
) -> Estimate:
    """`statistic` of the values, with a percentile bootstrap interval (Efron 1979).

    The seed makes a report reproducible from its raw numbers.
    """
    if not values:
        raise ValueError("no values")
    chance = random.Random(seed)
    drawn = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1 - _CONFIDENCE) / 2
    low, high = (drawn[round(share * (RESAMPLES - 1))] for share in (tail, 1 - tail))
    return Estimate(statistic(values), low, high)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def paired_ratio(after: Sequence[float], before: Sequence[float]) -> Estimate:
    """Geometric mean of after/before, measured in the same round each."""
    return bootstrap([a / b for a, b in zip(after, before, strict=True)], geometric_mean)


def paired_difference(after: Sequence[float], before: Sequence[float]) -> Estimate:
    """Median of after - before, measured in the same round each."""
    return bootstrap([a - b for a, b in zip(after, before, strict=True)], median)
