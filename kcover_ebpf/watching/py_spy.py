"""Python frames of running processes, by py-spy: started at once, collected later. It stops no thread."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement, Helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.python_stacks import PythonFrame
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.tunables.host import HELPER_CPU_S

_MOST_PROCESSES = 64
_AT_ONCE = 2
"""py-spy processes at a time: each takes some 14 MiB of the agent's memory limit and a tenth of a second."""
SPY = Confinement(
    data_bytes=48 << 20,
    cpu_s=HELPER_CPU_S,
    kept=frozenset({Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH}),
)
_OUTPUT_BYTES = 1 << 20
"""The most output of one process: a frame takes some 200 bytes; allows a thousand threads with five frames."""
_MOST_LINE = (1 << 31) - 1
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d[\d.]*/|^<frozen |\.zip/")
"""Files that are not part of the user's program. A program in a string is "<string>"."""
Thread = tuple[int, int]
"""(pid, tid) of a thread."""


@dataclass(frozen=True, slots=True)
class SpiedThread:
    """A thread of a Python interpreter."""

    frames: tuple[PythonFrame, ...]
    """Frames of the thread, innermost first."""
    owns_gil: bool = False
    """True if it holds the interpreter lock (GIL)."""


@dataclass(slots=True)
class Spied:
    """Threads found in all processes, and failures."""

    threads: dict[Thread, SpiedThread] = field(default_factory=dict)
    blind: list[str] = field(default_factory=list)
    """What could not be read, with the reason."""


class Spies:
    """The py-spy processes of one reading, of which few run at once."""

    def __init__(self, pids: Iterable[int], confinement: Confinement | None = None) -> None:
        """`pids`: processes with an interpreter, the most important first. `confinement`: None: `SPY`."""
        self._confinement = confinement or SPY
        self._waiting = list(dict.fromkeys(pids))[:_MOST_PROCESSES]
        self._blind: list[str] = []
        self._running: dict[int, Helper] = {}
        self._lock = threading.Lock()
        self._program = program()
        if self._program is None and self._waiting:
            self._blind.append("Python frames (py-spy is not installed)")
            self._waiting.clear()
        while self._waiting and len(self._running) < _AT_ONCE:
            self._start()

    def _start(self) -> tuple[int, Helper] | None:
        """Start the next process; None if none is left."""
        with self._lock:
            if not self._waiting:
                return None
            pid = self._waiting.pop(0)
            command = [str(self._program), "dump", "--nonblocking", "--json", "--pid", str(pid)]
            try:
                self._running[pid] = helper.start(command, self._confinement)
            except OSError as error:
                self._blind.append(f"Python frames (py-spy does not start: {error.strerror})")
                self._waiting.clear()
                return None
            return pid, self._running[pid]

    def collect(self, limit_s: float, numbers: Mapping[int, Mapping[int, int]]) -> Spied:
        """Results that are there within `limit_s`; `numbers`: pid -> thread ids in its pid namespace -> ours."""
        end_s = time.monotonic() + limit_s
        spied = Spied()
        failed: list[str] = []

        def follow(running: tuple[int, Helper] | None) -> None:
            while running is not None:
                pid, spy = running
                out, why = spy.output(end_s, _OUTPUT_BYTES)
                with self._lock:
                    self._running.pop(pid, None)
                try:
                    spied.threads.update(parse(out, pid, numbers.get(pid, {})))
                except ValueError:
                    failed.append(f"pid {pid}: {why or 'py-spy printed nothing'}")
                running = self._start()

        # an unresponsive process occupies only its own slot
        followers = [
            threading.Thread(target=follow, args=(running,), name="kcover-spy", daemon=True)
            for running in list(self._running.items())
        ]
        for follower in followers:
            follower.start()
        for follower in followers:
            follower.join()
        spied.blind += self._blind
        if failed:
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            spied.blind.append(f"Python frames ({failed[0]}{more})")
        return spied

    def close(self) -> None:
        """Kill the processes that still run."""
        self._waiting.clear()
        while self._running:
            self._running.popitem()[1].end()


def is_python(name: str) -> bool:
    """True if a process with this name can have Python frames."""
    return "python" in name or name.startswith(("pt_", "torchrun", "ray"))


def program() -> str | None:
    """Path of py-spy, next to our interpreter or in PATH; None if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def parse(out: bytes, pid: int, numbers: Mapping[int, int]) -> dict[Thread, SpiedThread]:
    """Frames by thread, from py-spy's JSON; raises `ValueError` for anything else."""
    try:
        threads = json.loads(out)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(threads, list):
        raise ValueError("no list")
    found: dict[Thread, SpiedThread] = {}
    for thread in threads:
        if not isinstance(thread, dict) or not isinstance(thread.get("os_thread_id"), int):
            continue
        tid = thread["os_thread_id"]
        frames = thread.get("frames")
        shown = tuple(map(_frame, frames)) if isinstance(frames, list) else ()
        found[pid, numbers.get(tid, tid)] = SpiedThread(shown, thread.get("owns_gil") is True)
    return found


def _frame(raw: Any) -> PythonFrame:
    frame = raw if isinstance(raw, dict) else {}
    path, line = str(frame.get("filename") or ""), frame.get("line")
    return PythonFrame(
        function=str(frame.get("name") or "?"),
        file=str(frame.get("short_filename") or path or "?"),
        line=line if type(line) is int and 0 < line <= _MOST_LINE else 0,
        is_library=_LIBRARY.search(path) is not None,
    )
