"""Runs processes that may hang in the driver: each has a time limit, and one that cannot be killed is left behind."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.gpucheck.plan import ROOT, NotPossible

KILL_PATIENCE_S = 5.0
"""A process in a driver call dies when the call returns; one that takes longer than this hangs."""
TERMINATE_PATIENCE_S = 3.0
"""The sensor takes a second to end its job and itself."""


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"tools.gpucheck.{name}", *arguments]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": ":".join(paths), **(extra or {})}


def end(process: subprocess.Popen[str]) -> bool:
    """Kill the process group of a child; False if it still exists after `KILL_PATIENCE_S`."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def run(command: Sequence[str], limit_s: float, log: Path) -> str:
    """Run a command to its end; returns "" or a sentence that says how it failed. Its output goes to `log`."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            start_new_session=True,
        )
    try:
        code = process.wait(limit_s)
        # read before processes left behind print how they end
        said = last_line(log.read_text())
    except subprocess.TimeoutExpired:
        left = (
            "" if end(process) else f", cannot be killed and was left behind as pid {process.pid}"
        )
        return f"not over after {limit_s:.0f} s{left}"
    finally:
        _end_session(process.pid)
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code}: {said}" if code else ""


def _end_session(leader: int) -> None:
    """End what a part has started and not ended; its own children are process groups of its session.

    SIGTERM comes first, because the sensor then ends its job, whose processes are in other sessions.
    """
    deadline_s = time.monotonic() + TERMINATE_PATIENCE_S
    for pid in _members(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while _members(leader) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for pid in _members(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _members(leader: int) -> list[int]:
    """The processes of a session, without its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError):
            pid = int(entry.name)
            if pid != leader and os.getsid(pid) == leader:
                found.append(pid)
    return found


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")


class Talking:
    """A child that reports its progress, one line at a time, and may wait for a line from us."""

    def __init__(self, command: Sequence[str], extra: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(extra),
            process_group=0,
        )
        self.pid = self.process.pid
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # a thread, because reading by lines cannot be combined with a time-out
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.stdout:
                self._lines.put(line.strip())
        self._lines.put(None)

    def await_line(self, beginning: str, limit_s: float) -> str:
        """The rest of the next line with this beginning; raises `NotPossible` if none arrives."""
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise NotPossible(f"no word of {beginning!r} within {limit_s:.0f} s") from None
            if line is None:
                raise NotPossible(self.said[-1] if self.said else "its process ended at once")
            self.said.append(line)
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()


@contextlib.contextmanager
def talking(command: Sequence[str], extra: Mapping[str, str] | None = None) -> Iterator[Talking]:
    child = Talking(command, extra)
    try:
        yield child
    finally:
        end(child.process)
        if child.process.stdin is not None:
            with contextlib.suppress(OSError):
                child.process.stdin.close()
