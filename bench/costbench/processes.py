"""Processes of the cost bench: groups, the training, the sensor, and what each used."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcover_ebpf.host import cgroups

ROOT = Path(__file__).resolve().parents[2]
SENSOR = ROOT / ".bench/sensor/bin/kcover-ebpf"
"""In an environment without the machine's own packages, as users install it."""
_READY_S = 90.0
_END_S = 20.0
_WORLD = 2
STEADY_S = 70.0
"""From then on a crowd that never trains is sampled less often, and a training is known as one."""


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


def status_number(pid: int, name: str, file: str = "status") -> int:
    """A number of /proc/PID/status or smaps_rollup: VmRSS and Pss are KiB, switches are counts."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise ValueError(name)


def _make_group(name: str) -> Path:
    path = cgroups.make_for_job(f"kcover-cost-{name}", os.getpid())
    if path is None:
        sys.exit("the cost bench needs a writable cgroup v2 hierarchy: run it as root")
    return path


class Group:
    """A control group, so that the sensor can watch a whole job; killed and removed at the end."""

    def __init__(self, name: str, parent: Group | None = None) -> None:
        self.path: Path = _make_group(name) if parent is None else parent.path / name
        self.path.mkdir(exist_ok=True)
        self._children: list[subprocess.Popen[str]] = []

    def start(self, command: list[str], *, stdout: int | None = None) -> subprocess.Popen[str]:
        """Start a command inside the group."""
        enter = f'echo $$ > "{self.path}/cgroup.procs"; exec "$@"'
        child = subprocess.Popen(
            ["/bin/sh", "-c", enter, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        self._children.append(child)
        return child

    def park(
        self, load: str, threads: int, processes: int, ranks: tuple[int, int] | None = None
    ) -> list[int]:
        """Start processes with the given number of waiting threads in total; returns their pids.

        `ranks` makes them ranks of a job: the first one's number and the size of the world.
        """
        parked = []
        for index in range(processes):
            count = threads // processes + (index < threads % processes)
            names = [] if ranks is None else [f"RANK={ranks[0] + index}", f"WORLD_SIZE={ranks[1]}"]
            command = ["env", *names, load, "threads", str(count)]
            parked.append(self.start(command, stdout=subprocess.PIPE))
        for child in parked:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                sys.exit(f"this machine does not give {threads} threads to a job")
            child.stdout.close()
        return [child.pid for child in parked]

    def close(self) -> None:
        """Kill what is in it and remove it."""
        deadline = time.monotonic() + _END_S
        while self.path.exists() and time.monotonic() < deadline:
            for pid in cgroups.processes(self.path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            cgroups.remove(self.path)
        for child in self._children:
            child.wait(timeout=_END_S)


class Training:
    """A torch + gloo training of two ranks, its steps recorded by itself."""

    def __init__(self, group: Group, events: Path, *options: str) -> None:
        self._events, self._read_bytes = events, 0
        self._step_ends: list[float] = []
        self._pids: dict[int, int] = {}
        launch = str(ROOT / "testbed" / "workloads" / "launch")
        command = [launch, "--world", str(_WORLD), "--events", str(events), "--", *options]
        self._launcher = group.start(command)
        deadline = time.monotonic() + _READY_S
        while len(self.rank_pids()) < _WORLD or not self._step_ends:
            if time.monotonic() > deadline or self._launcher.poll() is not None:
                sys.exit("the training does not start; is python3-torch installed?")
            time.sleep(0.1)

    def rank_pids(self) -> list[int]:
        """The ranks."""
        self._catch_up()
        return list(self._pids.values())

    def step_ends(self, begin_s: float, end_s: float) -> list[float]:
        """CLOCK_MONOTONIC seconds at which rank 0 ended a step, within an interval."""
        self._catch_up()
        return [at for at in self._step_ends if begin_s <= at <= end_s]

    def _catch_up(self) -> None:
        """Read what was written since; the file grows to megabytes."""
        if not self._events.exists():
            return
        with self._events.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            event = json.loads(line)
            if event["event"] == "start":
                self._pids[event["rank"]] = event["pid"]
            elif event["event"] == "step" and event["rank"] == 0:
                self._step_ends.append(event["mono"])


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process used between two moments."""

    cpu_share: float
    """Of one core; time in the kernel, so also in our BPF programs' iterators, included."""
    wakeups_per_s: float
    """Voluntary context switches: at least one a pass, so this shows the pace."""
    rss_kib: int
    pss_kib: int
    peak_kib: int


class Meter:
    """Measures one process from now on."""

    def __init__(self, pid: int) -> None:
        self._pid, self._begin_s = pid, time.monotonic()
        self._cpu_ns, self._switches = cpu_ns([pid]), self._count_switches()

    def _count_switches(self) -> int:
        return status_number(self._pid, "voluntary_ctxt_switches")

    def read(self) -> Usage:
        """Usage since the meter was made."""
        length_s = time.monotonic() - self._begin_s
        return Usage(
            cpu_share=(cpu_ns([self._pid]) - self._cpu_ns) / 1e9 / length_s,
            wakeups_per_s=(self._count_switches() - self._switches) / length_s,
            rss_kib=status_number(self._pid, "VmRSS"),
            pss_kib=status_number(self._pid, "Pss", "smaps_rollup"),
            peak_kib=status_number(self._pid, "VmHWM"),
        )


def usage_over(pid: int, window_s: float) -> Usage:
    """What a process uses in the next seconds."""
    meter = Meter(pid)
    time.sleep(window_s)
    return meter.read()


@dataclass(frozen=True, slots=True)
class BpfUsage:
    """What the BPF programs of a process used since they were loaded; 0 where the kernel does not count it."""

    run_ns: int
    run_count: int


def bpf_usage(pid: int) -> BpfUsage:
    """Of all programs that a process has open (proc(5), fdinfo), while kernel.bpf_stats_enabled is set."""
    found: dict[str, tuple[int, int]] = {}
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            fields = dict(
                line.split(":", 1) for line in entry.read_text().splitlines() if ":" in line
            )
            if "run_time_ns" in fields:
                found[fields["prog_id"].strip()] = (
                    int(fields["run_time_ns"]),
                    int(fields["run_cnt"]),
                )
    return BpfUsage(
        sum(pair[0] for pair in found.values()), sum(pair[1] for pair in found.values())
    )


class Sensor:
    """The command as a user runs it, watching a group; `start_s` from exec to its first line."""

    def __init__(self, group: Group, command: Path = SENSOR) -> None:
        begin_s = time.monotonic()
        self._process = subprocess.Popen(
            [
                str(command),
                "run",
                "-o",
                "json",
                "--cgroup",
                str(group.path),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._begin_s = begin_s
        first = self._line()
        self.start_s = time.monotonic() - begin_s
        if first.get("event") != "start":
            self._process.kill()
            sys.exit("the sensor does not start: see kcover-ebpf doctor")
        self.pid = self._process.pid

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        return dict(json.loads(text)) if text else {}

    def first_verdict(self) -> tuple[str, float]:
        """The first verdict, and the seconds from exec until it was reported."""
        while (line := self._line()) and line["event"] != "verdict":
            pass
        if not line:
            sys.exit("the sensor ended without a verdict")
        return f"{line['verdict']} {line['cause']}", time.monotonic() - self._begin_s

    def end(self) -> list[str]:
        """Stop it; returns the verdicts it reported."""
        self._process.send_signal(signal.SIGTERM)
        reported, _ = self._process.communicate(timeout=_END_S)
        lines = [json.loads(line) for line in reported.splitlines()]
        return [f"{x['verdict']} {x['cause']}" for x in lines if x["event"] == "verdict"]
