"""The programs that read stacks beside us: py-spy for Python frames, our own reader for the others.

None of them stops a thread. They die with us, however we end (PR_SET_PDEATHSIG), and are killed when
their time is up. They parse what the job wrote: its files and its memory may be made to harm the parser, so
they have little memory, few run at once, and none keeps CAP_SYS_ADMIN, which only the kernel's own stacks need.
"""

from __future__ import annotations

import ctypes
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kcover_ebpf.kernel import capabilities
from kcover_ebpf.kernel.capabilities import Capability
from kcover_ebpf.trace.records import Stack

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_LIBC = ctypes.CDLL(None)
_MOST_PROCESSES = 64
_AT_ONCE = 2
"""py-spy takes some 14 MiB and a tenth of a second; they share the agent's memory limit."""
_SPY_BYTES = 48 * 1024 * 1024
_READER_BYTES = 96 * 1024 * 1024
"""RLIMIT_DATA, which counts what is written to: a library of a gigabyte is mapped, and costs nothing."""
Thread = tuple[int, int]
"""(pid, tid)."""


@dataclass(slots=True)
class Frames:
    """What the helpers found; `blind` says what they could not see, and why."""

    python: dict[Thread, tuple[str, ...]] = field(default_factory=dict)
    native: dict[Thread, tuple[str, ...]] = field(default_factory=dict)
    kernel: dict[Thread, tuple[str, ...]] = field(default_factory=dict)
    blind: list[str] = field(default_factory=list)

    def stack(self, pid: int, tid: int, rank: int | None) -> Stack:
        """All that is known of one thread."""
        key = pid, tid
        none: tuple[str, ...] = ()
        python, native = self.python.get(key, none), self.native.get(key, none)
        return Stack(pid, tid, rank, python, native, self.kernel.get(key, none))


class Helpers:
    """The helper processes of one run; started at once, collected later."""

    def __init__(self, threads: Sequence[tuple[int, int, str]]) -> None:
        """`threads`: (pid, tid, name of the program) to read, the most interesting first."""
        self._threads = [(pid, tid) for pid, tid, _ in threads]
        pythons = dict.fromkeys(pid for pid, _, program in threads if is_python(program))
        self._blind: list[str] = []
        self._waiting = list(pythons)[:_MOST_PROCESSES]
        self._spies: dict[int, subprocess.Popen[bytes]] = {}
        self._start_spies()
        text = "".join(f"{pid} {tid}\n" for pid, tid in self._threads)
        command = [sys.executable, "-m", "kcover_ebpf.trace.native_frames"]
        self._reader = _start(command, _READER_BYTES, stdin=subprocess.PIPE)
        if self._reader is not None and self._reader.stdin is not None:
            try:
                self._reader.stdin.write(text.encode())
                self._reader.stdin.close()
            except OSError:
                pass
            self._reader.stdin = None

    def _start_spies(self) -> None:
        """As many as may run at once; `collect` starts the others as these end."""
        program = py_spy()
        if program is None and self._waiting:
            self._blind.append("Python frames (py-spy is not installed)")
            self._waiting.clear()
        while program is not None and self._waiting and len(self._spies) < _AT_ONCE:
            pid = self._waiting.pop(0)
            command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
            spy = _start(command, _SPY_BYTES)
            if spy is not None:
                self._spies[pid] = spy

    def collect(self, limit_s: float, numbers: Mapping[int, Mapping[int, int]]) -> Frames:
        """All that is there within `limit_s`; `numbers`: pid -> thread numbers of its namespace -> ours."""
        end_s = time.monotonic() + limit_s
        found = Frames(blind=list(self._blind))
        failed: list[str] = []
        while self._spies:
            pid = next(iter(self._spies))
            out, why = _output(self._spies[pid], end_s)
            _close(self._spies.pop(pid))
            self._start_spies()
            try:
                found.python |= parse_spy(out, pid, numbers.get(pid, {}))
            except ValueError:
                failed.append(f"pid {pid}: {why or 'py-spy said nothing'}")
        if failed:
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            found.blind.append(f"Python frames ({failed[0]}{more})")
        self._take_native(found, end_s)
        self.close()
        return found

    def _take_native(self, found: Frames, end_s: float) -> None:
        out, why = _output(self._reader, end_s) if self._reader else (b"", "it did not start")
        for key, native, kernel, blind in parse_native(out):
            found.native[key], found.kernel[key] = native, kernel
            if blind and f"native frames ({blind})" not in found.blind:
                found.blind.append(f"native frames ({blind})")
        missing = len(self._threads) - len(found.native)
        if missing > 0:
            found.blind.append(
                f"native frames of {missing} threads ({why or 'it ran out of time'})"
            )
        if found.kernel and not any(found.kernel.values()):
            found.blind.append("kernel frames (they need CAP_SYS_ADMIN)")

    def close(self) -> None:
        """End what still runs."""
        self._waiting.clear()
        for process in (*self._spies.values(), self._reader):
            if process is not None:
                _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()


def is_python(program: str) -> bool:
    """Whether a process of this name can have Python frames."""
    return "python" in program or program.startswith(("pt_", "torchrun", "ray"))


def py_spy() -> str | None:
    """The program, beside our interpreter or in PATH; None where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def parse_native(
    out: bytes,
) -> Iterator[tuple[Thread, tuple[str, ...], tuple[str, ...], str]]:
    """(thread, native frames, kernel frames, what it could not see) of each line of our reader; others are skipped."""
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            answer = json.loads(line)
            key = int(answer["pid"]), int(answer["tid"])
            native, kernel = (tuple(map(str, answer[each])) for each in ("native", "kernel"))
            yield key, native, kernel, str(answer["blind"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue


def parse_spy(out: bytes, pid: int, numbers: Mapping[int, int]) -> dict[Thread, tuple[str, ...]]:
    """Frames by thread, from py-spy's JSON; raises `ValueError` for anything else."""
    try:
        threads = json.loads(out)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(threads, list):
        raise ValueError("no list")
    found: dict[Thread, tuple[str, ...]] = {}
    for thread in threads:
        if not isinstance(thread, dict) or not isinstance(thread.get("os_thread_id"), int):
            continue
        tid = thread["os_thread_id"]
        frames = thread.get("frames")
        shown = tuple(_frame(each) for each in frames) if isinstance(frames, list) else ()
        lock = ("holds the interpreter lock",) if thread.get("owns_gil") is True else ()
        found[pid, numbers.get(tid, tid)] = lock + shown
    return found


def _frame(frame: Any) -> str:
    if not isinstance(frame, dict):
        return "?"
    file = str(frame.get("short_filename") or frame.get("filename") or "?")
    return f"{frame.get('name', '?')} ({file}:{frame.get('line', '?')})"


def _confine(data_bytes: int, keep_admin: bool) -> None:
    # without new rights, because gaining any would take the death signal back (kernel: commit_creds)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    if not keep_admin:
        capabilities.renounce(Capability.SYS_ADMIN)


def _start(
    command: list[str], data_bytes: int, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes] | None:
    # our own reader gives its rights up itself, once it has the kernel's stacks
    keep_admin = command[0] == sys.executable
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=partial(_confine, data_bytes, keep_admin),  # noqa: PLW1509 - some system calls, and no lock
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _output(process: subprocess.Popen[bytes], end_s: float) -> tuple[bytes, str]:
    """(what it wrote, why that may be too little)."""
    try:
        out, said = process.communicate(timeout=max(0.05, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return out, "no time was left"
    return out, " ".join(said.decode("utf-8", "replace").split())[-160:]
