"""Train four real ranks under kcover-ebpf, hurt one of them, and see who is named: `make demo`.

The environment's FAULT chooses what happens to the rank. Exit code 0 if the sensor named the
right rank, 1 if it did not, 2 if the demo could not be carried out.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from bench.faultbench import execute, prepare
from bench.faultbench.capabilities import not_runnable
from bench.faultbench.job import ROOT, SENSOR, Job, launch_command, tag_value
from bench.faultbench.leftovers import remove_leftovers, tag
from bench.faultbench.live import Live, RunFailed, kill_tagged
from bench.faultbench.plan import SCENARIOS, RunSpec
from bench.faultbench.truth import first
from testbed.workloads import network
from testbed.workloads.training import EventLog

SCENARIO = {
    "stop": "06-stop",
    "kill": "01-kill",
    "lock": "15-two-locks",
    "loop": "11-loop-python",
    "skip": "13-skip-loss",
    "blackhole": "24-drop-both",
    "loader": "17-worker-sleep",
    "storage": "20-fuse-rank",
}
STEP_S = 0.5
WATCH_S = 60.0
GLOO_TIMEOUT_S = 1800
HEADLINE = re.compile(
    r"\[kcover [\d:]+\] (HUNG|DEADLOCK|LOST_LINK|DEVICE_FAULT|CRASHED|SLOW)\s+(?:rank (\d+))?"
)


class ShownJob(Job):
    """The job with everything on the terminal, as a user would run it; remembers fault verdicts."""

    form = "text"

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self.verdicts: list[tuple[float, str, int | None]] = []
        super().__init__(command, "shutdown", name, folder, "")

    def take(self, line: str) -> None:
        """Show a line of the sensor, and note a verdict's time, kind and rank."""
        print(line, flush=True)
        found = HEADLINE.match(line)
        if found:
            rank = int(found[2]) if found[2] else None
            self.verdicts.append((time.time(), found[1], rank))

    def folder(self) -> Path:
        """Snapshots stay here to be examined."""
        folder = ROOT / "build/demo"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log_file(self) -> IO[str]:
        """The job's own output goes to our standard error."""
        return os.fdopen(os.dup(2), "w")


def say(text: str) -> None:
    """A line of the demo itself, set off from the job's and the sensor's."""
    print(f"\n=== {text}", flush=True)


def conclude(live: Live, job: ShownJob, fault: str) -> int:
    """Say whether the verdict was right; returns the exit code."""
    begun = first(live.events(), "fault")
    if begun is None:
        raise RunFailed("the fault did not happen")
    culprit = live.run.culprit
    at = time.strftime("%H:%M:%S", time.localtime(begun["unix"]))
    say(f"FAULT={fault}: {live.run.scenario.title}; rank {culprit} was hit at {at}")
    after = [verdict for verdict in job.verdicts if verdict[0] >= begun["unix"]]
    if not after:
        say(f"WRONG: no verdict within {WATCH_S:.0f} s")
        return 1
    kind, rank = after[-1][1:]
    first_s = after[0][0] - begun["unix"]
    is_right = rank == culprit
    named = "no rank" if rank is None else f"rank {rank}"
    mark = "RIGHT" if is_right else "WRONG"
    say(f"{mark}: {kind} named {named}; first verdict {first_s:.1f} s after the fault")
    say(f"without a sensor, gloo gives up a silent hang after {GLOO_TIMEOUT_S} s")
    return 0 if is_right else 1


def demonstrate(fault: str, folder: Path, undo: ExitStack) -> int:
    """Carry out the demo; returns the exit code, raises RunFailed."""
    scenario = next(s for s in SCENARIOS if s.id == SCENARIO[fault])
    run = RunSpec(scenario, "torch", STEP_S)
    reason = not_runnable(run)
    if reason:
        raise RunFailed(reason)
    name = tag(os.getpid(), 0)
    undo.callback(network.remove, name)
    undo.callback(kill_tagged, tag_value(name))
    jobs: list[Job] = []
    live = Live(run, name, folder, EventLog(str(folder / "events.jsonl"), None), undo, jobs)
    if scenario.prepare:
        live.path = str(prepare.PREPARE[scenario.prepare](live))
    say(f"{run.world} ranks of PyTorch + gloo under kcover-ebpf run --act shutdown")
    command = launch_command(run, name, live.events_path, live.path, healthy=False)
    job = ShownJob([*command, "--verbose"], folder, name)
    jobs.append(job)
    undo.callback(job.interrupt)
    live.wait_for(lambda: first(live.events(), "ready") is not None, 180, "the training")
    execute.inject(live)
    say(f"now: {scenario.title} (rank {run.culprit})")
    live.sleep(WATCH_S)
    time.sleep(1)
    return conclude(live, job, fault)


def main() -> int:
    """Check what is needed, then run."""
    fault = os.environ.get("FAULT") or "stop"
    if fault not in SCENARIO:
        print(f"demo: FAULT={fault}: choose one of {', '.join(SCENARIO)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0 or not SENSOR.exists():
        print("demo: run `make demo` as root", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kcover-demo-") as folder, ExitStack() as undo:
        remove_leftovers(Path(folder))
        try:
            return demonstrate(fault, Path(folder), undo)
        except RunFailed as error:
            print(f"demo: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
