"""Runs every part against stub libraries, on a machine without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.gpucheck import report, runner
from tools.gpucheck.plan import NotPossible, Plan

_SOURCES = Path(__file__).with_name("stubs")
_LIBRARIES = {
    "libcuda.c": "libcuda.so.1",
    "libnvidia_ml.c": "libnvidia-ml.so.1",
    "libnccl.c": "libnccl.so.2",
}
_DEVICES = ("nvidiactl", "nvidia0", "nvidia-uvm")
_LANES = (("waits", "nvml", "holders", "nccl", "probes"), ("sensor", "overhead"))
"""Parts that run in parallel, because both lanes mostly wait."""
_BUSY, _IDLE = 0.05, 0.03
"""Fractions of a CPU above or below which a waiting thread is busy or idle, also on a loaded machine."""


def main(folder: Path) -> int:
    """0 if all results match the stubs; raises `NotPossible` if the stubs cannot be built."""
    place = folder / "stubs"
    _build(place)
    os.environ["LD_LIBRARY_PATH"] = str(place)
    os.environ["STUB_DEVICES"] = str(place / "dev")
    os.environ["PYTHONPATH"] = f"{_SOURCES / 'python'}:{os.environ.get('PYTHONPATH', '')}"
    plan = Plan(folder, place / "dev", quick=True)
    machine = runner.probe(plan)
    parts = runner.run_parts(plan, runner.to_stderr, _LANES)
    report.write(folder, machine, parts)
    wrong = list(complaints(parts))
    for line in wrong:
        runner.to_stderr(f"self-test: {line}")
    print(f"{'FAILED' if wrong else 'passed'}: {folder / 'gpu.md'}")
    return 1 if wrong else 0


def _build(place: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang-14")
    if compiler is None:
        raise NotPossible("no C compiler for the stubs of the self-test")
    (place / "dev").mkdir(parents=True, exist_ok=True)
    for name in _DEVICES:
        (place / "dev" / name).touch()
    for source, library in _LIBRARIES.items():
        options = [
            "-O1",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-pthread",
            f"-Wl,-soname,{library}",
        ]
        command = [compiler, *options, "-o", str(place / library), str(_SOURCES / source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise NotPossible(f"{source} does not compile: {done.stderr.strip()}")


def complaints(parts: dict[str, Any]) -> Iterator[str]:
    """Results that do not match the stubs."""
    for name, part in parts.items():
        bench = name in ("probes", "sensor", "overhead")
        # without privileges for BPF, or without the sensor's packages, these report it
        if part["state"] != "done" and not (bench and part["state"] == "not possible here"):
            yield f"{name}: {part['state']} {part['why']}"
    checks = {
        "waits": _waits,
        "nvml": _nvml,
        "holders": _holders,
        "nccl": _nccl,
        "probes": _probes,
        "sensor": _sensor,
        "overhead": _overhead,
    }
    for name, check in checks.items():
        if parts[name]["state"] == "done":
            yield from _checked(name, check(parts[name]["facts"]))


def _checked(name: str, claims: Iterator[tuple[str, bool]]) -> Iterator[str]:
    try:
        yield from (f"{name}: not so: {claim}" for claim, true in claims if not true)
    except (KeyError, TypeError) as error:
        yield f"{name}: {type(error).__name__} {error}"


def _waits(facts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    spin = facts["synchronize SPIN primary"]
    yielding = facts["synchronize YIELD primary"]
    blocking = facts["synchronize BLOCKING_SYNC primary"]
    full = facts["queue SPIN primary"]
    yield "a spinning thread burns", spin["cpu_user"] + spin["cpu_system"] > _BUSY
    modules = spin["registers"]["modules"]
    inside = modules.get("libcuda.so.1", 0) + modules.get("[vdso]", 0)
    yield "in libcuda and the clock", inside > 0.8 * spin["registers"]["samples"]
    yield "a yielding thread is in the kernel", yielding["cpu_system"] > 0
    yield "a blocked thread does not burn", blocking["cpu_user"] + blocking["cpu_system"] < _IDLE
    yield "it sleeps voluntarily", blocking["voluntary_per_s"] > 10
    yield "the queue has its end", full["launch_that_waited"] in range(1024, 1026)
    yield "who meets it burns", full["cpu_user"] + full["cpu_system"] > _BUSY


def _nvml(facts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    yield "bytes of PCIe take 2 ms", facts["PCIe bytes sent"]["median_us"] >= 2000
    yield "the power is cheaper", facts["power"]["median_us"] < 1000
    yield "NVLink is refused", "answers 3" in facts["state of NVLink 0"]["not possible here"]


def _holders(facts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    def names(stage: str) -> set[str]:
        opened = facts["CUDA_VISIBLE_DEVICES not set"][stage]["open"]
        return {path.rpartition("/")[2] for path in opened}

    yield "nothing is open at first", names("loaded") == set()
    yield "then the control device", names("initialised") == {"nvidiactl"}
    yield "then the device", names("context") == set(_DEVICES)
    none = facts["CUDA_VISIBLE_DEVICES empty"]["initialised"]
    yield "none is visible", "NO_DEVICE" in none["not possible here"]


def _nccl(facts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    yield "RAS is understood", "RasReport" in facts["library"]["RAS"]["json"]["understood"]
    yield "the dump has 23 entries", facts["torch"]["Flight Recorder"]["entries"] == 23


def _probes(facts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    library, torch = facts["library"], facts["torch"]
    for found in (library, torch):
        yield "every collective is counted", found["collective"]["counted"] == {"AllReduce": 200}
        yield "its communicator is known", found["identified"]
        yield "probes cost something", found["cost"]["more_ns"] > 0
    yield "those of a graph once", torch["captured"]["counted"] == {"AllReduce": 40}
    exchanged = {"sent to 0": 60, "received from 0": 60}
    yield "every message is counted", library["message"]["counted"] == exchanged


def _sensor(facts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    if "not possible here" in facts["stop"]:
        return
    yield "a stopped rank is named", facts["stop"]["first"]["rank"] == 1
    yield "and none before", not facts["stop"]["false verdicts"]
    yield (
        "a fault of the device ends the rank",
        any("700" in line for line in facts["address"]["job said"]),
    )
    log = facts["stop"]["kernel log"]
    yield "the log is read", isinstance(log, str) or "gpu-check: begins" in str(log)


def _overhead(facts: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    yield "steps were measured", 4000 <= facts["without"]["median_us"] < 40_000
    yield "in turns", len(facts["without"]["blocks"]) == len(facts["with"]["blocks"])
