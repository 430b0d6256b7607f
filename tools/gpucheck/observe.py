"""State of one thread, from /proc and ptrace (registers). Only for our own test processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpucheck.plan import NotPossible

SAMPLES = 48
SET_SAMPLES = 16
"""Number of samples for which the sensor's own rule counts the sets of registers."""
SAMPLE_GAP_S = 0.02
SAMPLING_S = 3.0
"""Time limit in seconds, because a busy machine stops a thread late; twice the time on an idle one."""
_SEIZE, _INTERRUPT, _DETACH, _GETREGSET = 0x4206, 0x4207, 17, 0x4204
_NT_PRSTATUS = 1
_WALL = 0x40000000
_STOP_PATIENCE_S = 1.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# Words of user_regs_struct (x86_64) and user_pt_regs (aarch64): count, index of the instruction
# pointer, index of the stack pointer, indexes of a call's arguments.
_LAYOUTS = {
    "x86_64": (27, 16, 19, (14, 13, 12, 7, 9, 8)),
    "aarch64": (34, 32, 31, (0, 1, 2, 3, 4, 5)),
}


@dataclass(frozen=True, slots=True)
class Registers:
    """Instruction pointer, all words, and the words that the sensor compares: stack pointer and six arguments."""

    instruction: int
    words: tuple[int, ...]
    compared: tuple[int, ...]


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)


def _ptrace(request: int, tid: int, address: int, data: object) -> None:
    _libc.ptrace.restype = ctypes.c_long
    arguments = (ctypes.c_long(request), ctypes.c_long(tid), ctypes.c_void_p(address), data)
    if _libc.ptrace(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def registers(tid: int) -> Registers:
    """Stop the thread for some 50 us and read them; raises `NotPossible` if ptrace is refused."""
    if platform.machine() not in _LAYOUTS:
        raise NotPossible(f"registers of {platform.machine()} are not known")
    count, instruction, stack, arguments = _LAYOUTS[platform.machine()]
    try:
        _ptrace(_SEIZE, tid, 0, None)
        try:
            _ptrace(_INTERRUPT, tid, 0, None)
            _await_stop(tid)
            words = (ctypes.c_uint64 * count)()
            vector = _Iovec(ctypes.addressof(words), ctypes.sizeof(words))
            _ptrace(_GETREGSET, tid, _NT_PRSTATUS, ctypes.byref(vector))
        finally:
            with contextlib.suppress(OSError):
                _ptrace(_DETACH, tid, 0, None)
    except OSError as error:
        raise NotPossible(f"ptrace: {error.strerror}") from None
    taken = tuple(words)
    return Registers(
        taken[instruction], taken, tuple(taken[number] for number in (stack, *arguments))
    )


def _await_stop(tid: int) -> None:
    deadline_s = time.monotonic() + _STOP_PATIENCE_S
    while os.waitpid(tid, _WALL | os.WNOHANG)[0] != tid:
        if time.monotonic() > deadline_s:
            raise NotPossible("the thread does not stop: it is inside a call of the kernel")


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        return f"({error.strerror})"


def executable_maps(pid: int) -> list[tuple[int, int, str]]:
    """(start, end, base name) of each executable mapping."""
    found = []
    for line in read(Path(f"/proc/{pid}/maps")).splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) > 1 and "x" in fields[1]:
            start, _, end = fields[0].partition("-")
            name = fields[5].rpartition("/")[2] if len(fields) == 6 else "(no file)"
            found.append((int(start, 16), int(end, 16), name))
    return found


def module_at(maps: Sequence[tuple[int, int, str]], address: int) -> str:
    return next((name for start, end, name in maps if start <= address < end), "(not mapped)")


def proc_files(pid: int, tid: int) -> dict[str, str]:
    folder = Path(f"/proc/{pid}/task/{tid}")
    return {name: read(folder / name) for name in ("stat", "syscall", "wchan", "stack")}


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of a thread: CPU seconds in user and kernel mode, switches, and the time (CLOCK_MONOTONIC)."""

    at_s: float
    user_s: float
    system_s: float
    voluntary: int
    involuntary: int

    def rates(self, earlier: Usage) -> dict[str, float]:
        span_s = self.at_s - earlier.at_s
        return {
            "seconds": round(span_s, 2),
            "cpu_user": round((self.user_s - earlier.user_s) / span_s, 3),
            "cpu_system": round((self.system_s - earlier.system_s) / span_s, 3),
            "voluntary_per_s": round((self.voluntary - earlier.voluntary) / span_s, 1),
            "involuntary_per_s": round((self.involuntary - earlier.involuntary) / span_s, 1),
        }


def usage(pid: int, tid: int) -> Usage:
    folder = Path(f"/proc/{pid}/task/{tid}")
    lines = read(folder / "status").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = read(folder / "stat").rpartition(")")[2].split()
    try:
        return Usage(
            time.monotonic(),
            int(fields[11]) / _CLOCK_TICKS,
            int(fields[12]) / _CLOCK_TICKS,
            int(status["voluntary_ctxt_switches"]),
            int(status["nonvoluntary_ctxt_switches"]),
        )
    except (IndexError, KeyError):
        raise NotPossible("the thread has ended") from None


def sample_registers(pid: int, tid: int) -> dict[str, Any]:
    """Positions of its instruction pointer in up to `SAMPLES` samples, and the number of different register sets.

    A sleeping thread is woken by a sample and goes to sleep again. That shows in the set of all words, but not in
    the compared ones.
    """
    deadline_s = time.monotonic() + SAMPLING_S
    maps = executable_maps(pid)
    taken = []
    for _ in range(SAMPLES):
        taken.append(registers(tid))
        if time.monotonic() > deadline_s:
            break
        time.sleep(SAMPLE_GAP_S)
    first = taken[:SET_SAMPLES]
    return {
        "samples": len(taken),
        "modules": dict(
            Counter(module_at(maps, registers.instruction) for registers in taken).most_common()
        ),
        "instructions": len({registers.instruction for registers in taken}),
        f"sets_compared_in_{SET_SAMPLES}": len({registers.compared for registers in first}),
        f"sets_of_all_words_in_{SET_SAMPLES}": len({registers.words for registers in first}),
    }


def other_threads(pid: int) -> list[dict[str, str]]:
    """The threads that the driver created: names and wait positions."""
    found = []
    for folder in sorted(Path(f"/proc/{pid}/task").glob("*")):
        if folder.name != str(pid):
            names = ("comm", "wchan", "syscall")
            found.append({name: read(folder / name) for name in names})
    return found


def shape(pid: int, tid: int, watch_s: float) -> dict[str, Any]:
    """The complete description of a thread that waits for at least `watch_s` and `SAMPLING_S`."""
    before = usage(pid, tid)
    files = []
    for _ in range(4):
        files.append(proc_files(pid, tid))
        time.sleep(watch_s / 4)
    rates = usage(pid, tid).rates(before)
    try:
        sampled: dict[str, Any] = sample_registers(pid, tid)
    except NotPossible as problem:
        sampled = {"not possible here": str(problem)}
    states = Counter(file["stat"].rpartition(")")[2].split()[:1][0] for file in files)
    return {
        **rates,
        "states": dict(states),
        "wchan": dict(Counter(file["wchan"] for file in files)),
        "system calls": dict(Counter(file["syscall"].partition(" ")[0] for file in files)),
        "proc": files,
        "registers": sampled,
        "other_threads": other_threads(pid),
    }
