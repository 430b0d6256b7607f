"""One training job as a process tree: alone, or under the detector whose JSON lines are kept."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from bench.faultbench.plan import RunSpec
from bench.faultbench.scenario import FRAMEWORKS
from testbed.workloads.gpu_styles import STYLES

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ("/usr/bin/python3", "-m", "testbed.workloads.launch")
SENSOR = ROOT / ".venv/bin/kcover-ebpf"
JAX_PYTHON = ROOT / ".bench/jax/bin/python"
FRAMEWORKS_PYTHON = ROOT / ".bench/frameworks/bin/python"
CPU_SHARE = 0.05
TAG_VARIABLE = "FAULTBENCH_RUN"


def tag_value(tag: str) -> str:
    """The value of the tag's variable; closed, so that run 1 is not taken for run 10."""
    return tag + ";"


def launch_command(
    run: RunSpec, tag: str, events: Path, path: str, healthy: bool, collector: str = ""
) -> list[str]:
    """The launcher's command line for a run; `healthy` leaves the fault out (a bystander).

    `collector`: HOST:PORT of what a job with background work sends telemetry to, "" for one without.
    """
    scenario = run.scenario
    command = [*LAUNCH, "--framework", run.framework, "--world", str(run.world)]
    command += ["--events", str(events)]
    if run.framework == "jax":
        command += ["--python", str(JAX_PYTHON)]
    if run.framework in FRAMEWORKS:
        command += ["--python", str(FRAMEWORKS_PYTHON)]
    if scenario.netns and not healthy:
        command += ["--netns", tag]
    if scenario.absent and not healthy:
        command += ["--absent", str(run.culprit)]
    if collector:
        command += ["--monitor"]
    style = STYLES.get(run.framework)
    share = style.host_share if style else CPU_SHARE
    command += ["--", "--step-s", str(run.step_s), "--cpu-share", str(share)]
    if collector:
        command += ["--background", collector]
    if scenario.inject and not healthy:
        command += ["--inject", scenario.inject, "--inject-rank", str(run.culprit)]
        command += ["--inject-step", str(run.fault_step), "--inject-s", str(scenario.phase_s)]
        command += ["--inject-path", path, "--inject-factor", str(scenario.factor)]
    return command


class Job:
    """A started job; `lines` grows while it runs. `act` None leaves the detector out."""

    form = "json"

    def __init__(self, command: list[str], act: str | None, tag: str, folder: Path, stdin: str):
        self.act, self._tag, self._folder = act, tag, folder
        self.lines: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._answer_fd: int | None = None
        self._stdin = self._open_stdin(stdin)
        prefix = [*self._sensor(), "--"] if act else []
        self.top = self._start([*prefix, *command])
        if self._stdin != subprocess.DEVNULL:
            os.close(self._stdin)
            self._stdin = subprocess.DEVNULL

    def _sensor(self) -> list[str]:
        return [str(SENSOR), "run", "--act", str(self.act), "-o", self.form]

    def _open_stdin(self, kind: str) -> int:
        if kind == "tty":
            self._answer_fd, theirs = pty.openpty()
            return theirs
        if kind == "pipe":
            theirs, self._answer_fd = os.pipe()
            return theirs
        return subprocess.DEVNULL

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        variables = {**os.environ, TAG_VARIABLE: tag_value(self._tag), "PYTHONPATH": str(ROOT)}
        with self.log_file() as log:
            process = subprocess.Popen(
                command,
                stdin=self._stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                cwd=self.folder(),
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.take(line.rstrip("\n"))

    def take(self, line: str) -> None:
        """Keep a line of the detector; anything but JSON on its standard output is noise."""
        try:
            self.lines.append(json.loads(line))
        except ValueError:
            self.noise.append(line[:200])

    def folder(self) -> Path:
        """Where it runs, and where the sensor puts its snapshots."""
        return self._folder

    def log_file(self) -> IO[str]:
        """Where the job's own output goes."""
        return open(self._folder / "job.log", "a")

    def answer(self) -> None:
        """Type a line into the job's standard input."""
        if self._answer_fd is not None:
            os.write(self._answer_fd, b"yes\n")

    def restart_sensor(self, cgroup: str) -> None:
        """Kill the sensor and have a second one take over the job that lives on in `cgroup`."""
        self.top.kill()
        self.top.wait()
        self.top = self._start([*self._sensor(), "--cgroup", cgroup])

    def interrupt(self) -> int | None:
        """End the job as Ctrl-C does; its exit code, None if it had to be killed after 15 s."""
        if self.top.poll() is None:
            self.top.send_signal(signal.SIGINT)
        try:
            return self.top.wait(15)
        except subprocess.TimeoutExpired:
            self.top.kill()
            self.top.wait()
            return None

    def log_tail(self) -> str:
        """The last lines that the job or the sensor printed."""
        text = (self._folder / "job.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-12:])
