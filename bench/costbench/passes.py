"""The sensor's own loop as a process that writes down when each pass was: half of what the paired test needs.

Every second event is a blank: it wakes up at such a time and does nothing. What a machine does to
steps at any moment it does to both kinds alike, so the difference is the pass.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.costbench.processes import ROOT, Group, Training
from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.devices.watch import DeviceWatch
from kcover_ebpf.host import cgroups
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.watching.loop import Sensor

PERIOD_S = 1.0
"""Between two passes: the pace of the sensor while all is well. A blank lies between each two."""
_JITTER_S = 0.2
_SETTLE_PASSES = 4
_END_S = 30.0


def measure(training: Training, group: Group, window_s: float) -> dict[str, Any]:
    """The passes of a sensor over a group: [CLOCK_MONOTONIC seconds, real], and the ends of all steps."""
    command = [sys.executable, "-m", "bench.costbench.passes", str(group.path), str(window_s)]
    begin_s = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=window_s + _END_S
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ends = training.step_ends(begin_s, time.monotonic())
    return {
        "period_s": PERIOD_S,
        "events": [[round(at_s - begin_s, 6), real] for at_s, real in events],
        "step_ends": [round(at_s - begin_s, 6) for at_s in ends],
    }


def main() -> None:
    """Watch the group `argv[1]` for `argv[2]` seconds; one JSON line for each event, at the end."""
    path, window_s = Path(sys.argv[1]), float(sys.argv[2])
    settings, chance, events = Settings(), random.Random(7), []
    with (
        KernelSampler.open(settings) as kernel,
        DeviceWatch(kernel.maps, settings, shipped) as devices,
    ):
        target = cgroups.CgroupTarget(path, "training", frozenset({os.getpid()}))
        loop = Sensor(kernel, target, settings, devices=devices)
        for _ in range(_SETTLE_PASSES):
            loop.step()
            time.sleep(PERIOD_S / 2)
        begin_s = time.monotonic()
        for number in range(int(window_s / PERIOD_S * 2)):
            due_s = begin_s + number * PERIOD_S / 2 + chance.uniform(0, _JITTER_S)
            time.sleep(max(0.0, due_s - time.monotonic()))
            is_pass = number % 2 == 0
            events.append((time.monotonic(), is_pass))
            if is_pass:
                kernel.wait(0)
                loop.step()
    for event in events:
        print(json.dumps(event))


if __name__ == "__main__":
    main()
