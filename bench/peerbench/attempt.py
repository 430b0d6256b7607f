"""One job under one way: started, hurt, watched until it trains again or it is clear that none will notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.faultbench.job import ROOT, TAG_VARIABLE, tag_value
from bench.faultbench.live import kill_tagged
from bench.faultbench.truth import Event, parse
from bench.peerbench.figures import trains_again_s
from bench.peerbench.meter import Meter
from bench.peerbench.ways import PYTHON, TIMEOUT, TIMEOUT_S, WORLD, Way, Word, command
from testbed.workloads.training import EventLog

STEP_S = 0.5
CULPRIT = 2
FAULT_STEP = 40
"""20 s of training before: what learns how the job usually goes has had the time to."""
START_S = 150.0
PATIENCE_S = TIMEOUT_S + 120.0
PHASE_S = 45.0
"""The quiet phase; longer than torchelastic's timer, shorter than the collectives' time-out."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Fault:
    """`inject` is what the rank does to itself (testbed/workloads), `number` a signal that it gets instead."""

    name: str
    title: str
    inject: str = ""
    number: int = 0
    is_quiet: bool = False


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("killed", "a rank is killed", number=signal.SIGKILL),
        Fault("stopped", "a rank is stopped", number=signal.SIGSTOP),
        Fault("deadlock", "two threads of a rank take two locks crosswise", "deadlock-threads"),
        Fault("native-loop", "a rank computes for ever", "loop-native"),
        Fault("dead-read", "a rank reads from storage that never answers", "read-path"),
        Fault(
            "checkpoint",
            f"healthy: rank 0 saves for {PHASE_S:.0f} s, the others wait",
            "checkpoint",
            is_quiet=True,
        ),
    )
}


class Attempt:
    """`words` are what the way said, each with the time of its arrival (unix seconds)."""

    def __init__(self, way: Way, fault: Fault, folder: Path, tag: str) -> None:
        self._way, self._fault, self._folder, self._tag = way, fault, folder, tag
        self._events = folder / "events.jsonl"
        self._log = EventLog(str(self._events), None)
        self._meter = Meter()
        self.words: list[tuple[float, Word]] = []

    def carry_out(self) -> dict[str, Any]:
        """The events and words of the whole attempt, and what the way cost."""
        processes = [
            self._start(command(self._way, str(self._folder), str(self._events), self._options()))
        ]
        try:
            if self._way.watcher:
                spy = str(ROOT / ".venv/bin/py-spy")
                processes.append(
                    self._start([PYTHON, "-m", self._way.watcher, spy, str(self._events)])
                )
            of_way = processes[-1:] if self._way.watcher or self._way.prefix else []
            self._meter.begin([process.pid for process in of_way])
            self._watch()
            cost = self._meter.end()
        finally:
            for process in processes:
                process.terminate()
            kill_tagged(tag_value(self._tag))
            for process in processes:
                process.wait()
        words = [{"unix": when, "text": word.text, "rank": word.rank} for when, word in self.words]
        return {"events": self.events(), "words": words, **cost}

    def events(self) -> list[Event]:
        """What the training and we wrote."""
        return parse(self._events.read_text())

    def _options(self) -> list[str]:
        options = ["--step-s", str(STEP_S), "--cpu-share", "0.1"]
        if not self._fault.inject:
            return options
        path = self._folder / "file"
        if self._fault.inject == "read-path":
            os.mkfifo(path)
        options += ["--inject", self._fault.inject, "--inject-rank", str(CULPRIT)]
        options += ["--inject-step", str(FAULT_STEP), "--inject-path", str(path)]
        return [*options, "--inject-s", str(PHASE_S)]

    def _start(self, argv: list[str]) -> subprocess.Popen[str]:
        more = {TAG_VARIABLE: tag_value(self._tag), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        more |= {TIMEOUT: str(TIMEOUT_S), **self._way.variables}
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **more},
            cwd=self._folder,
            start_new_session=True,
        )
        for stream, take in ((process.stdout, self._take_json), (process.stderr, self._take)):
            threading.Thread(target=self._read, args=(stream, take), daemon=True).start()
        return process

    def _read(self, stream: IO[str], take: Callable[[str], Word | None]) -> None:
        with open(self._folder / "job.log", "a", encoding="utf-8") as log:
            for line in stream:
                print(line, end="", file=log, flush=True)
                word = take(line)
                if word is not None:
                    self.words.append((time.time(), word))

    def _take(self, line: str) -> Word | None:
        return self._way.read(line)

    def _take_json(self, line: str) -> Word | None:
        try:
            return self._way.read_json(json.loads(line))
        except (ValueError, AttributeError):
            return None

    def _watch(self) -> None:
        self._wait(lambda: self._steps() >= FAULT_STEP * WORLD, START_S)
        if self._fault.number:
            pids = [
                e["pid"] for e in self.events() if e["event"] == "start" and e["rank"] == CULPRIT
            ]
            self._log.write("fault", kind=self._fault.name, culprit=CULPRIT)
            os.kill(pids[-1], self._fault.number)
        if self._fault.is_quiet:
            self._wait(self._is_over, START_S)
        else:
            self._wait(lambda: trains_again_s(self.events(), WORLD) is not None, PATIENCE_S)
        time.sleep(2.0)

    def _steps(self) -> int:
        return sum(event["event"] == "step" for event in self.events())

    def _is_over(self) -> bool:
        """Whether all have trained after the phase, or some were started again."""
        events = self.events()
        ends = [event["unix"] for event in events if event["event"] == "phase_end"]
        starts = [event for event in events if event["event"] == "start"]
        steps = [event for event in events if event["event"] == "step"]
        is_calm = bool(ends) and any(step["unix"] > ends[-1] + 5 for step in steps)
        return is_calm or len(starts) >= 2 * WORLD

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end and not condition():
            time.sleep(POLL_S)
