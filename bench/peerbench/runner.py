"""`tools/peerbench/run`: the same faults under each way to guard a job, on one machine, one after another.

Needs root, and what `tools/setup bench` installs. Results go to a folder, a file for each attempt; run it again
to continue. `--report` writes the tables and the chart from them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.faultbench.job import ROOT, SENSOR
from bench.faultbench.leftovers import tag
from bench.peerbench import daemons, report
from bench.peerbench.attempt import CULPRIT, FAULTS, Attempt, Fault
from bench.peerbench.figures import as_record, figures
from bench.peerbench.meter import Meter
from bench.peerbench.ways import WAYS, WORLD, Way

RESULTS = ROOT / ".bench/results/peers"
WORK = ROOT / ".bench/work"


def chosen(words: str, known: Iterable[str]) -> list[str]:
    """The names of a list with commas; all for an empty one. Raises SystemExit with code 2."""
    names, known = words.split(",") if words else list(known), list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"peerbench: no {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        raise SystemExit(2)
    return names


def attempt(way: Way, fault: Fault, number: int) -> dict[str, Any]:
    """Carry one out; its line of the results."""
    name = tag(os.getpid(), number)
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    load = os.getloadavg()[0]
    done = Attempt(way, fault, folder, name).carry_out()
    found = figures(done["events"], done["words"], CULPRIT, WORLD)
    cost = {
        "cores": done["cores"],
        "resident_bytes": done["resident_bytes"],
        "load": round(load, 1),
    }
    says = [f"{word['text']} (rank {word['rank']})" for word in done["words"]]
    record = as_record(way.name, fault.name, found, cost) | {"says": says[:8]}
    if found.again_s is None and not fault.is_quiet:
        record["log"] = (
            (folder / "job.log").read_text(errors="replace")[-2000:].replace(str(WORK), "")
        )
    shutil.rmtree(folder, ignore_errors=True)
    return record


def one_line(record: dict[str, Any]) -> str:
    """For the eye."""
    if FAULTS[record["fault"]].is_quiet:
        words = "ENDED A HEALTHY JOB" if record["ended_healthy"] else "left alone"
    else:
        words = ", ".join(
            f"{name} {'never' if record[key] is None else format(record[key], '.1f') + ' s'}"
            for name, key in (
                ("noticed", "detected_s"),
                ("named", "named_s"),
                ("trains", "again_s"),
            )
        )
        words += ", named the WRONG rank" if record["named_wrong"] else ""
    return f"{record['way']:14} {record['fault']:12} {words}"


def run(ways: list[str], faults: list[str], rounds: int, results: Path) -> None:
    """Do what has no result yet, the ways of a fault one after another."""
    number = 0
    for turn in range(rounds):
        for fault in faults:
            for way in ways:
                number += 1
                path = results / f"{fault}-{way}-{turn}.json"
                if path.exists():
                    continue
                record = attempt(WAYS[way], FAULTS[fault], number)
                path.write_text(json.dumps(record, indent=1) + "\n")
                print(one_line(record), flush=True)


def run_beside(ways: list[str], faults: list[str], rounds: int, results: Path) -> None:
    """The same with both daemons at work, and what they reported meanwhile."""
    state = WORK / "daemons"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    found = daemons.daemons()
    began_s = time.time()
    with daemons.running(found, state) as processes:
        meters = {name: Meter() for name in processes}
        for name, process in processes.items():
            meters[name].begin([process.pid])
        run(ways, faults, rounds, results)
        costs = {name: meter.end() for name, meter in meters.items()}
    for daemon in found:
        line = {
            "way": daemon.name,
            "hours": round((time.time() - began_s) / 3600, 2),
            "problem": daemon.problem,
        }
        line |= costs[daemon.name] | {"reported": [text for _, text in daemon.reported]}
        (results / f"daemon-{daemon.name}.json").write_text(json.dumps(line, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Run the bench, or write its report; 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="tools/peerbench/run", description=__doc__)
    parser.add_argument("--ways", default="", help=",".join(WAYS))
    parser.add_argument("--faults", default="", help=",".join(FAULTS))
    parser.add_argument("--rounds", type=int, default=3, help="attempts of each (default 3)")
    parser.add_argument(
        "--no-daemons", action="store_true", help="without node-problem-detector and gpud"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--fresh", action="store_true", help="do attempts again")
    parser.add_argument(
        "--report", action="store_true", help="write docs/bench/peers.svg from the results"
    )
    args = parser.parse_args(argv)
    if args.report:
        return report.write(args.results)
    ways, faults = chosen(args.ways, WAYS), chosen(args.faults, FAULTS)
    if os.geteuid() != 0 or not SENSOR.exists():
        print("peerbench: needs root and `make build`", file=sys.stderr)
        return 2
    if args.fresh:
        shutil.rmtree(args.results, ignore_errors=True)
    args.results.mkdir(parents=True, exist_ok=True)
    work = run if args.no_daemons else run_beside
    try:
        work(ways, faults, args.rounds, args.results)
    except subprocess.CalledProcessError as error:
        print(f"peerbench: {error}; or use --no-daemons", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
