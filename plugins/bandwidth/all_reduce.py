"""Runs nccl-tests' all_reduce_perf over a set of pods, and parses the result."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from .link import kill

BUFFER = "512M"
"""Large enough for the full bandwidth of the network; any network fit for training reduces it
within a second."""
BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*(\d{1,9}(?:\.\d{1,9})?)")
WRONG = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")


@dataclass(frozen=True)
class Measured:
    """Result of one run over a set of pods."""

    speed: float | None
    """Bus bandwidth in GB/s (10^9 bytes); None: not measured."""
    is_wrong: bool
    """True if the reduced values were wrong."""
    text: str

    @property
    def is_known(self) -> bool:
        """True if the run completed."""
        return self.is_wrong or self.speed is not None

    def is_below(self, floor: float) -> bool:
        """True for a completed run with too little bandwidth or wrong values."""
        return self.is_wrong or (self.speed is not None and self.speed < floor)


def measure(
    slots: Mapping[str, int], environment: Mapping[str, str], limit_s: float
) -> Measured | None:
    """Run it with the given number of GPUs at each address; None: it exceeded `limit_s` and was killed."""
    hosts = ",".join(f"{address}:{count}" for address, count in slots.items())
    command = ["mpirun", "--host", hosts, "-np", str(sum(slots.values()))]
    child = subprocess.Popen(
        [*command, "all_reduce_perf", "-b", BUFFER, "-e", BUFFER, "-g", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=dict(environment),
    )
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        kill(child)
        return None
    return read(child.returncode, output.decode(errors="replace"))


def read(code: int, output: str) -> Measured:
    """The result in the output of a run that ended with `code`."""
    wrong, speed = WRONG.search(output), BANDWIDTH.search(output)
    if wrong and int(wrong[1]):
        return Measured(None, is_wrong=True, text=f"{wrong[1]} wrong value(s)")
    if code == 0 and speed:
        return Measured(float(speed[1]), is_wrong=False, text=f"{float(speed[1]):g} GB/s")
    lines = [line.strip() for line in output.splitlines() if line.strip("- \t")]
    first = lines[0][:200] if lines else "it printed nothing"
    return Measured(None, is_wrong=False, text=f"all_reduce_perf ended with code {code}: {first}")


def ring_phases(count: int) -> list[list[tuple[int, ...]]]:
    """Pairs of neighbours in a ring of three or more, in phases in which no member occurs twice."""
    pairs = [(i, (i + 1) % count) for i in range(count)]
    if count % 2 == 0:
        return [[*pairs[::2]], [*pairs[1::2]]]
    return [[*pairs[:-1:2]], [*pairs[1:-1:2]], [pairs[-1]]]
