"""Runs each check in its own process, at most until its deadline.

A check may hang in the kernel, in a driver or a mount, where no signal reaches it. At the deadline its process is
killed with all its children. A process that does not end even then is left behind, and reported.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path

from kcover_ebpf.api.codec import decode, encode
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.nvml_library import initialise
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.host import process_tree
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import (
    Check,
    CheckFinding,
    CheckResult,
    Cost,
    unknown,
)
from kcover_ebpf.tunables.inspection import CHECK_REAP_S, GPU_BUSY_BYTES

_BLOCK_BYTES = 1 << 16
_ANSWER_BYTES = 1 << 20
"""Most bytes of an answer; a node with a thousand devices sends 0.2 MB."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of a check's process, sent as one line of JSON."""

    findings: tuple[CheckFinding, ...] = ()


@dataclass(slots=True)
class _Running:
    check: Check
    helper: Helper
    start_s: float
    answer: bytearray = field(default_factory=bytearray)

    @property
    def end_s(self) -> float:
        return self.start_s + self.check.deadline_s


def inspect(checks: Sequence[Check], options: InspectionOptions) -> list[CheckResult]:
    """Results in the order of the checks.

    The light ones run in parallel, then the heavy ones one by one, then those that depend on what the others
    observed.
    """
    last = [check for check in checks if check.by_others]
    light = [check for check in checks if check.cost is Cost.LIGHT and not check.by_others]
    heavy = [check for check in checks if check.cost is Cost.HEAVY and not check.by_others]
    found: dict[str, CheckResult] = {}
    for group in (light, *([check] for check in heavy), last):
        answered = frozenset(
            name for name, result in found.items() if result.part.result is not Result.UNKNOWN
        )
        done = _run_together(group, replace(options, answered=answered))
        found |= {result.name: result for result in done}
    return [found[check.name] for check in checks]


def _run_together(checks: Iterable[Check], options: InspectionOptions) -> list[CheckResult]:
    running: list[_Running] = []
    done: list[CheckResult] = []
    try:
        for check in checks:
            # One by one: what was started must be ended if the next cannot be started.
            running.append(_start(check, options))  # noqa: PERF401
        while running:
            _read_answers(running)
            for ended in [one for one in running if _is_over(one)]:
                running.remove(ended)
                done.append(_finish(ended))
    finally:
        for unfinished in running:
            _finish(unfinished)
    return done


def _start(check: Check, options: InspectionOptions) -> _Running:
    return _Running(check, helper.start_forked(partial(_answer, check, options)), time.monotonic())


def _answer(check: Check, options: InspectionOptions) -> bytes:
    answer = _Answer(tuple(_examine(check, options)))
    return json.dumps(encode(answer)).encode() + b"\n"


def _examine(check: Check, options: InspectionOptions) -> list[CheckFinding]:
    try:
        if check.cost is Cost.HEAVY and (reason := reason_not_to_run(options.root)):
            return [unknown(reason, "run it again by name when no job uses a GPU of this node")]
        return list(check.find(options))
    except Exception as error:  # noqa: BLE001 - one broken check must not cost the others
        text = " ".join(f"the check itself failed: {type(error).__name__}: {error}".split())
        return [unknown(text)]


def _read_answers(running: Sequence[_Running]) -> None:
    patience_s = min(item.end_s for item in running) - time.monotonic()
    pipes = [item.helper.stdout for item in running]
    ready, _, _ = select.select(pipes, [], [], max(patience_s, 0))
    for waiting in running:
        if waiting.helper.stdout in ready:
            block = os.read(waiting.helper.stdout, _BLOCK_BYTES)
            waiting.answer += block or b"\n"


def _is_over(running: _Running) -> bool:
    # The newline ends an answer, not the end of the pipe: a thread in D keeps its end open.
    complete = running.answer.endswith(b"\n") or len(running.answer) > _ANSWER_BYTES
    return complete or time.monotonic() >= running.end_s


def _finish(running: _Running) -> CheckResult:
    seconds = time.monotonic() - running.start_s
    left = _end(running.helper)
    return CheckResult(
        name=running.check.name,
        cost=running.check.cost,
        seconds=round(seconds, 3),
        findings=_parsed(bytes(running.answer), running.check),
        left_behind=left,
    )


def _parsed(answer: bytes, check: Check) -> tuple[CheckFinding, ...]:
    if len(answer) > _ANSWER_BYTES:
        return (unknown(f"its answer is longer than {_ANSWER_BYTES} bytes"),)
    if not answer.endswith(b"\n"):
        text = f"did not answer within {check.deadline_s:g} s"
        return (unknown(text, "see what it waits for: kcover-ebpf inspect --checks d_state"),)
    try:
        return decode(_Answer, json.loads(answer)).findings
    except (ValueError, RecursionError, ObjectError):
        # nothing, or a part, and then the end of the pipe
        return (unknown("its process ended without an answer"),)


def _end(running_helper: Helper) -> int | None:
    """Kill the process and its children; returns a pid that has not ended one second later.

    A tool that hangs in the kernel outlives the check that started it.
    """
    end_s = time.monotonic() + CHECK_REAP_S
    if not running_helper.end(CHECK_REAP_S):
        return running_helper.pid
    while (left := _living(running_helper.pid)) is not None and time.monotonic() < end_s:
        time.sleep(0.002)
    return left


def _living(group: int) -> int | None:
    """A living process of the process group of a check that has ended; None if there is none."""
    with suppress(PermissionError):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return None
    # a zombie that its parent does not reap keeps the group
    return process_tree.living_in_group(group)


def reason_not_to_run(root: Path) -> str:
    """Why a heavy check must not run now: a job uses a GPU. Empty if it may run. Asks NVML, and so may hang."""
    try:
        import pynvml
    except ImportError:
        return "whether a GPU is busy is not known: the package nvidia-ml-py is not installed"
    try:
        initialise(pynvml, root)
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if processes := pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                return f"GPU {index} is busy: process {processes[0].pid} computes on it"
            if percent := pynvml.nvmlDeviceGetUtilizationRates(handle).gpu:
                return f"GPU {index} is busy: its utilisation is {percent}%"
            used_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used
            if used_bytes > GPU_BUSY_BYTES:
                return f"GPU {index} is busy: {used_bytes >> 20} MiB of its memory are in use"
    except pynvml.NVMLError as error:
        return f"whether a GPU is busy is not known: NVML: {error}"
    return ""
