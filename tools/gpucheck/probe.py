"""Finds the GPU: `python3 -m tools.gpucheck.probe` prints JSON, or one line with the reason and exit code 3."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

from tools.gpucheck.cuda import Driver
from tools.gpucheck.plan import NotPossible


def _driver_version() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return "not in /proc/driver/nvidia/version"


def main() -> int:
    try:
        driver = Driver()
        driver.initialize()
        count = driver.device_count()
        if not count:
            raise NotPossible("the driver has no device")
        name = driver.device_name()
    except NotPossible as problem:
        print(problem)
        return 3
    facts = {
        "device": name,
        "devices": count,
        "cuda_version": driver.version(),
        "driver": _driver_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
