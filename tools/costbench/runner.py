"""Measures what the sensor costs: the same training without it, beside it, and under it.

One training of two ranks (torch + gloo, 50 ms steps) with 2,500 parked threads runs all the time.
In each round the four modes come in a random order, so that slow changes of the machine hit all
alike:

  absent    no sensor
  idle      a sensor is loaded and watches another job that does next to nothing
  attached  a sensor watches the training
  fault     as attached, and a second sensor watches a second job with a stopped rank

Raw numbers go to docs/bench/costbench.json, the report to docs/bench/costbench.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.costbench import report
from tools.costbench.processes import (
    ROOT,
    Group,
    Sensor,
    Training,
    build_load,
    cpu_ns,
    memory_kib,
)

MODES = ("absent", "idle", "attached", "fault")
THREAD_COUNT = 2500
THREAD_COUNTS = (0, 2500, 10_000)
STEP = ("--step-s", "0.05", "--cpu-share", "0.5")
SYSCALL_TIMINGS = 3
SETTLE_S = 3.0

Measurement = dict[str, Any]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=30, help="rounds of four modes")
    parser.add_argument("--window", type=float, default=8.0, help="seconds measured per mode")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 4 s: only a smoke test")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "bench" / "costbench")
    return parser.parse_args()


class Bench:
    """Everything that runs during the measurement."""

    def __init__(self, stack: ExitStack, window_s: float) -> None:
        self._window_s = window_s
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kcover-cost-")))
        self._load = build_load(folder)
        self._training_group = Group("training")
        stack.callback(self._training_group.close)
        self.threads = self._park(THREAD_COUNT, self._training_group)
        self._training = Training(self._training_group, folder / "training", *STEP)
        stack.callback(self._training.end)
        self._quiet_group = Group("quiet")
        stack.callback(self._quiet_group.close)
        self._quiet_group.start(["/bin/sh", "-c", "while sleep 1; do :; done"])
        self._faulty_group = Group("faulty")
        faulty = Training(self._faulty_group, folder / "faulty", "--step-s", "0.5")
        stack.callback(faulty.end)
        self._victim = faulty.rank_pids()[0]
        self._calls = subprocess.Popen(
            [self._load, "syscalls"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        stack.callback(self._calls.wait)
        stack.callback(self._calls.kill)

    def _park(self, count: int, group: Group) -> subprocess.Popen[str]:
        parked = group.start([self._load, "threads", str(count)], stdout=subprocess.PIPE)
        assert parked.stdout is not None
        if parked.stdout.readline() != "ready\n":
            raise SystemExit(f"this machine does not give {count} threads to a process")
        return parked

    def measure(self, mode: str) -> Measurement:
        """One window in one mode."""
        sensors: list[Sensor] = []
        if mode == "idle":
            sensors.append(Sensor(self._quiet_group))
        if mode in ("attached", "fault"):
            sensors.append(Sensor(self._training_group))
        if mode == "fault":
            sensors.append(Sensor(self._faulty_group))
            time.sleep(SETTLE_S)
            os.kill(self._victim, signal.SIGSTOP)
        time.sleep(SETTLE_S)
        try:
            return {"mode": mode, **self._window(sensors), "syscall_ns": self._time_calls()}
        finally:
            os.kill(self._victim, signal.SIGCONT)
            told = [line for sensor in sensors for line in sensor.end()]
            verdicts = [line["verdict"] for line in told if line["event"] == "verdict"]
            print(f"  {mode}: {verdicts or 'no verdict'}", flush=True)

    def _window(self, sensors: list[Sensor]) -> Measurement:
        ranks, agents = self._training.rank_pids(), [sensor.pid for sensor in sensors]
        begin_s = time.monotonic()
        rank_ns, agent_ns = cpu_ns(ranks), [cpu_ns([pid]) for pid in agents]
        time.sleep(self._window_s)
        end_s = time.monotonic()
        steps = self._training.steps(begin_s, end_s)
        return {
            "step_s": (steps[-1] - steps[0]) / (len(steps) - 1),
            "step_count": len(steps) - 1,
            "rank_cpu_s_per_step": (cpu_ns(ranks) - rank_ns) / 1e9 / len(steps),
            "agent_cpu_share": [
                (cpu_ns([pid]) - before) / 1e9 / (end_s - begin_s)
                for pid, before in zip(agents, agent_ns, strict=True)
            ],
            "agent_rss_kib": [memory_kib(pid, "VmRSS") for pid in agents],
            "agent_peak_kib": [memory_kib(pid, "VmHWM") for pid in agents],
            "agent_start_s": [sensor.start_s for sensor in sensors],
            "load_average": os.getloadavg()[0],
        }

    def _time_calls(self) -> list[float]:
        stdin, stdout = self._calls.stdin, self._calls.stdout
        assert stdin is not None
        assert stdout is not None
        found = []
        for _ in range(SYSCALL_TIMINGS):
            stdin.write("go\n")
            found.append(float(stdout.readline()))
        return found

    def by_threads(self, count: int) -> Measurement:
        """The sensor alone with a training and so many parked threads."""
        extra = count - THREAD_COUNT
        if extra < 0:
            self.threads.kill()
            self.threads.wait()
        more = self._park(extra, self._training_group) if extra > 0 else None
        sensor = Sensor(self._training_group)
        time.sleep(SETTLE_S)
        try:
            return {"thread_count": count, **self._window([sensor])}
        finally:
            sensor.end()
            if more is not None:
                more.kill()
                more.wait()


def machine() -> Measurement:
    """Where this was measured."""
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": model[0] if model else "",
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "unix": time.time(),
    }


def main() -> None:
    """Measure, write the raw numbers, write the report."""
    args = arguments()
    rounds, window_s = (3, 4.0) if args.quick else (args.rounds, args.window)
    chance = random.Random(rounds)
    raw: dict[str, Any] = {"machine": machine(), "window_s": window_s, "rounds": [], "threads": []}
    with ExitStack() as stack:
        bench = Bench(stack, window_s)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            modes = chance.sample(MODES, k=len(MODES))
            raw["rounds"].append([bench.measure(mode) for mode in modes])
        # the fewest threads last: those parked for the rounds are then ended
        for count in sorted(THREAD_COUNTS, reverse=True):
            print(f"{count} threads", flush=True)
            raw["threads"].append(bench.by_threads(count))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    args.output.with_suffix(".md").write_text(report.text(raw))


if __name__ == "__main__":
    main()
