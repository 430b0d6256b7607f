"""`bench/faultbench/trace-after`: how well `kcover-ebpf trace` explains a job that is hung already.

Each job trains without any detector, is hurt, and is left alone until it hangs. Only then `trace`
is started, so it has seen nothing of the healthy job. Who is to blame was recorded by the injector.
With `--quiet`, jobs that are well are traced in the middle of a quiet phase: none may be accused.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.faultbench import prepare
from bench.faultbench.capabilities import not_runnable
from bench.faultbench.execute import inject, start_jobs
from bench.faultbench.job import ROOT, SENSOR, Job, tag_value
from bench.faultbench.judge import named_rank, rank_is_right
from bench.faultbench.leftovers import remove_leftovers, tag
from bench.faultbench.live import Live, RunFailed, kill_tagged
from bench.faultbench.plan import RunSpec, all_runs, select
from bench.faultbench.runner import names
from bench.faultbench.scenario import Effect
from bench.faultbench.truth import Event, first
from testbed.workloads import network
from testbed.workloads.training import EventLog

RESULTS = ROOT / ".bench/results/after"
WORK = ROOT / ".bench/work"
HANG_LIMIT_S = 90.0
INTO_PHASE_S = 12.0
"""Seconds that others have waited in a quiet phase before the trace: a short wait would show nothing."""
TRACE_LIMIT_S = 120.0


def hangs(run: RunSpec) -> bool:
    """Whether this fault may leave a job that is alive and makes no step."""
    scenario = run.scenario
    return scenario.is_fault and Effect.STALLED in scenario.effects and not scenario.needs_sensor


def is_quiet(run: RunSpec) -> bool:
    """Whether this is a healthy phase that the training itself goes through, so that it can be traced."""
    scenario = run.scenario
    return not scenario.is_fault and bool(scenario.inject or scenario.host == "nothing")


def silent_s(events: list[Event]) -> float | None:
    """Seconds since the last step of any rank, or since the fault if that is later; None before it."""
    fault = first(events, "fault")
    if fault is None:
        return None
    last = max((e["unix"] for e in events if e["event"] == "step"), default=0.0)
    return time.time() - max(float(fault["unix"]), float(last))


def await_hang(live: Live) -> bool:
    """Wait until no rank has made a step for three steps' time (at least 10 s); False if it never hangs."""
    calm_s = max(10.0, 3 * live.run.step_s)
    end = time.monotonic() + HANG_LIMIT_S + 4 * live.run.step_s
    while time.monotonic() < end:
        if not live.is_alive():
            return False
        quiet_s = silent_s(live.events())
        if quiet_s is not None and quiet_s >= calm_s:
            return True
        time.sleep(0.1)
    return False


def survivors(live: Live) -> int:
    """Ranks, without the culprit, that live: a zombie that no process waits for does not."""
    alive = 0
    for rank in range(live.run.world):
        starts = [e for e in live.events() if e["event"] == "start" and e["rank"] == rank]
        if rank == live.run.culprit or not starts:
            continue
        try:
            stat = Path(f"/proc/{starts[-1]['pid']}/stat").read_text()
        except OSError:
            continue
        alive += stat.rpartition(")")[2].split()[0] not in "ZX"
    return alive


def still_hangs(live: Live, begun_s: float) -> bool:
    """Whether all victims live and made no step since the trace began: else it was no hang."""
    steps = [e for e in live.events() if e["event"] == "step" and e["unix"] >= begun_s]
    return live.is_alive() and not steps and survivors(live) == live.run.world - 1


def traced(live: Live) -> dict[str, Any]:
    """Run `trace` on the job's first process; its verdict line, exit code and duration."""
    pid = str(live.launcher()["pid"])
    command = [str(SENSOR), "trace", "--pid", pid, "-o", "json"]
    begin = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TRACE_LIMIT_S, check=False
    )
    took_s = time.monotonic() - begin
    line = json.loads(done.stdout) if done.stdout else {}
    return {"line": line, "code": done.returncode, "took_s": round(took_s, 3), "said": done.stderr}


def execute(run: RunSpec, name: str) -> dict[str, Any]:
    """Carry out one run; the result says `hung` False where there was nothing to explain."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    jobs: list[Job] = []
    result: dict[str, Any] = {
        "name": run.name,
        "scenario": run.scenario.id,
        "framework": run.framework,
        "step_s": run.step_s,
        "culprit_rank": run.culprit if run.scenario.is_fault else None,
        "hung": False,
        "healthy": not run.scenario.is_fault,
        "problem": None,
    }
    with ExitStack() as undo:
        undo.callback(kill_tagged, tag_value(name))
        try:
            log = EventLog(str(folder / "events.jsonl"), None)
            live = Live(run, name, folder, log, undo, jobs)
            if run.scenario.prepare:
                live.path = str(prepare.PREPARE[run.scenario.prepare](live))
            start_jobs(live, jobs, None)
            inject(live)
            result |= explain_phase(live) if is_quiet(run) else explain_hang(live)
        except (RunFailed, OSError, ValueError, subprocess.TimeoutExpired) as error:
            result["problem"] = f"{type(error).__name__}: {error}"
        for job in jobs:
            job.interrupt()
    network.remove(name)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def explain_hang(live: Live) -> dict[str, Any]:
    """The marks of a trace of a job that hangs, and whether it did so all the time."""
    if not (await_hang(live) and still_hangs(live, time.time())):
        return {"hung": False}
    begun_s = time.time()
    seen = marks(live.run, traced(live))
    return seen | {"hung": still_hangs(live, begun_s)}


def explain_phase(live: Live) -> dict[str, Any]:
    """The marks of a trace of a job in a quiet phase."""
    live.sleep(INTO_PHASE_S)
    return marks(live.run, traced(live))


def marks(run: RunSpec, seen: dict[str, Any]) -> dict[str, Any]:
    """The answer of `trace` next to the truth."""
    line = seen["line"]
    found = bool(line) and line["verdict"] not in ("WORKING", "UNKNOWN")
    # a rank is also named where the verdict is UNKNOWN: the one that the others wait for
    says = found or named_rank(line) is not None
    return {
        "verdict": line.get("verdict"),
        "cause": line.get("cause"),
        "named_rank": named_rank(line),
        "found": found,
        "rank_right": says and rank_is_right(run, line),
        "cause_right": says and line.get("cause") in run.scenario.causes,
        "code": seen["code"],
        "took_s": seen["took_s"],
        "load": round(os.getloadavg()[0], 1),
        "said": seen["said"][-300:],
        # where a run keeps its files on this machine is of no interest
        "evidence": [item["text"].replace(f"{WORK}/", "") for item in line.get("evidence", [])],
        "waits": line.get("waits", []),
    }


def one_line(result: dict[str, Any]) -> str:
    """A result for the eye."""
    name = f"{result['name']:34}"
    if result.get("not_runnable"):
        return f"{name} NOT RUNNABLE HERE: {result['not_runnable']}"
    if result.get("healthy") and not result["problem"]:
        right = "FALSE" if result["found"] else "ok"
        reported = f"{result['verdict']} {result['cause']} rank {result['named_rank']}"
        return f"{name} {right:5} {result['took_s']:5.2f} s {reported}"
    if result["problem"] or not result["hung"]:
        return f"{name} NO HANG: {result['problem'] or 'the job continued or ended'}"
    right = "ok" if result["rank_right"] else "WRONG"
    reported = f"{result['verdict']} {result['cause']} rank {result['named_rank']}"
    return (
        f"{name} {right:5} {result['took_s']:5.2f} s {reported} (truth: {result['culprit_rank']})"
    )


class Bench:
    """The runs of one invocation."""

    def __init__(self, runs: list[RunSpec], results: Path, jobs: int) -> None:
        self._results, self._jobs = results, jobs
        results.mkdir(parents=True, exist_ok=True)
        self._runs = [run for run in runs if not self._path(run).exists()]

    def _path(self, run: RunSpec) -> Path:
        return self._results / f"{run.name}.json"

    def run_all(self) -> None:
        """Carry out what has no result yet."""
        print(f"{len(self._runs)} runs to do, results in {self._results}", flush=True)
        pool = ThreadPoolExecutor(self._jobs)
        try:
            list(pool.map(self._one, range(len(self._runs)), self._runs))
        finally:
            pool.shutdown(cancel_futures=True)

    def _one(self, number: int, run: RunSpec) -> None:
        reason = not_runnable(run)
        result: dict[str, Any]
        if reason is not None:
            result = {"name": run.name, "not_runnable": reason, "hung": False, "problem": None}
        else:
            result = execute(run, tag(os.getpid(), number))
        if not result["problem"]:
            temporary = self._path(run).with_suffix(".new")
            temporary.write_text(json.dumps(result, indent=1))
            temporary.rename(self._path(run))
        print(one_line(result), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the bench; 0 when every run was carried out, 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="bench/faultbench/trace-after", description=__doc__)
    parser.add_argument("--only", default="", help="scenario ids or list numbers, comma separated")
    parser.add_argument("--framework", default="", help="torch,mpi,jax,spawn,...")
    parser.add_argument("--quiet", action="store_true", help="healthy jobs, in quiet phases")
    parser.add_argument("--step", default="0.2,2", help="step lengths in seconds")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default 2)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args(argv)
    steps = {float(step) for step in names(args.step)}
    runs = select(all_runs(), names(args.only), names(args.framework), steps)
    runs = [run for run in runs if (is_quiet(run) if args.quiet else hangs(run))]
    if not runs or os.geteuid() != 0 or not SENSOR.exists():
        print("after: no run matches, or not root, or `make build` is missing", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    WORK.mkdir(parents=True, exist_ok=True)
    remove_leftovers(WORK)
    Bench(runs, args.results, args.jobs).run_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
