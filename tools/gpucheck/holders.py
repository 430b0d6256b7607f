"""Part 3: which device files a process has open or mapped, after each stage and with fewer visible devices."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tools.gpucheck import children
from tools.gpucheck.cuda import Driver, Scheduling
from tools.gpucheck.plan import Notes, NotPossible, Plan
from tools.gpucheck.waits import START_S

_STAGES = ("loaded", "initialised", "context", "memory")


def _nothing() -> None:
    return


def _talk() -> None:
    """The measured process: prints each stage, and continues after an answer."""
    driver = Driver()
    actions: tuple[Callable[[], object], ...] = (
        _nothing,
        driver.initialize,
        lambda: driver.use_primary_context(Scheduling.AUTO),
        lambda: driver.allocate(1 << 20),
    )
    for stage, action in zip(_STAGES, actions, strict=True):
        try:
            action()
        except NotPossible as problem:
            print(f"failed {stage}: {problem}", flush=True)
            return
        print(f"stage {stage}", flush=True)
        sys.stdin.readline()


def in_use(pid: int, devices: Path) -> dict[str, dict[str, int]]:
    """Name of each device file below `devices` that is NVIDIA's -> how often it is open and mapped."""
    prefix = str(devices / "nvidia")
    opened: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)  # noqa: PTH115 - what is open need not be a path
        except OSError:
            continue
        if target.startswith(prefix):
            opened[target] += 1
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = Counter(line.split(maxsplit=5)[5] for line in lines if f" {prefix}" in line)
    return {"open": dict(sorted(opened.items())), "mapped": dict(sorted(mapped.items()))}


def measure(plan: Plan, notes: Notes) -> None:
    present = sorted(str(path) for path in plan.devices.glob("nvidia*"))
    notes.add("device files", present)
    numbers = [path.name for path in plan.devices.glob("nvidia[0-9]*")]
    last = str(max(len(numbers) - 1, 0))
    for name, visible in {"not set": None, "0": "0", "the last": last, "empty": ""}.items():
        notes.add(f"CUDA_VISIBLE_DEVICES {name}", _stages(visible, plan.devices))


def _stages(visible: str | None, devices: Path) -> dict[str, object]:
    setting = ["env", "-u", "CUDA_VISIBLE_DEVICES"]
    if visible is not None:
        setting = ["env", f"CUDA_VISIBLE_DEVICES={visible}"]
    found: dict[str, object] = {}
    with children.talking([*setting, *children.module("holders")]) as child:
        for stage in _STAGES:
            try:
                child.await_line("stage", START_S)
                found[stage] = in_use(child.pid, devices)
            except (NotPossible, OSError) as problem:
                found[stage] = {"not possible here": str(problem)}
                break
            child.say("continue")
    return found


if __name__ == "__main__":
    try:
        _talk()
    except NotPossible as problem:
        print(problem)
        sys.exit(1)
