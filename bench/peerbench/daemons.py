"""node-problem-detector and gpud, built from their modules, running during all attempts, and their reports."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.cluster import build, versions

_NPD_PORT, _GPUD_PORT = 20257, 15132
_PROBLEM = re.compile(r"^problem_(?:counter|gauge)\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_PERIOD_S = 5.0


def npd() -> tuple[Path, Path]:
    """node-problem-detector, built, and its own configuration. Raises `Failure`."""
    wanted = versions.program("node-problem-detector")
    return build.program(wanted, print), build.module_folder(wanted) / "config"


def last_line(log: Path) -> str:
    """What a program said last."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def problems(text: str) -> dict[str, float]:
    """The problems in node-problem-detector's metrics."""
    return {labels: float(value) for labels, value in _PROBLEM.findall(text)}


def unhealthy(text: str) -> dict[str, float]:
    """The components that gpud reports as anything but healthy, from /v1/states."""
    found: dict[str, float] = {}
    for load in json.loads(text):
        for state in load.get("states") or ():
            if state.get("health") != "Healthy":
                found[f"{load['component']}: {state.get('reason')}"] = 1.0
    return found


@dataclass
class Daemon:
    """One of them at work; `reported` has every problem that was not there in the beginning, with its time."""

    name: str
    argv: Sequence[str]
    url: str
    read: Callable[[str], dict[str, float]]
    reported: list[tuple[float, str]] = field(default_factory=list)
    problem: str = ""
    """Why it cannot be asked; empty while it can."""

    def follow(self, stop: threading.Event) -> None:
        """Ask it again and again."""
        before: dict[str, float] | None = None
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while not stop.wait(_PERIOD_S):
            try:
                with urllib.request.urlopen(self.url, timeout=10, context=context) as answer:
                    now = self.read(answer.read().decode())
            except (OSError, ValueError, KeyError) as error:
                self.problem = str(error)
                continue
            self.problem = ""
            known = before if before is not None else now
            self.reported += [(time.time(), key) for key in now if now[key] > known.get(key, 0.0)]
            before = now


def daemons() -> list[Daemon]:
    """Both, built, with the options that a node has."""
    detector, config = npd()
    gpud = build.program(versions.program("gpud"), print)
    return [
        Daemon(
            "node-problem-detector",
            [
                str(detector),
                f"--config.system-log-monitor={config}/kernel-monitor.json,{config}/readonly-monitor.json",
                # not its statistics: it ends where the kernel has no /proc/modules
                "--enable-k8s-exporter=false", "--prometheus-address=127.0.0.1",
                f"--prometheus-port={_NPD_PORT}", "--port=0",
            ],
            f"http://127.0.0.1:{_NPD_PORT}/metrics",
            problems,
        ),
        Daemon(
            "gpud",
            [str(gpud), "run", "--listen-address", f"127.0.0.1:{_GPUD_PORT}"],
            f"https://127.0.0.1:{_GPUD_PORT}/v1/states",
            unhealthy,
        ),
    ]  # fmt: skip


@contextmanager
def running(found: Sequence[Daemon], folder: Path) -> Iterator[dict[str, subprocess.Popen[Any]]]:
    """Their processes by name, as long as the block."""
    stop = threading.Event()
    processes = {}
    try:
        for daemon in found:
            with open(folder / f"{daemon.name}.log", "ab") as log:
                processes[daemon.name] = subprocess.Popen(
                    daemon.argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder
                )
            threading.Thread(target=daemon.follow, args=(stop,), daemon=True).start()
        yield processes
    finally:
        stop.set()
        for daemon in found:
            if (code := processes[daemon.name].poll()) is not None:
                daemon.problem = f"it ended with {code}: {last_line(folder / f'{daemon.name}.log')}"
        for process in processes.values():
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
