"""A run while it runs: where its processes are, and what has to be undone in the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.faultbench.job import TAG_VARIABLE, Job
from bench.faultbench.plan import RunSpec
from bench.faultbench.truth import Event, first, parse
from testbed.workloads.training import EventLog

POLL_S = 0.02


class RunFailed(Exception):
    """The run could not be carried out; the text says why."""


@dataclass(slots=True)
class Live:
    """One job under test. `tag` is the prefix of everything it creates on the host."""

    run: RunSpec
    tag: str
    folder: Path
    log: EventLog
    undo: ExitStack
    jobs: list[Job]
    path: str = ""
    _offset: int = 0
    _events: list[Event] = field(default_factory=list)

    @property
    def events_path(self) -> Path:
        """Where the training and the injector write."""
        return self.folder / "events.jsonl"

    def events(self) -> list[Event]:
        """All events up to now, in the order of time."""
        with self.events_path.open() as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._offset += len(whole)
        self._events += parse(whole)
        return self._events

    def is_alive(self) -> bool:
        """Whether the job runs, or is being started."""
        begun = first(self.events(), "launch")
        if begun is None:
            return self.jobs[0].top.poll() is None
        return Path(f"/proc/{begun['pid']}").exists() and first(self.events(), "job_exit") is None

    def pid(self, rank: int) -> int:
        """The process of a rank (its latest incarnation)."""
        starts = [e for e in self.events() if e["event"] == "start" and e["rank"] == rank]
        return int(starts[-1]["pid"])

    def launcher(self) -> Event:
        """The event the launcher wrote when it began: its pid and cgroups."""
        event = first(self.events(), "launch")
        if event is None:
            raise RunFailed("the launcher did not start")
        return event

    def workers(self, rank: int) -> list[int]:
        """The children of a rank."""
        return children(self.pid(rank))

    def pids(self) -> list[int]:
        """Every process of the job, the launcher first."""
        found = [int(self.launcher()["pid"])]
        for pid in found:
            found += children(pid)
        return found

    def begin_fault(self, **more: Any) -> None:
        """Write down, just before it happens, that the culprit is being hit."""
        rank = self.run.culprit
        kind = self.run.scenario.host
        self.log.write("fault", kind=kind, culprit=rank, target=self.pid(rank), **more)

    def begin_phase(self) -> None:
        """Write down that a quiet phase from outside begins."""
        self.log.write("phase_begin", kind=self.run.scenario.host)

    def end_phase(self) -> None:
        """Write down that it is over."""
        self.log.write("phase_end", kind=self.run.scenario.host)

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than the job lives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.is_alive():
            time.sleep(POLL_S)

    def wait_for(self, condition: Callable[[], bool], limit_s: float, what: str) -> bool:
        """Wait until the condition holds; False if the job ended first. Raises RunFailed."""
        end = time.monotonic() + limit_s
        while not condition():
            if not self.is_alive():
                return condition()
            if time.monotonic() > end:
                raise RunFailed(f"{what} not seen within {limit_s:.0f} s")
            time.sleep(POLL_S)
        return True


def children(pid: int) -> list[int]:
    """The direct children of a process, from all of its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def tagged(value: str) -> list[int]:
    """Processes, but this one, whose environment has a tag that starts with `value`."""
    needle = f"{TAG_VARIABLE}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if needle in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def kill_tagged(value: str) -> None:
    """End every tagged process, until none is left or 10 s are over."""
    end = time.monotonic() + 10
    while time.monotonic() < end and (pids := tagged(value)):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
