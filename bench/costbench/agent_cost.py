"""What the sensor itself uses: CPU, memory, one pass, the start; and what it takes from strangers."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import asdict
from statistics import median
from typing import Any

from bench.costbench.processes import SENSOR, STEADY_S, Group, Sensor, usage_over
from kcover_ebpf.host import cgroups
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.watching.loop import Sensor as SensorLoop

_PASS_PAUSE_S = 0.05
_TIMINGS = 5
_SETTLE_S = 3.0


def by_threads(load: str, threads: int, processes: int, window_s: float) -> dict[str, Any]:
    """The sensor over a job of ranks with parked threads, and the CPU time of single passes.

    Measured twice, each for `window_s`: once it is attached (`agent`), and from its 70th second on, or as soon as the
    first window is over (`settled`).
    """
    group = Group("crowd")
    try:
        group.park(load, threads, processes, ranks=(0, processes))
        sensor = Sensor(group)
        time.sleep(_SETTLE_S)
        usage = usage_over(sensor.pid, window_s)
        time.sleep(max(0.0, STEADY_S - _SETTLE_S - window_s))
        settled = usage_over(sensor.pid, window_s)
        verdicts = sensor.end()
        passes = _passes_ms(group)
    finally:
        group.close()
    return {
        "thread_count": threads,
        "process_count": processes,
        "window_s": window_s,
        "verdicts": verdicts,
        "agent": asdict(usage),
        "settled": asdict(settled),
        "pass_ms": passes,
    }


def _passes_ms(group: Group, count: int = 50) -> list[float]:
    """CPU milliseconds of passes of the sensor's own loop: sampled, decoded, judged."""
    found = []
    with KernelSampler.open(Settings()) as kernel:
        target = cgroups.CgroupTarget(group.path, "crowd", frozenset({os.getpid()}))
        loop = SensorLoop(kernel, target, Settings())
        for number in range(count + 2):
            begin_ns = time.thread_time_ns()
            loop.step()
            if number >= 2:  # the first two meet every thread for the first time
                found.append(round((time.thread_time_ns() - begin_ns) / 1e6, 4))
            time.sleep(_PASS_PAUSE_S)
    return found


def syscalls(load: str, order: list[str]) -> list[dict[str, Any]]:
    """A loop of getppid(2) while a sensor watches another process; blocks in the given order."""
    group = Group("stranger")
    group.park(load, 1, 1)
    calls = subprocess.Popen(
        [load, "syscalls"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        return [_syscall_block(calls, mode, group) for mode in order]
    finally:
        calls.kill()
        calls.communicate()
        group.close()


def _syscall_block(calls: subprocess.Popen[str], mode: str, group: Group) -> dict[str, Any]:
    assert calls.stdin is not None
    assert calls.stdout is not None
    sensor = Sensor(group) if mode == "attached" else None
    found = []
    for _ in range(_TIMINGS):
        calls.stdin.write("go\n")
        found.append(float(calls.stdout.readline()))
    if sensor:
        sensor.end()
    # the fastest of a few: what disturbs a loop only ever makes it slower
    return {"mode": mode, "call_ns": min(found), "median_call_ns": median(found)}


def starts(group: Group, count: int) -> dict[str, Any]:
    """Seconds of `run -- true`; from exec to the first line, and to the first verdict on a group."""
    whole, ready, verdicts, reported = [], [], [], set()
    for _ in range(count):
        begin_s = time.monotonic()
        subprocess.run(
            [str(SENSOR), "run", "--", "true"], check=True, capture_output=True, timeout=60
        )
        whole.append(round(time.monotonic() - begin_s, 4))
        sensor = Sensor(group)
        text, verdict_s = sensor.first_verdict()
        ready.append(round(sensor.start_s, 4))
        verdicts.append(round(verdict_s, 4))
        reported.add(text)
        sensor.end()
    return {"true_s": whole, "ready_s": ready, "verdict_s": verdicts, "reported": sorted(reported)}
