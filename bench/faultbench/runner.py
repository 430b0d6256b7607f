"""`tools/faultbench/run`: carry out the fault matrix; one result file per run."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from bench.faultbench import plan
from bench.faultbench.beside import Beside
from bench.faultbench.capabilities import not_runnable
from bench.faultbench.execute import execute
from bench.faultbench.gpu_table import GPU
from bench.faultbench.job import ROOT, SENSOR
from bench.faultbench.leftovers import remove_leftovers, tag
from bench.faultbench.plan import RunSpec

RESULTS = ROOT / ".bench/results"
WORK = ROOT / ".bench/work"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="tools/faultbench/run", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="a fixed subset, under 10 minutes")
    which.add_argument("--all", action="store_true", help="everything (the default); resumable")
    which.add_argument("--gpu", action="store_true", help="ranks that wait for stubs of GPUs")
    parser.add_argument("--only", default="", help="scenario ids or list numbers, comma separated")
    parser.add_argument("--framework", default="", help="torch,mpi,jax,spawn,...")
    parser.add_argument("--step", default="", help="step lengths in seconds, e.g. 0.2,2")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3, help="runs at the same time (default 3)")
    parser.add_argument("--results", type=Path, help="folder of the result files")
    parser.add_argument("--act", choices=("observe", "shutdown"), default="shutdown")
    parser.add_argument("--no-sensor", action="store_true", help="record the truth alone")
    parser.add_argument("--background", action="store_true", help="ranks that do more than train")
    parser.add_argument("--beside", default="", help="a command to run repeatedly meanwhile")
    parser.add_argument("--fresh", action="store_true", help="do runs again that have a result")
    parser.add_argument("--list", action="store_true", help="print the runs and stop")
    return parser.parse_args(argv)


def names(text: str) -> set[str]:
    """The parts of a comma separated list."""
    return {part.strip() for part in text.split(",") if part.strip()}


def chosen(args: argparse.Namespace) -> list[RunSpec]:
    """The runs that the command line asks for."""
    scenarios = GPU if args.gpu else plan.MATRIX
    runs = plan.quick_runs() if args.quick else plan.all_runs(args.repetitions, scenarios)
    only = names(args.only)
    steps = {float(step) for step in names(args.step)}
    chosen = plan.select(runs, only, names(args.framework), steps)
    return [replace(run, background=args.background) for run in chosen]


def is_done(path: Path) -> bool:
    """Whether there is a result; a run that could not be carried out is done again."""
    return path.exists() and not json.loads(path.read_text()).get("problem")


class Bench:
    """The runs of one invocation, their results and the progress shown."""

    def __init__(
        self, runs: list[RunSpec], args: argparse.Namespace, beside: Beside | None = None
    ) -> None:
        self._args, self._beside = args, beside
        name = "no-sensor" if args.no_sensor else "gpu" if args.gpu else "sensor"
        name = f"{name}-background" if args.background else name
        self._folder = args.results or RESULTS / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._runs = [run for run in runs if args.fresh or not is_done(self._path(run))]
        self._started = time.monotonic()
        self._done = 0
        self._lock = Lock()

    def _path(self, run: RunSpec) -> Path:
        path: Path = self._folder / f"{run.name}.json"
        return path

    def run_all(self) -> None:
        """Carry out what has no result yet."""
        print(f"{len(self._runs)} runs to do, results in {self._folder}", flush=True)
        pool = ThreadPoolExecutor(self._args.jobs)
        try:
            list(pool.map(self._one, range(len(self._runs)), self._runs))
        finally:
            # After Ctrl-C: finish what runs, begin nothing new.
            pool.shutdown(cancel_futures=True)

    def _one(self, number: int, run: RunSpec) -> None:
        reason = not_runnable(run)
        if reason is None and run.scenario.needs_sensor and self._args.no_sensor:
            reason = "is about the sensor itself"
        result: dict[str, Any]
        if reason is not None:
            result = {"name": run.name, "scenario": run.scenario.id, "not_runnable": reason}
            result |= {"framework": run.framework, "step_s": run.step_s}
        else:
            act = None if self._args.no_sensor else self._args.act
            result = execute(run, tag(os.getpid(), number), WORK, act)
        if self._beside:
            result["beside"] = self._beside.so_far()
        temporary = self._path(run).with_suffix(".new")
        temporary.write_text(json.dumps(result, indent=1))
        temporary.rename(self._path(run))
        self._progress(result)

    def _progress(self, result: dict[str, Any]) -> None:
        with self._lock:
            self._done += 1
            spent = time.monotonic() - self._started
            left_s = spent / self._done * (len(self._runs) - self._done)
            place = f"{self._done}/{len(self._runs)}"
            print(f"{place:>8} left {left_s / 60:4.0f} min  {one_line(result)}", flush=True)


def one_line(result: dict[str, Any]) -> str:
    """A result for the eye."""
    name = f"{result['name']:34}"
    if "not_runnable" in result:
        return f"{name} NOT RUNNABLE HERE: {result['not_runnable']}"
    ended = ", FALSE SHUTDOWN" if result.get("judgement", {}).get("false_shut_down") else ""
    if not result["valid"]:
        return f"{name} INVALID: {result['problem'] or result.get('effect')}{ended}"
    if result["act"] is None:
        truth = result["truth"]
        exits = ", ".join(f"rank {rank}: {code}" for rank, code, _ in truth["exits"])
        return f"{name} {result['effect']:10} {exits}"
    marks = result["judgement"]
    if not result["is_fault"]:
        return f"{name} {marks['false_verdicts']} false verdicts{ended}"
    if marks["verdict"] is None:
        return f"{name} MISSED"
    flags = "".join(
        " no" if marks[key] is False else " ok" for key in ("detected", "rank_right", "cause_right")
    )
    latency = f"{marks['latency_s']:6.2f} s" if marks["latency_s"] is not None else "   -"
    return f"{name}{flags} {latency} {marks['verdict']} {marks['cause']} rank {marks['named_rank']}"


def main(argv: list[str] | None = None) -> int:
    """Run the bench; 0 when every run was carried out, 2 for bad usage."""
    args = arguments(argv)
    runs = chosen(args)
    if not runs:
        print("faultbench: no run matches; see --list for the names", file=sys.stderr)
        return 2
    if args.list:
        for run in runs:
            print(run.name, "held out" if run.scenario.held_out else "")
        return 0
    if os.geteuid() != 0:
        print("faultbench: needs root (namespaces, control groups, BPF)", file=sys.stderr)
        return 2
    if not args.no_sensor and not SENSOR.exists():
        print(f"faultbench: {SENSOR} is missing; run `make build`", file=sys.stderr)
        return 2
    if args.beside and not shutil.which(shlex.split(args.beside)[0]):
        print(f"faultbench: --beside {args.beside}: no such program", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    WORK.mkdir(parents=True, exist_ok=True)
    remove_leftovers(WORK)
    try:
        with Beside(args.beside) if args.beside else nullcontext() as beside:
            Bench(runs, args, beside).run_all()
    except KeyboardInterrupt:
        print("faultbench: interrupted; run again to continue", file=sys.stderr)
        return 130
    finally:
        remove_leftovers(WORK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
