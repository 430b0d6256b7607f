"""The arithmetic of the cost bench: neighbours in time and bootstrap intervals. Pure."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

RESAMPLES = 10_000
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the bounds of its 95% confidence interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float, offset: float = 0.0) -> Estimate:
        """Each bound times a positive `factor`, plus `offset`."""
        return Estimate(*(part * factor + offset for part in (self.value, self.low, self.high)))


def interleave(modes: Sequence[str], baseline: str, rounds: int, seed: int) -> list[str]:
    """Blocks in the order to measure: the modes shuffled in each round, the baseline around each.

    Every block that is not the baseline thus has a baseline block on either side.
    """
    chance = random.Random(seed)
    order = [baseline]
    for _ in range(rounds):
        for mode in chance.sample(modes, k=len(modes)):
            order += [mode, baseline]
    return order


def beside_baseline(
    blocks: Sequence[tuple[str, float]], mode: str, baseline: str
) -> list[tuple[float, float]]:
    """Each value of `mode` with the mean of the baseline blocks just before and after it.

    The mean of both sides takes out a machine that gets steadily slower or faster. Raises
    `ValueError` for a block without any adjacent baseline.
    """
    pairs = []
    for index, (name, value) in enumerate(blocks):
        if name != mode:
            continue
        sides = [*blocks[max(0, index - 1) : index], *blocks[index + 1 : index + 2]]
        near = [side for side_name, side in sides if side_name == baseline]
        if not near:
            raise ValueError(f"block {index} ({mode}) has no {baseline} block next to it")
        pairs.append((value, fmean(near)))
    return pairs


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = median,
    seed: int = 0,
) -> Estimate:
    """`statistic` of the values, with a percentile bootstrap interval (Efron 1979).

    The seed makes a report reproducible from its raw numbers. Raises `ValueError` without values.
    """
    if not values:
        raise ValueError("no values")
    chance = random.Random(seed)
    drawn = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1 - _CONFIDENCE) / 2
    low, high = (drawn[round(share * (RESAMPLES - 1))] for share in (tail, 1 - tail))
    return Estimate(statistic(values), low, high)


def ratio(blocks: Sequence[tuple[str, float]], mode: str, baseline: str) -> Estimate:
    """Median of the ratios of a mode's blocks to the adjacent baseline blocks."""
    return bootstrap([value / base for value, base in beside_baseline(blocks, mode, baseline)])


def difference(blocks: Sequence[tuple[str, float]], mode: str, baseline: str) -> Estimate:
    """Median of the differences of a mode's blocks to the adjacent baseline blocks."""
    return bootstrap([value - base for value, base in beside_baseline(blocks, mode, baseline)])


_WINDOW = 2
"""Steps that a pass can make longer: the one it falls into, and the next."""
_BESIDE = 4
"""Steps on either side of them that show how long they would have taken."""
_TRIMMED = 0.05


def excess_s(ends: Sequence[float], at_s: float) -> float | None:
    """Seconds by which the steps at a moment took longer than the ones just before and after.

    `ends` are the ends of all steps, in order. None where there are not enough steps around.
    """
    first = bisect_right(ends, at_s) - 1
    last = first + _WINDOW
    if first < _BESIDE or last + _BESIDE >= len(ends):
        return None
    near_s = ends[first] - ends[first - _BESIDE] + ends[last + _BESIDE] - ends[last]
    return ends[last] - ends[first] - near_s * _WINDOW / (2 * _BESIDE)


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the lowest and highest twentieth: a few steps from which something else took a core."""
    cut = int(len(values) * _TRIMMED)
    return fmean(sorted(values)[cut : len(values) - cut])


def apart(
    ones: Sequence[float],
    others: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = fmean,
    seed: int = 0,
) -> Estimate:
    """Statistic of `ones` less that of `others`, with a percentile bootstrap interval."""
    chance = random.Random(seed)

    def draw(values: Sequence[float]) -> float:
        return statistic(chance.choices(values, k=len(values)))

    drawn = sorted(draw(ones) - draw(others) for _ in range(RESAMPLES))
    tail = (1 - _CONFIDENCE) / 2
    low, high = (drawn[round(share * (RESAMPLES - 1))] for share in (tail, 1 - tail))
    return Estimate(statistic(ones) - statistic(others), low, high)
