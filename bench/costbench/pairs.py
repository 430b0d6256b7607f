"""`python -m bench.costbench.pairs NAME=CHECKOUT... --load LOAD --into FILE`: CPU of several checkouts over one load.

The load stays; the sensors come and go over it one after the other, round by round, so that a machine that gets slower
or faster favours none. Needs root, and switches `kernel.bpf_stats_enabled` on meanwhile. One JSON line a window; then
the medians of all that the file has, and the ratio of each to the first checkout of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.costbench.processes import (
    STEADY_S,
    Group,
    Meter,
    Sensor,
    Training,
    bpf_usage,
    build_load,
)
from bench.costbench.training_cost import STEP

LOADS = {
    "training": (2_500, 20),
    "crowd": (2_500, 20),
    "large crowd": (8_000, 64),
}
"""Threads and processes; those of a crowd call themselves ranks and never train."""
_COMMAND = ".venv/bin/kcover-ebpf"
_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
_SETTLE_S = {"training": STEADY_S}
"""A crowd is measured from its third second, its suspicious ones included."""
_SETTLE_OTHER_S = 3.0


@contextmanager
def bpf_statistics() -> Iterator[None]:
    """The kernel times our programs meanwhile: two readings of the clock for each run, 20 to 40 ns."""
    before = _STATS.read_text()
    _STATS.write_text("1")
    try:
        yield
    finally:
        _STATS.write_text(before)


def commit_of(root: Path) -> str:
    """What a checkout has: the commit, with a + where files differ from it; empty where it is none."""
    found = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=9"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def start_load(stack: ExitStack, kind: str) -> Group:
    """The job that is watched; it ends with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kcover-cost-")))
    threads, processes = LOADS[kind]
    group = Group("pairs")
    stack.callback(group.close)
    ranks = None if kind == "training" else (0, processes)
    group.park(build_load(folder), threads, processes, ranks)
    if kind == "training":
        Training(group, folder / "training", *STEP)
    return group


def window(group: Group, roots: Sequence[Path], kind: str, window_s: float) -> list[dict[str, Any]]:
    """The sensors of these checkouts over the load, at the same time; their start is not measured."""
    sensors = [Sensor(group, root / _COMMAND) for root in roots]
    time.sleep(_SETTLE_S.get(kind, _SETTLE_OTHER_S))
    begun = [(Meter(sensor.pid), bpf_usage(sensor.pid)) for sensor in sensors]
    time.sleep(window_s)
    ended = [
        (meter.read(), bpf_usage(sensor.pid))
        for sensor, (meter, _) in zip(sensors, begun, strict=True)
    ]
    found = []
    for sensor, (_, before), (usage, after) in zip(sensors, begun, ended, strict=True):
        bpf = {
            "bpf_share": (after.run_ns - before.run_ns) / 1e9 / window_s,
            "bpf_runs_per_s": (after.run_count - before.run_count) / window_s,
        }
        ends = {"load": os.getloadavg()[0], "verdicts": sensor.end()}
        found.append(asdict(usage) | bpf | ends)
    return found


def _ratios(lines: Sequence[Mapping[str, Any]], name: str, first: str) -> list[float]:
    by_round: dict[object, dict[str, float]] = {}
    for line in lines:
        by_round.setdefault(line["round"], {})[line["name"]] = line["cpu_share"]
    return [
        entry[name] / entry[first]
        for entry in by_round.values()
        if name in entry and first in entry
    ]


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Medians of each load and checkout, as Markdown."""
    rows = [
        "| load | checkout | windows | CPU of a core | range | in BPF | wakeups/s | RSS | to the first |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(line["kind"] for line in lines):
        of_kind = [line for line in lines if line["kind"] == kind]
        first = of_kind[0]["name"]
        for name in dict.fromkeys(entry["name"] for entry in of_kind):
            own = [entry for entry in of_kind if entry["name"] == name]
            shares = [entry["cpu_share"] for entry in own]
            bpf = statistics.median(entry["bpf_share"] for entry in own)
            wakeups = statistics.median(entry["wakeups_per_s"] for entry in own)
            rss = statistics.median(entry["rss_kib"] for entry in own) / 1024
            ratio = statistics.median(_ratios(of_kind, name, first) or [float("nan")])
            rows.append(
                f"| {kind} | {name} {own[-1]['commit']} | {len(own)} | {statistics.median(shares):.3%} "
                f"| {min(shares):.3%} to {max(shares):.3%} | {bpf:.3%} | {wakeups:.1f} | {rss:.1f} MB "
                f"| {ratio:.2f} |"
            )
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the medians of all that the file has."""
    parser = argparse.ArgumentParser(prog="bench.costbench.pairs", description=__doc__)
    parser.add_argument("checkouts", nargs="*", metavar="NAME=CHECKOUT")
    parser.add_argument("--load", choices=LOADS, action="append", default=[])
    parser.add_argument(
        "--rounds", type=int, default=4, help="windows of each checkout (default 4)"
    )
    parser.add_argument("--window", type=float, default=20.0, help="seconds of each (default 20)")
    parser.add_argument(
        "--together",
        action="store_true",
        help="all sensors of a round at the same time: ratios on a machine that does other work",
    )
    parser.add_argument("--into", type=Path, required=True, help="append the lines to this file")
    args = parser.parse_args(words)
    named = {
        name: Path(root)
        for name, _, root in (checkout.partition("=") for checkout in args.checkouts)
    }
    for root in named.values():
        if not (root / _COMMAND).exists():
            parser.error(f"{root} is no checkout with {_COMMAND}: run make build there")
    if named and os.geteuid() != 0:
        parser.error("it loads BPF programs and makes control groups: run it as root")
    began = round(time.time())
    with args.into.open("a", encoding="utf-8") as out, bpf_statistics():
        for kind in args.load if named else ():
            with ExitStack() as stack:
                group = start_load(stack, kind)
                for number in range(args.rounds):
                    common = {"kind": kind, "round": f"{began}-{number}", "window_s": args.window}
                    for names in [list(named)] if args.together else [[name] for name in named]:
                        roots = [named[name] for name in names]
                        found = window(group, roots, kind, args.window)
                        for name, root, entry in zip(names, roots, found, strict=True):
                            head = {"name": name, "commit": commit_of(root)}
                            print(json.dumps(head | common | entry), file=out, flush=True)
    print(table([json.loads(line) for line in args.into.read_text(encoding="utf-8").splitlines()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
