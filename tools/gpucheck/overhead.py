"""Part 7: step times with and without the sensor, in alternating blocks."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.gpucheck import children
from tools.gpucheck.plan import Notes, NotPossible, Plan
from tools.gpucheck.sensor import interpreter, sensor
from tools.gpucheck.waits import START_S

_BLOCKS, _BLOCK_S = 5, 5.0
_QUICK_BLOCKS, _QUICK_BLOCK_S = 1, 1.5
_ATTACHED_S = 15.0


def measure(plan: Plan, notes: Notes) -> None:
    python, steps = interpreter(), plan.folder / "steps.txt"
    blocks = _QUICK_BLOCKS if plan.quick else _BLOCKS
    seconds = _QUICK_BLOCK_S if plan.quick else _BLOCK_S
    without: list[tuple[float, float]] = []
    watched: list[tuple[float, float]] = []
    with children.talking(children.module("training", "alone", str(steps))) as job:
        job.await_line("stepping", START_S)
        for _ in range(blocks):
            without.append(_block(seconds))
            with _watched(python, job.pid, plan.folder):
                watched.append(_block(seconds))
    taken = read_steps(steps)
    notes.add("without", _medians(taken, without))
    notes.add("with", _medians(taken, watched))
    notes.add("difference", difference(notes.facts["without"], notes.facts["with"]))


def _block(seconds: float) -> tuple[float, float]:
    # time for the loop that was just attached to or left to settle
    time.sleep(0.5)
    began_s = time.monotonic()
    time.sleep(seconds)
    return began_s, time.monotonic()


@contextlib.contextmanager
def _watched(python: str, pid: int, folder: Path) -> Iterator[None]:
    command = sensor(python, "run", "-o", "json", "--pid", str(pid))
    with contextlib.chdir(folder), children.talking(command) as running:
        running.await_line('{"schema"', _ATTACHED_S)
        yield
        running.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(children.KILL_PATIENCE_S)


def read_steps(file: Path) -> list[tuple[float, float]]:
    """(end, length) of each step in seconds; an incomplete last line is skipped."""
    lines = file.read_text().splitlines()[:-1]
    return [(float(end), float(length)) for end, length in (line.split() for line in lines)]


def _medians(taken: list[tuple[float, float]], blocks: list[tuple[float, float]]) -> dict[str, Any]:
    """The median step of each block in microseconds; a block without steps is reported as such."""
    found = []
    for began_s, ended_s in blocks:
        lengths = [length for end, length in taken if began_s + length <= end <= ended_s]
        if not lengths:
            raise NotPossible("a block without a step")
        found.append(round(statistics.median(lengths) * 1e6, 1))
    return {"blocks": found, "median_us": round(statistics.median(found), 1)}


def difference(without: dict[str, Any], watched: dict[str, Any]) -> dict[str, float]:
    """Percent of a step: the median over pairs of neighbouring blocks, the minimum and the maximum."""
    pairs = zip(without["blocks"], watched["blocks"], strict=True)
    parts = [100 * (with_ - alone) / alone for alone, with_ in pairs]
    return {
        "median_percent": round(statistics.median(parts), 3),
        "least_percent": round(min(parts), 3),
        "most_percent": round(max(parts), 3),
    }
