"""`bench/lifebench/run`: healthy jobs under an armed sensor, which must end none of them."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from bench.faultbench.job import SENSOR
from bench.faultbench.leftovers import tag
from bench.lifebench.job import RunningPhase
from bench.lifebench.needs import ROOT, not_runnable
from bench.lifebench.phase import TABLE, BadTableError, Phase, chosen, phases_of
from bench.lifebench.results import Row, record, shown, summary, summary_shown

OWN = Path(__file__).with_name("phases")
OUT = ROOT / ".bench/life"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="bench/lifebench/run", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="GLOB", help="names or kinds, comma separated"
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each (1)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs side by side (2)")
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help="results (.bench/life)"
    )
    parser.add_argument(
        "--phases",
        type=Path,
        action="append",
        metavar="FOLDER",
        help="a folder with a phases.toml, instead of our own; may be repeated",
    )
    parser.add_argument("--act", choices=("observe", "shutdown"), default="shutdown")
    parser.add_argument("--no-sensor", action="store_true", help="only whether the jobs complete")
    parser.add_argument("--quiet", action="store_true", help="nothing about single phases")
    parser.add_argument("--list", action="store_true", help="print the table and stop")
    args = parser.parse_args(argv)
    if args.jobs < 1 or args.repeat < 1:
        parser.error("--jobs and --repeat must be at least 1")
    return args


def table(folders: list[Path], only: str) -> list[tuple[Path, Phase]]:
    """The chosen phases with their folders; raises BadTableError."""
    found = []
    for folder in folders:
        path = folder / TABLE
        try:
            phases = phases_of(path.read_text())
        except OSError as error:
            raise BadTableError(f"{path}: {error.strerror}") from None
        except BadTableError as error:
            raise BadTableError(f"{path}: {error}") from None
        found += [(folder.resolve(), phase) for phase in chosen(phases, only)]
    names = [phase.name for _, phase in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadTableError(f"{twice[0]} is in two folders; use --only")
    return found


class Bench:
    """The runs of one invocation."""

    def __init__(self, phases: list[tuple[Path, Phase]], args: argparse.Namespace) -> None:
        self._args = args
        self._act = None if args.no_sensor else args.act
        self._plan = [
            (folder, phase, run) for run in range(args.repeat) for folder, phase in phases
        ]
        self._rows: list[Row] = []
        self._lock = Lock()
        self._started_s = time.monotonic()
        self._out: Path = args.out.resolve()
        self._out.mkdir(parents=True, exist_ok=True)
        self._results = self._out / "results.jsonl"
        self._results.write_text("")

    def run_all(self) -> list[Row]:
        """Carry out all; after Ctrl-C what runs is finished and nothing begun."""
        pool = ThreadPoolExecutor(self._args.jobs)
        try:
            list(pool.map(self._one, range(len(self._plan)), self._plan))
        finally:
            pool.shutdown(cancel_futures=True)
        return self._rows

    def _one(self, number: int, planned: tuple[Path, Phase, int]) -> None:
        folder, phase, run = planned
        if reason := not_runnable(phase):
            row = Row(phase.name, phase.kind, run, skipped=reason)
        else:
            place = self._out / f"{phase.name}-{run}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            try:
                name = tag(os.getpid(), number)
                row = RunningPhase(phase, folder, place, name, self._act).carry_out(run)
            except (OSError, subprocess.CalledProcessError) as error:
                row = Row(phase.name, phase.kind, run, problem=f"could not be started: {error}")
            shutil.rmtree(place / "work", ignore_errors=True)
        with self._lock:
            self._rows.append(row)
            with self._results.open("a") as file:
                file.write(json.dumps(record(row)) + "\n")
            self._progress(row)

    def _progress(self, row: Row) -> None:
        spent_s = time.monotonic() - self._started_s
        left_s = spent_s / len(self._rows) * (len(self._plan) - len(self._rows))
        words = "" if self._args.quiet else shown(row)
        place = f"{len(self._rows)}/{len(self._plan)}"
        print(f"{place:>7} left {left_s / 60:3.0f} min  {words}", flush=True)


def listed(phases: list[tuple[Path, Phase]]) -> str:
    """The table for the eye."""
    lines = []
    for _, phase in phases:
        where = f"{phase.ranks} ranks" + (f" on {phase.hosts} hosts" if phase.hosts > 1 else "")
        needs = f"; needs {', '.join(phase.needs)}" if phase.needs else ""
        lines.append(
            f"{phase.name:30} {phase.kind:14} {where}, {phase.lasts_s:.0f} s: {phase.normal}{needs}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """0 if no job was ended, 1 if one was or a run was invalid, 2 for bad usage."""
    args = arguments(argv)
    try:
        phases = table(args.phases or [OWN], args.only)
    except BadTableError as error:
        print(f"lifebench: {error}", file=sys.stderr)
        return 2
    if not phases:
        print("lifebench: no phase matches; see --list", file=sys.stderr)
        return 2
    if args.list:
        print(listed(phases))
        return 0
    if os.geteuid() != 0 or not (args.no_sensor or SENSOR.exists()):
        print("lifebench: needs root and `make build`", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    bench = Bench(phases, args)
    try:
        rows = bench.run_all()
    except KeyboardInterrupt:
        print("lifebench: interrupted", file=sys.stderr)
        return 130
    found = summary(rows)
    (args.out / "summary.json").write_text(json.dumps(found) + "\n")
    if not args.quiet:
        print("\n" + "\n".join(shown(row) for row in sorted(rows, key=lambda row: row.phase)))
    print(summary_shown(found))
    return 1 if found["ended"] or found["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
