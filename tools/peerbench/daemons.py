"""node-problem-detector and gpud, built from their modules, beside all attempts, and what they report meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
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

from tools.cluster.build import go
from tools.faultbench.job import ROOT

FOLDER = ROOT / ".bench/peers"
NPD = ("k8s.io/node-problem-detector@v1.36.0", "h1:2Dxx80GmUiEplFZbdIPKp3VIeuP7RY1hvtEzbRZVkiY=")
GPUD = ("github.com/leptonai/gpud@v0.4.6", "h1:AHGqGeYQ7B6IYySZbE2HD6gz8ZvSUXlHAHhMfvu+Kcc=")
"""Module and the hash of its content: the newest of each that the module proxy serves."""
_NPD_PORT, _GPUD_PORT = 20257, 15132
_PROBLEM = re.compile(r"^problem_(?:counter|gauge)\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_PERIOD_S = 5.0


def source_of(module: str, content: str) -> Path:
    """The files of a Go module; raises RuntimeError for another content."""
    command = [*map(str, go()), "mod", "download", "-json", module]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    if found["Sum"] != content:
        raise RuntimeError(f"{module} has the hash {found['Sum']}, not {content}")
    return Path(found["Dir"])


def build(source: Path, package: str) -> Path:
    """The program of a Go module; made once. Raises CalledProcessError."""
    program = FOLDER / package.rpartition("/")[2]
    if not program.exists():
        print(f"building {program.name}", flush=True)
        # gpud keeps its state by SQLite, which is C
        variables = {**os.environ, "CGO_ENABLED": "1", "GOFLAGS": "-buildvcs=false"}
        command = [*map(str, go()), "build", "-o", str(program), package]
        subprocess.run(command, cwd=source, check=True, env=variables)
    return program


def configured() -> Path:
    """node-problem-detector is built; a copy of its own configuration beside it. Raises as `build` does."""
    source = source_of(*NPD)
    target = build(source, "./cmd/nodeproblemdetector").with_name("npd-config")
    shutil.copytree(source / "config", target, dirs_exist_ok=True)
    return target


def problems(text: str) -> dict[str, float]:
    """The problems in node-problem-detector's metrics."""
    return {labels: float(value) for labels, value in _PROBLEM.findall(text)}


def unhealthy(text: str) -> dict[str, float]:
    """The components that gpud reports as anything but healthy, from /v1/states."""
    found: dict[str, float] = {}
    for each in json.loads(text):
        for state in each.get("states") or ():
            if state.get("health") != "Healthy":
                found[f"{each['component']}: {state.get('reason')}"] = 1.0
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


def daemons(state: Path) -> list[Daemon]:
    """Both, built, with the options that a node has."""
    of_npd = source_of(*NPD)
    config, npd = of_npd / "config", build(of_npd, "./cmd/nodeproblemdetector")
    gpud = build(source_of(*GPUD), "./cmd/gpud")
    return [
        Daemon(
            "node-problem-detector",
            [
                str(npd), f"--config.system-log-monitor={config}/kernel-monitor.json,{config}/readonly-monitor.json",
                f"--config.system-stats-monitor={config}/system-stats-monitor.json", "--enable-k8s-exporter=false",
                "--prometheus-address=127.0.0.1", f"--prometheus-port={_NPD_PORT}", "--port=0",
            ],
            f"http://127.0.0.1:{_NPD_PORT}/metrics",
            problems,
        ),
        Daemon(
            "gpud",
            [str(gpud), "run", "--listen-address", f"127.0.0.1:{_GPUD_PORT}", "--data-dir", str(state)],
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
        for each in found:
            with open(folder / f"{each.name}.log", "ab") as log:
                processes[each.name] = subprocess.Popen(
                    each.argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder
                )
            threading.Thread(target=each.follow, args=(stop,), daemon=True).start()
        yield processes
    finally:
        stop.set()
        for process in processes.values():
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
