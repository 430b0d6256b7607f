"""Runs each check in its own process, at most until its deadline.

A check may hang in the kernel, in a driver or a mount, where no signal reaches it. At the deadline its process is
killed with all its children. A process that does not end even then is left behind, and reported. Processes are
forked, which costs milliseconds, so the caller should have a single thread.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import NoReturn

from kcover_ebpf.api.codec import decode, encode
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
    pid: int
    pipe: int
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
    pipe, answer_to = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(check, options, answer_to)
    os.close(answer_to)
    return _Running(check, pid, pipe, time.monotonic())


def _be_child(check: Check, options: InspectionOptions, answer_to: int) -> NoReturn:
    """Run the check in the child; never returns.

    Output of libraries and tools is dropped, because stdout belongs to the caller.
    """
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        answer = _Answer(tuple(_examine(check, options)))
        with open(answer_to, "wb", closefd=False) as pipe:
            pipe.write(json.dumps(encode(answer)).encode() + b"\n")
    finally:
        os._exit(0)


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
    ready, _, _ = select.select([item.pipe for item in running], [], [], max(patience_s, 0))
    for waiting in running:
        if waiting.pipe in ready:
            block = os.read(waiting.pipe, _BLOCK_BYTES)
            waiting.answer += block or b"\n"


def _is_over(running: _Running) -> bool:
    # The newline ends an answer, not the end of the pipe: a thread in D keeps its end open.
    complete = running.answer.endswith(b"\n") or len(running.answer) > _ANSWER_BYTES
    return complete or time.monotonic() >= running.end_s


def _finish(running: _Running) -> CheckResult:
    seconds = time.monotonic() - running.start_s
    left = _end(running.pid)
    os.close(running.pipe)
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


def _end(pid: int) -> int | None:
    """Kill the process and its children; returns a pid that has not ended one second later."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    end_s = time.monotonic() + CHECK_REAP_S
    while (left := _living(pid)) is not None:
        if time.monotonic() >= end_s:
            return left
        time.sleep(0.002)
    return None


def _living(pid: int) -> int | None:
    """The process, or else a child of it: a tool that hangs in the kernel outlives its check."""
    with suppress(ChildProcessError):  # reaped before
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            return pid
    with suppress(PermissionError):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return None
    # a zombie that its parent does not reap keeps the group
    return process_tree.living_in_group(pid)


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
