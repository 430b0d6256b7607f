"""Step time of one training that runs all the time, while sensors come and go in blocks."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.costbench.processes import STEADY_S, Group, Meter, Sensor, Training, cpu_ns, usage_over

BASELINE = "absent"
MODES = ("idle", "attached", "fault")
THREAD_COUNT, PROCESS_COUNT = 2_500, 20
# A sleep for the device, then real work of fixed size: work that stops at a time of day, as
# --cpu-share does it, would hide anything that takes the core away meanwhile.
STEP = ("--step-s", "0.02", "--cpu-share", "0", "--workers", "0")
SETTLE_S = 2.0


class Stage:
    """The training with its parked threads, a sleeper, and a stopped process that calls itself a rank."""

    def __init__(self, stack: ExitStack, folder: Path, load: str) -> None:
        node, quiet = Group("node"), Group("quiet")
        stack.callback(node.close)
        stack.callback(quiet.close)
        training = Group("training", node)
        stack.callback(training.close)
        decoys = Group("decoy", node)
        stack.callback(decoys.close)
        # helpers next to the ranks, like data loaders and a framework's own threads: not ranks
        training.park(load, THREAD_COUNT, PROCESS_COUNT)
        self.training = Training(training, folder / "training", *STEP)
        quiet.park(load, 1, 1)
        (decoy,) = decoys.park(load, 1, 1, ranks=(2, 3))
        os.kill(decoy, signal.SIGSTOP)
        self.watched = {"idle": quiet, "attached": training, "fault": node}

    def block(self, mode: str, block_s: float) -> dict[str, Any]:
        """One block: the first seconds, in which the sensor starts and settles, are not measured."""
        sensor = Sensor(self.watched[mode]) if mode in self.watched else None
        time.sleep(SETTLE_S)
        meter = Meter(sensor.pid) if sensor else None
        ranks = self.training.rank_pids()
        begin_s, begin_ns = time.monotonic(), cpu_ns(ranks)
        time.sleep(block_s - SETTLE_S)
        end_s, rank_ns = time.monotonic(), cpu_ns(ranks) - begin_ns
        usage = meter.read() if meter else None
        ends = self.training.step_ends(begin_s, end_s)
        steps = [after - before for before, after in pairwise(ends)]
        return {
            "mode": mode,
            "step_count": len(steps),
            "mean_step_s": round(fmean(steps), 7),
            "median_step_s": round(median(steps), 7),
            "rank_cpu_s_per_step": round(rank_ns / 1e9 * fmean(steps) / (end_s - begin_s), 8),
            "load_average": os.getloadavg()[0],
            "verdicts": sensor.end() if sensor else [],
            "agent": asdict(usage) if usage else None,
        }

    def steady(self, window_s: float) -> dict[str, Any]:
        """The sensor over the healthy training for longer, as it is found most of the time."""
        sensor = Sensor(self.watched["attached"])
        time.sleep(STEADY_S)
        usage = usage_over(sensor.pid, window_s)
        return {"window_s": window_s, "verdicts": sensor.end(), "agent": asdict(usage)}
