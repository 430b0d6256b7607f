"""The sensor's facts against bcc, which counts the same by other means."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcover_ebpf.facts.kernel import ProcessExit, ThreadSample
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.kernel.sampler import KernelSampler
from testbed.driver import bcc_headers
from tests.kernel import bcc_oracle
from tests.kernel.helpers import (
    CLOSELY,
    FIRINGS,
    Running,
    events,
    of_kind,
    program,
    running,
    until_asleep,
    watch,
)

pytestmark = pytest.mark.needs("bcc")
# Computes and sleeps by turns, and waits for a line before and after.
WORK = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        end_s = time.monotonic() + 0.01
        while time.monotonic() < end_s:
            pass
        time.sleep(0.005)
    print("done", flush=True)
"""


class Account(NamedTuple):
    cpu_ns: int
    """What the scheduler charged to the thread."""
    span_ns: int
    """Wall time between switches."""
    sleeps: int


class Oracle:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def read(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self.line())
        return found

    def account(self, tid: int) -> Account:
        return Account(*self.read()["accounts"].get(str(tid), (0, 0, 0)))


@contextmanager
def oracle(folder: Path, *pids: int) -> Iterator[Oracle]:
    command = [bcc_headers.SYSTEM_PYTHON, bcc_oracle.__file__, *map(str, pids)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=bcc_headers.environment(folder),
    ) as process:
        made = Oracle(process)
        assert made.line() == "ready\n"
        yield made


def sample(kernel: KernelSampler, pid: int) -> ThreadSample:
    (found,) = of_kind(kernel.sample([Pid(pid)]), ThreadSample)
    return found


def asleep(worker: Running) -> None:
    until_asleep(worker.pid, Tid(worker.pid))


def test_cpu_time_and_sleeps_of_a_thread(kernel: KernelSampler, tmp_path: Path) -> None:
    """While it waits for a line neither moves, so that both are read of the same moment."""
    with (
        running(sys.executable, "-c", WORK) as worker,
        oracle(tmp_path, worker.pid) as witness,
    ):
        assert worker.line() == "ready"
        worker.say("2")
        assert worker.line() == "done"
        asleep(worker)
        watch(kernel, worker.pid, CLOSELY)
        before, account = sample(kernel, worker.pid), witness.account(worker.pid)
        worker.say(str(FIRINGS))
        assert worker.line() == "done"
        asleep(worker)
        after, later_account = sample(kernel, worker.pid), witness.account(worker.pid)
    sleeps = later_account.sleeps - account.sleeps
    assert after.voluntary_count - before.voluntary_count == sleeps >= FIRINGS
    counted_ns = after.cpu_ns - before.cpu_ns
    assert counted_ns >= FIRINGS * 2_000_000
    assert counted_ns == later_account.cpu_ns - account.cpu_ns
    # a switch is seen a moment after the clock of the thread has started
    assert counted_ns <= 1.01 * (later_account.span_ns - account.span_ns)


def test_the_processes_that_ended(kernel: KernelSampler, tmp_path: Path) -> None:
    with (
        running(program("repeat"), str(FIRINGS), program("exits"), "3") as parent,
        oracle(tmp_path) as witness,
    ):
        assert parent.line() == "ready"
        kernel.watch(parent.pid)
        parent.say()
        children = {int(pid) for pid in parent.rest()}
        reported = {fact.pid for fact in events(kernel, FIRINGS + 1, ProcessExit)}
        ended = set(witness.read()["ended"])
    assert reported == children | {parent.pid}
    assert reported <= ended
