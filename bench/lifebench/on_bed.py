"""`bench/lifebench/run-on-bed`: the phases of two hosts as labelled Jobs of two pods on the two nodes of a test bed.

Real kubelets, agents on both nodes and the controller, with the default policy. It brings up a test bed of its own and
takes it down.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from bench.lifebench.bed_job import BedPhase
from bench.lifebench.bed_outside import Outside, outside
from bench.lifebench.bed_watch import Watch
from bench.lifebench.phase import BadTableError, Phase
from bench.lifebench.results import Row, record, shown, summary, summary_shown
from bench.lifebench.runner import OWN, listed, table
from testbed.cluster.layout import Bed
from testbed.driver import agents, restarts
from testbed.driver.cluster import ROOT, Cluster, ClusterError, Namespace, made, titled

OUT = ROOT / ".bench/life-bed"
TESTBED = ROOT / "tools/testbed"
BED = "phases"
PROVIDED = {"torch", "mount"}
"""What a pod of the training image has, or can be given."""
Planned = tuple[Path, Phase, int, Namespace]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="bench/lifebench/run-on-bed", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="GLOB", help="names or kinds, comma separated"
    )
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="Jobs side by side (4)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each (1)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=600.0,
        help="begin no further phase after this many minutes",
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help="results (.bench/life-bed)"
    )
    parser.add_argument("--again", action="store_true", help="also what has a result in --out")
    parser.add_argument("--list", action="store_true", help="print the table and stop")
    args = parser.parse_args(argv)
    if args.jobs < 1 or args.repeat < 1 or args.minutes <= 0:
        parser.error("--jobs, --repeat and --minutes must be positive")
    return args


def on_nodes(only: str) -> list[tuple[Path, Phase]]:
    """The phases that a test bed of two nodes can run; raises BadTableError."""
    return [
        (folder, phase)
        for folder, phase in table([OWN], only)
        if phase.hosts == 2 and set(phase.needs) <= PROVIDED and not phase.stdin
    ]


def rows_of(path: Path) -> list[dict[str, object]]:
    """The rows of earlier runs; none where there is no file."""
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


@contextmanager
def test_bed(name: str) -> Iterator[Bed]:
    """A running test bed without job controllers, taken down at the end; raises ClusterError."""
    try:
        up = [str(TESTBED), "up", "--name", name, "--controllers", "none"]
        if subprocess.run(up, check=False).returncode != 0:
            raise ClusterError("tools/testbed up failed; its last lines are above")
        yield Bed.of_checkout(name)
    finally:
        subprocess.run([str(TESTBED), "down", "--name", name], check=False)


class BedBench:
    """The runs of one invocation, on a bed that is up."""

    def __init__(self, out: Path, until_s: float) -> None:
        self._out, self._until_s = out, until_s
        self._lock = Lock()
        self.rows: list[Row] = []

    def run_all(self, plan: Sequence[Planned], jobs: int, outside: Outside, watch: Watch) -> None:
        """Carry out those that can be begun in time."""
        with ThreadPoolExecutor(jobs) as pool:
            for number, planned in enumerate(plan):
                pool.submit(self._one, number, planned, outside, watch)

    def _one(self, number: int, planned: Planned, outside: Outside, watch: Watch) -> None:
        folder, phase, run, space = planned
        if time.monotonic() > self._until_s:
            return
        place = self._out / f"{phase.name}-{run}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            # An address is reused only after those of a whole round.
            row = BedPhase(phase, folder, place, space, outside, number).carry_out(run, watch)
        except (ClusterError, OSError, subprocess.SubprocessError) as error:
            row = Row(phase.name, phase.kind, run, problem=f"could not be run: {error}"[:400])
        shutil.rmtree(place / "work", ignore_errors=True)
        with self._lock:
            self.rows.append(row)
            with (self._out / "results.jsonl").open("a") as file:
                file.write(json.dumps(record(row)) + "\n")
            print(shown(row), flush=True)


def run(planned: Sequence[tuple[Path, Phase, int]], args: argparse.Namespace) -> list[Row]:
    """Bring everything up, run, take it down; raises ClusterError."""
    out: Path = args.out.resolve()
    began_s = time.monotonic()
    bench = BedBench(out, began_s + 60 * args.minutes)
    with ExitStack() as stack:
        bed = stack.enter_context(test_bed(BED))
        cluster = Cluster(bed.kubeconfig, bed.bin / "kubectl")
        cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
        there = stack.enter_context(outside(bed, len(cluster.get("nodes"))))
        watch = stack.enter_context(Watch(cluster.kubeconfig))
        plan = [
            (folder, phase, number, stack.enter_context(made(titled(cluster, phase.name))))
            for folder, phase, number in planned
        ]
        spaces = [space for *_, space in plan]
        stack.enter_context(agents.running(cluster, out))
        log = out / "controller.log"
        stack.enter_context(restarts.running(spaces[0], log, others=spaces[1:]))
        bench.run_all(plan, args.jobs, there, watch)
    return bench.rows


def main(argv: Sequence[str] | None = None) -> int:
    """0 if no job was ended, 1 if one was or a run was invalid, 2 for bad usage or a bed that does not come up."""
    args = arguments(argv)
    results = args.out / "results.jsonl"
    try:
        phases = on_nodes(args.only)
        known = set() if args.again else {(row["phase"], row["run"]) for row in rows_of(results)}
    except (BadTableError, OSError, ValueError, KeyError) as error:
        print(f"lifebench: {error}", file=sys.stderr)
        return 2
    if args.list:
        print(listed(phases))
        return 0
    planned = [
        (folder, phase, number)
        for number in range(args.repeat)
        for folder, phase in phases
        if (phase.name, number) not in known
    ]
    if os.geteuid() != 0 or not planned:
        why = "needs root" if planned else "nothing is left to run; see --list and --again"
        print(f"lifebench: {why}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        rows = run(planned, args)
    except ClusterError as error:
        print(f"lifebench: {error}", file=sys.stderr)
        return 2
    print(summary_shown(summary(rows)))
    return 1 if any(row.ended or row.problem for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
