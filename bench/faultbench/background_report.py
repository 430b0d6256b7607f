"""`bench/faultbench/background-report`: faults during background work against the same runs without it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.faultbench.figures import Record, Share, false_alarms, quantile, share, valid_faults
from bench.faultbench.reporting import OUT, SLOWNESS, TITLES, gather, latencies, number, table
from bench.faultbench.runner import RESULTS

MOST_FACTOR = 1.5
LEAST_RANK_PERCENT = 97.0
HEAD = ("scenario", "fault", "found without", "found with", "without s", "with s", "factor",
        "right rank with")  # fmt: skip


def pairs(without: Sequence[Record], beside: Sequence[Record]) -> list[tuple[Record, Record]]:
    """The runs of one fault, framework, step length and culprit that were valid both times."""
    known = {record["name"]: record for record in valid_faults(without)}
    return [(known[r["name"]], r) for r in valid_faults(beside) if r["name"] in known]


def median(records: Sequence[Record]) -> float | None:
    """Of the times from onset to verdict, in seconds."""
    return quantile(latencies(records), 0.5)


def factor(without_s: float | None, beside_s: float | None) -> float | None:
    """How much longer detection takes during the work; None if it failed, or was immediate without the work."""
    return beside_s / without_s if without_s and beside_s is not None else None


def row(name: str, both: Sequence[tuple[Record, Record]]) -> list[object]:
    """One line: of one scenario, or of all."""
    without, beside = [one for one, _ in both], [other for _, other in both]
    times = median(without), median(beside)
    found = share(without, "detected"), share(beside, "detected")
    cells = [*(number(time_s) for time_s in times), number(factor(*times), 2)]
    return [name, TITLES.get(name, ""), *found, *cells, share(beside, "rank_right")]


def goals(both: Sequence[tuple[Record, Record]], beside: Sequence[Record]) -> str:
    """The goals for faults during background work, and the results."""
    found = [pair for pair in both if pair[0]["detected"]]
    factors = [factor(one["latency_s"], other["latency_s"]) for one, other in found]
    soon = Share(sum(it is not None and it <= MOST_FACTOR for it in factors), len(found))
    rank, alarms = share([other for _, other in both], "rank_right"), false_alarms(beside)
    silent = [p for p in found if p[0]["scenario"] not in SLOWNESS]
    times = [latencies(one_side) for one_side in zip(*silent, strict=True)]
    rows: list[tuple[str, str, str]] = [
        ("found within 1.5 times the time without", f"{soon}", "all"),
        ("right rank", f"{rank}, {number(rank.percent)}%", f"{LEAST_RANK_PERCENT:g}%"),
        ("false verdicts, healthy jobs ended", f"{alarms.verdicts}, {alarms.shut_downs}", "0, 0"),
    ]
    for share_of, name in ((0.5, "p50"), (0.99, "p99")):
        ends = [number(quantile(side, share_of), 2) for side in times] or ["-", "-"]
        rows.append((f"{name} without and with, s", " and ".join(ends), ""))
    return table(("what", "measured", "goal"), rows)


def markdown(without: Sequence[Record], beside: Sequence[Record]) -> str:
    """The page."""
    both = pairs(without, beside)
    ordered = sorted({one["scenario"] for one, _ in both})
    rows = [row(name, [pair for pair in both if pair[0]["scenario"] == name]) for name in ordered]
    loads = [
        f"{number(quantile(some, 0.0))} to {number(quantile(some, 1.0))}"
        for some in ([r["load"] for r in side if "load" in r] for side in (without, beside))
    ]
    return f"""# Faults during background work

Made by `bench/faultbench/background-report` from {len(both)} faults that were valid with and without
background work (`bench/faultbench/run --background`). The load was {loads[0]} without and {loads[1]}
with it. Times are medians from the onset to the first right verdict.

## Goals

{goals(both, beside)}
## Per fault

{table(HEAD, [row("all", both), *rows])}"""


def main(argv: list[str] | None = None) -> int:
    """Write the page; 2 where there are no results to compare."""
    parser = argparse.ArgumentParser(prog="bench/faultbench/background-report", description=__doc__)
    parser.add_argument("--without", type=Path, default=RESULTS / "sensor")
    parser.add_argument("--results", type=Path, default=RESULTS / "sensor-background")
    parser.add_argument("--out", type=Path, default=OUT / "background.md")
    args = parser.parse_args(argv)
    without, beside = gather(args.without), gather(args.results)
    if not pairs(without, beside):
        print("background-report: no fault was run both ways", file=sys.stderr)
        return 2
    args.out.write_text(markdown(without, beside))
    print(f"{len(pairs(without, beside))} pairs -> {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
