"""Measures what the sensor costs and writes docs/bench/costbench.md, and the raw numbers.

See README.md here for what is measured and how. Needs root and a machine that does nothing else:
the report states the load average, and what it says about small numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.costbench import agent_cost, passes, report, training_cost
from bench.costbench.processes import SENSOR, build_load
from bench.costbench.statistics import interleave
from bench.machine import cpu_model
from tools.pages import data_file

SEED = 3
CROWDS = ((200, 4), (2_500, 20), (8_000, 64))


@dataclass(frozen=True, slots=True)
class Size:
    """How long to measure; `block_s`, `paired_s` and `window_s` in seconds."""

    rounds: int
    block_s: float
    paired_s: float
    window_s: float
    syscall_rounds: int
    start_count: int


QUICK = Size(2, block_s=6.0, paired_s=30.0, window_s=10.0, syscall_rounds=3, start_count=3)
WHOLE = Size(4, block_s=6.0, paired_s=210.0, window_s=60.0, syscall_rounds=40, start_count=10)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--quick", action="store_true", help="8 minutes instead of 20: a smoke test"
    )
    parser.add_argument("--page", type=Path, default=report.PAGE, help="the report")
    parser.add_argument("--raw", type=Path, help="the raw numbers (.bench/data/costbench.json)")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def measure(size: Size) -> dict[str, Any]:
    """All measurements, as they go into the JSON file."""
    raw: dict[str, Any] = {"block_s": size.block_s, "blocks": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kcover-cost-")))
        load = build_load(folder)
        _say("the training starts")
        with ExitStack() as stage_stack:
            stage = training_cost.Stage(stage_stack, folder, load)
            order = interleave(training_cost.MODES, training_cost.BASELINE, size.rounds, SEED)
            for number, mode in enumerate(order, 1):
                _say(f"block {number} of {len(order)}: {mode}")
                raw["blocks"].append(stage.block(mode, size.block_s))
            _say("single passes against the adjacent steps")
            raw["passes"] = passes.measure(stage.training, stage.watched["attached"], size.paired_s)
            _say("the sensor over the training, for longer")
            raw["steady"] = stage.steady(size.window_s)
            _say("start of the sensor")
            raw["starts"] = agent_cost.starts(stage.watched["attached"], size.start_count)
        raw["crowds"] = []
        for threads, processes in CROWDS:
            _say(f"{threads} parked threads")
            # the goal is about 2,500: the others show how it grows, and may be shorter
            window_s = size.window_s if threads == 2_500 else size.window_s / 3
            raw["crowds"].append(agent_cost.by_threads(load, threads, processes, window_s))
        _say("an unrelated process")
        order = interleave(("attached",), training_cost.BASELINE, size.syscall_rounds, SEED)
        raw["syscalls"] = agent_cost.syscalls(load, order)
    return raw


def machine() -> dict[str, Any]:
    """Where and when this is measured."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "unix": round(time.time()),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Measure, write the raw numbers, write the report."""
    args = arguments()
    if os.geteuid() != 0:
        sys.exit("the cost bench needs root: it loads BPF programs and makes control groups")
    if not SENSOR.exists():
        sys.exit("the sensor is not built: run tools/setup bench and make build")
    before = machine()
    raw = {"quick": args.quick, "machine": before, **measure(QUICK if args.quick else WHOLE)}
    raw["machine"]["load_average_end"] = os.getloadavg()[0]
    file = args.raw or data_file(report.RAW_NAME)
    file.write_text(json.dumps(raw, separators=(",", ":")) + "\n")
    args.page.write_text(report.text(raw))
    _say(f"written: {args.page}")


if __name__ == "__main__":
    main()
