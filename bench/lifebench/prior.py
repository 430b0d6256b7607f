"""The prior of patience, from the measured lengths of healthy phases: how often one longer than L seconds begins.

    python -m bench.lifebench.prior                    fit the lengths that are kept here
    python -m bench.lifebench.prior RESULTS.jsonl      keep the lengths of these results, and fit them

The tail of a Pareto distribution is fitted above the median (Hill 1975): below it the authors' choice of phases shows,
not how long phases last. How often phases begin no library can measure; that is assumed (`PER_HOUR`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kcover_ebpf.tunables.certainty import PRIOR_RATE_PER_H, PRIOR_SHAPE

LENGTHS = Path(__file__).with_name("lengths.json")
PER_HOUR = 0.2
"""Phases an hour that last for longer than the median of the library: one in a working morning. Assumed."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Phases longer than L seconds an hour: `rate_per_h` times L to the power of `-shape`."""

    rate_per_h: float
    shape: float
    shape_error: float
    """Standard error of the shape."""
    above_s: float
    count: int
    """Phases above that, which it rests on."""


def fitted(lengths_s: Sequence[float], per_hour: float = PER_HOUR) -> Prior:
    """The tail above the median; raises `ValueError` for fewer than ten phases above it."""
    above_s = median(lengths_s)
    tail = [length_s for length_s in lengths_s if length_s > above_s]
    if len(tail) < 10:
        raise ValueError(f"only {len(tail)} phases are longer than the median: too few for a fit")
    shape = len(tail) / sum(math.log(length_s / above_s) for length_s in tail)
    return Prior(per_hour * above_s**shape, shape, shape / math.sqrt(len(tail)), above_s, len(tail))


def lengths_of(results: Path) -> dict[str, float]:
    """Seconds by phase, of results of the library that are valid."""
    rows = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return {row["phase"]: row["phase_s"] for row in rows if row.get("phase_s")}


def kept() -> dict[str, float]:
    """The lengths that are kept here."""
    found: dict[str, float] = json.loads(LENGTHS.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Print the fit next to the shipped values."""
    if len(sys.argv) > 1:
        measured = lengths_of(Path(sys.argv[1]))
        LENGTHS.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    prior = fitted(list(kept().values()))
    print(
        f"fitted: {prior.rate_per_h:.0f} * L^-{prior.shape:.2f} an hour "
        f"(shape +-{prior.shape_error:.2f}, {prior.count} phases longer than {prior.above_s:.1f} s)"
    )
    print(f"shipped: {PRIOR_RATE_PER_H:.0f} * L^-{PRIOR_SHAPE:.2f} an hour")


if __name__ == "__main__":
    main()
