"""`python -m bandwidth FOLDER`: one answer per pod, however often the container is restarted."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .first import First
from .follower import Follower
from .place import Unknown, place_of

FAILED = 81
"""Exit code on a pod whose node is slow; equals that of kcover_ebpf/agent/preflight.py, which is not copied."""
FLOOR = "KCOVER_BANDWIDTH_FLOOR"
"""Environment variable: required bus bandwidth in GB/s."""
HOLD_S = 900.0
"""Seconds for which a pod on a slow node waits to be placed elsewhere. Then it starts anyway: slow
is better than never."""


def earlier(folder: Path, now_s: float) -> int | None:
    """The exit code of the answer that an earlier start stored here; None if there is none."""
    try:
        code, at_s = (folder / "answer").read_text().split()
        return int(code) if now_s - float(at_s) < HOLD_S else 0
    except (OSError, ValueError):
        return None


def checked(folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code, and the line to print."""
    try:
        floor = float(environment.get(FLOOR, ""))
        place = place_of(environment)
        first = place.index == 0
        outcome = (First(place, floor, folder) if first else Follower(place)).run()
    except (Unknown, OSError, ValueError, TypeError) as reason:
        return 0, f"unknown: {reason}"
    return (FAILED if place.index in outcome.slow else 0), outcome.text


def main() -> int:
    """The exit code: 0, unless the node of this pod is slow."""
    folder = Path(sys.argv[1])
    code = earlier(folder, time.time())
    if code is None:
        code, text = checked(folder, os.environ)
        sys.stdout.write(f"bandwidth: {text}\n")
        with contextlib.suppress(OSError):
            (folder / "answer").write_text(f"{code} {time.time()}\n")
    return code


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    # a thread may be waiting for a process that no signal ends
    os._exit(exit_code)
