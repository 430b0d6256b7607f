"""One run of one phase: the job under its sensors, the program outside the job, and what they wrote."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.faultbench.job import SENSOR, TAG_VARIABLE, tag_value
from bench.faultbench.live import kill_tagged
from bench.lifebench.needs import PROGRAMS, ROOT
from bench.lifebench.phase import Phase
from bench.lifebench.results import Line, Row, row_of
from testbed.ports import free_port
from testbed.workloads import network

PYTHON = "/usr/bin/python3"
TCP = {"btl": "tcp,self", "btl_tcp_if_include": "lo", "oob_tcp_if_include": "lo"}
"""MPI over sockets of the loopback, as between hosts; over shared memory the kernel sees nothing."""
POLL_S = 0.2
PATIENCE_S = 20.0
"""For a sensor or a program that was asked to end."""


def program(phases: Path, name: str, folder: Path, arguments: tuple[str, ...] = ()) -> list[str]:
    """The command of a program of the folder; C is compiled. Raises subprocess.CalledProcessError."""
    path = phases / name
    if path.suffix == ".py":
        return [PYTHON, "-u", str(path), *arguments]
    if path.suffix == ".c":
        binary = folder / path.stem
        subprocess.run(["gcc", "-O2", "-fopenmp", "-o", binary, path, "-lm"], check=True)
        return [str(binary), *arguments]
    return [str(path), *arguments]


def launched(phase: Phase, command: list[str], host: int, address: str, port: int) -> list[str]:
    """The command that starts the ranks of one host."""
    local = phase.ranks // phase.hosts
    if phase.launcher == "mpi":
        parameters = [word for name, value in TCP.items() for word in ("--mca", name, value)]
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", *parameters]
        return [*mpirun, "--mca", "mpi_yield_when_idle", "1", "-np", str(phase.ranks), *command]
    if phase.launcher == "torchrun":
        options = [f"--nproc_per_node={local}", f"--nnodes={phase.hosts}", f"--node_rank={host}"]
        options += [f"--master_addr={address}", f"--master_port={port}", "--no_python"]
        # PyTorch 1.13 on Python 3.11 knows neither 0, its own default, nor 3.
        options += ["--redirects=1", "--tee=1", "--log_dir=torchrun"]
        return [PYTHON, "-m", "torch.distributed.run", *options, *command]
    if phase.launcher == "loop":
        numbers = ["--ranks", str(local), "--first", str(host * local), "--world", str(phase.ranks)]
        return [PYTHON, "-m", "bench.lifebench.launch", *numbers, "--", *command]
    return command


def on_host(prefix: str, host: int) -> list[str]:
    """What a command begins with to run on one of several hosts, with its own network and name.

    `ip netns exec` would hide the control groups that a sensor needs: it mounts its own /sys.
    """
    space = f"--net=/run/netns/{network.name(prefix, host)}"
    script = f'hostname host-{host} && exec "$@"'
    return ["nsenter", space, "unshare", "--uts", "sh", "-c", script, "sh"]


class RunningPhase:
    """A started run; `wait` gives its row. Needs root."""

    def __init__(self, phase: Phase, phases: Path, folder: Path, tag: str, act: str | None) -> None:
        self._phase, self._phases, self._folder = phase, phases, folder
        self._tag, self._act = tag, act
        self._events = folder / "events.jsonl"
        self._events.touch()
        (folder / "work").mkdir()
        self._cleanup = ExitStack()
        self._beside: subprocess.Popen[bytes] | None = None
        self._beside_code: int | None = None
        self._files = [folder / f"lines-{host}.jsonl" for host in range(phase.hosts)]

    def carry_out(self, run: int) -> Row:
        """From its start to its end."""
        with self._cleanup:
            self._cleanup.callback(unmount, self._folder)
            self._cleanup.callback(kill_tagged, tag_value(self._tag))
            if self._phase.hosts > 1:
                self._cleanup.callback(network.remove, self._tag)
                network.create(self._tag, self._phase.hosts + bool(self._phase.beside))
            jobs = self._start()
            codes = self._wait(jobs)
            self._beside_code = self._beside.poll() if self._beside else None
        hosts = [(code, lines_of(path)) for code, path in zip(codes, self._files, strict=True)]
        return row_of(self._phase, run, lines_of(self._events), hosts, self._beside_code)

    def _start(self) -> list[subprocess.Popen[bytes]]:
        phase, several = self._phase, self._phase.hosts > 1
        address = network.address(0) if several else "127.0.0.1"
        port = free_port()
        stdin, answers = self._standard_input()
        if phase.beside:
            self._start_beside(answers)
        command = program(self._phases, phase.program, self._folder, phase.arguments)
        jobs = []
        for host in range(phase.hosts):
            place = on_host(self._tag, host) if several else []
            sensor = (
                [str(SENSOR), "run", "--act", self._act, "-o", "json", "--"] if self._act else []
            )
            whole = [*place, *sensor, *launched(phase, command, host, address, port)]
            variables = self.variables(address, port, host)
            with self._files[host].open("wb") as lines, self._log() as log:
                out = lines if self._act else log
                jobs.append(self._popen(whole, variables, stdin=stdin, stdout=out, stderr=log))
        if stdin != subprocess.DEVNULL:
            os.close(stdin)
        return jobs

    def _log(self) -> Any:
        return (self._folder / "job.log").open("ab")

    def _popen(
        self, command: list[str], variables: dict[str, str], **more: Any
    ) -> subprocess.Popen[bytes]:
        work = self._folder / "work"
        return subprocess.Popen(command, env=variables, cwd=work, start_new_session=True, **more)

    def _standard_input(self) -> tuple[int, int | None]:
        """The job's standard input, and the other end for the program outside the job."""
        if self._phase.stdin == "tty":
            other, stdin = pty.openpty()
        elif self._phase.stdin == "pipe":
            stdin, other = os.pipe()
        else:
            return subprocess.DEVNULL, None
        self._cleanup.callback(os.close, other)
        return stdin, other

    def _start_beside(self, answers: int | None) -> None:
        """Next to the ranks on one host; where there are several, on another host."""
        hosts = self._phase.hosts
        variables = self.variables("127.0.0.1", 0, hosts)
        if answers is not None:
            variables["LIFE_ANSWERS_FD"] = str(answers)
        place = on_host(self._tag, hosts) if hosts > 1 else []
        command = [*place, *program(self._phases, self._phase.beside, self._folder)]
        with self._log() as log:
            self._beside = self._popen(
                command,
                variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=() if answers is None else (answers,),
            )

    def variables(self, address: str, port: int, host: int) -> dict[str, str]:
        """The environment of what runs on a host; the program outside the job has the number after the last one."""
        ours = {
            TAG_VARIABLE: tag_value(self._tag),
            "LIFE_FOLDER": str(self._folder / "work"),
            "LIFE_EVENTS": str(self._events),
            "LIFE_HOST": str(host),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "PYTHONPATH": f"{ROOT}:{self._phases}",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{os.environ['PATH']}:{PROGRAMS}",
        }
        ours["LIFE_ADDRESS"] = "127.0.0.1"
        if self._phase.hosts > 1:
            ours["GLOO_SOCKET_IFNAME"] = network.DEVICE
            ours["LIFE_ADDRESS"] = network.address(self._phase.hosts)
            ours["LIFE_NETWORK"] = self._tag
        threads = {} if self._phase.program.endswith(".c") else {"OMP_NUM_THREADS": "1"}
        return {**os.environ, **threads, **ours}

    def _wait(self, jobs: list[subprocess.Popen[bytes]]) -> list[int | None]:
        """The exit code of each host, None if it had to be killed.

        A host whose other one was ended by its sensor waits for it in vain, so it is ended as well.
        """
        until_s = time.monotonic() + self._phase.limit_s
        try:
            while time.monotonic() < until_s and any(job.poll() is None for job in jobs):
                if any(job.poll() for job in jobs):
                    until_s = min(until_s, time.monotonic() + PATIENCE_S)
                time.sleep(POLL_S)
            return [job.poll() for job in jobs]
        finally:
            for job in jobs:
                end(job)


def end(job: subprocess.Popen[bytes]) -> None:
    """End it as Ctrl-C does, in the end by force."""
    if job.poll() is None:
        job.send_signal(signal.SIGINT)
    try:
        job.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def unmount(folder: Path) -> None:
    """Unmount what a program mounted below a folder; its server was ended."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "-f", "-l", place], check=False)


def lines_of(path: Path) -> list[Line]:
    """The JSON lines of a file; what is none, such as the half of a line, is reported on stderr."""
    found = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(text))
        except ValueError:
            print(f"lifebench: {path.name}: not JSON: {text[:100]}", file=sys.stderr)
    return found
