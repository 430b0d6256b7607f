"""Processes of the cost bench: the training, its threads, the sensor, and what each used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kcover_ebpf.host import cgroups

ROOT = Path(__file__).resolve().parents[2]
SENSOR = ROOT / ".venv" / "bin" / "kcover-ebpf"
_READY_S = 60.0
_END_S = 20.0


def build_load(folder: Path) -> str:
    """Compile load.c; returns the program's path."""
    target = folder / "load"
    source = Path(__file__).with_name("load.c")
    command = ["clang-14", "-O1", "-pthread", "-o", str(target), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return str(target)


def cpu_ns(pids: list[int]) -> int:
    """CPU time of all living threads of some processes, in nanoseconds (proc(5), schedstat)."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total


def memory_kib(pid: int, field: str) -> int:
    """A field of /proc/PID/status in KiB, like VmRSS or VmHWM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise ValueError(field)


class Group:
    """A control group, so that the sensor can watch a whole job; killed and removed at the end."""

    def __init__(self, name: str) -> None:
        path = cgroups.make_for_job(f"kcover-cost-{name}", os.getpid())
        if path is None:
            sys.exit("the cost bench needs a writable cgroup v2 hierarchy: run it as root")
        self.path = path

    def start(self, command: list[str], *, stdout: int | None = None) -> subprocess.Popen[str]:
        """Start a command inside the group."""
        enter = f'echo $$ > "{self.path}/cgroup.procs"; exec "$@"'
        return subprocess.Popen(
            ["/bin/sh", "-c", enter, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )

    def pids(self) -> list[int]:
        """Its processes now."""
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def close(self) -> None:
        """Kill what is in it and remove it."""
        deadline = time.monotonic() + _END_S
        while self.path.exists() and time.monotonic() < deadline:
            for pid in self.pids():
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            cgroups.remove(self.path)


class Training:
    """A torch + gloo training of two ranks, its steps recorded by itself."""

    def __init__(self, group: Group, events: Path, *options: str) -> None:
        self._events = events
        self._group = group
        launch = str(ROOT / "tools" / "workloads" / "launch")
        self._launcher = group.start(
            [launch, "--world", "2", "--events", str(events), "--", "--workers", "0", *options]
        )
        self.wait_for("step")

    def wait_for(self, event: str) -> None:
        """Until every rank said so."""
        deadline = time.monotonic() + _READY_S
        while len({line["rank"] for line in self._lines() if line["event"] == event}) < 2:
            if time.monotonic() > deadline or self._launcher.poll() is not None:
                sys.exit(f"the training did not come to {event!r}; is python3-torch installed?")
            time.sleep(0.1)

    def rank_pids(self) -> list[int]:
        """The two ranks."""
        return sorted({line["pid"] for line in self._lines() if line["event"] == "start"})

    def steps(self, begin_s: float, end_s: float) -> list[float]:
        """CLOCK_MONOTONIC seconds at which rank 0 ended a step, within an interval."""
        return [
            line["mono"]
            for line in self._lines()
            if line["event"] == "step" and line["rank"] == 0 and begin_s <= line["mono"] <= end_s
        ]

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self._events.read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line]

    def end(self) -> None:
        """Reap the launcher; the group kills the rest."""
        self._group.close()
        self._launcher.wait(timeout=_END_S)


class Sensor:
    """The command as a user runs it, watching a group."""

    def __init__(self, group: Group) -> None:
        begin = time.monotonic()
        self._process = subprocess.Popen(
            [str(SENSOR), "run", "-o", "json", "--cgroup", str(group.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        self.start_s = time.monotonic() - begin
        if '"event":"start"' not in first:
            sys.exit(f"the sensor did not start: {first!r}")
        self.pid = self._process.pid

    def end(self) -> list[dict[str, Any]]:
        """Stop it; returns what it told."""
        self._process.send_signal(signal.SIGTERM)
        told, _ = self._process.communicate(timeout=_END_S)
        return [json.loads(line) for line in told.splitlines()]
