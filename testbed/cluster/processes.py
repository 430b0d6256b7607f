"""Starts the parts of a test bed and knows them again: a process is its pid and its start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.cluster import cgroups, shell

STOP_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A started part; `start_ticks` is field 22 of /proc/PID/stat (clock ticks since boot)."""

    pid: int
    start_ticks: int
    since: float
    """Unix seconds."""

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return start_ticks(self.pid) == self.start_ticks

    def stop(self) -> None:
        """Ask it to end, and after 10 s end it by force; returns when it is gone."""
        deadline = time.monotonic() + STOP_PATIENCE_S
        signal_number = signal.SIGTERM
        while self.alive():
            if time.monotonic() > deadline:
                signal_number = signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)
            time.sleep(0.05)


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when there is none or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def started_unix(ticks: int) -> float:
    """The Unix time of a number of clock ticks since boot; early by at most a tick."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    raise ValueError("/proc/stat has no btime")


def start(log: Path, cgroup: str, command: shell.Words) -> Process:
    """Start a part in a cgroup, with its output in the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    enter = 'echo 0 > "$0" && exec "$@"'
    with open(log, "ab") as output:
        child = subprocess.Popen(
            ["sh", "-c", enter, cgroups.procs_file(cgroup), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    ticks = start_ticks(child.pid)
    if ticks is None:  # died at once: its log says why
        ticks = 0
    # The parent leaves it behind on purpose; without this Python would warn about it.
    child.returncode = 0
    return Process(child.pid, ticks, started_unix(ticks))


def boot_id() -> str:
    """Differs after every boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
