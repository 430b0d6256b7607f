"""The tiny fault programs of testbed/faults, compiled once, and how tests run and watch them."""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from kcover_ebpf.facts.kernel import Detail, SampleRequest
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.kernel.sampler import KernelSampler
from testbed.skips import ROOT

FIRINGS = 23
"""A prime number of times: a lost or doubled event cannot hide in a round figure."""

DEADLINE_S = 20.0
AWAKE = ("spin", "yield")
"""Kinds of testbed/faults/waits.c that do not sleep."""
T = TypeVar("T")

CLOSELY = SampleRequest(Detail.ALL, every=1)
"""Every thread at the next pass, whether or not it moved, and those that ran at later ones."""
EACH_PASS = SampleRequest(every=1)
"""Every thread is visited in each pass, and sent if it moved."""


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kcover-faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def program(name: str) -> str:
    """Path of a compiled testbed/faults/NAME.c; in a guest without a compiler of one that its host compiled."""
    if built := os.environ.get("KCOVER_FAULT_PROGRAMS"):
        return f"{built}/{name}"
    compiler = shutil.which("cc") or shutil.which("clang-14") or "cc"
    binary = _folder() / name
    source = ROOT / "testbed" / "faults" / f"{name}.c"
    subprocess.run(
        [compiler, "-O1", "-pthread", "-o", str(binary), str(source)], check=True, timeout=60
    )
    return str(binary)


class Running:
    """A fault program under way; talks in lines."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.pid = Pid(self._process.pid)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self, text: str = "go") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")

    def work(self) -> None:
        """One round of testbed/faults/works.c."""
        self.say()
        assert self.line() == "done"

    def wait(self) -> int:
        return self._process.wait(timeout=DEADLINE_S)

    def rest(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.read().split()

    def end(self) -> None:
        """Kill the whole session, so that nothing stays behind."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGCONT)
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(timeout=DEADLINE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def running(*command: str) -> Iterator[Running]:
    one = Running(*command)
    try:
        yield one
    finally:
        one.end()


@contextmanager
def waiting(*kinds: str) -> Iterator[tuple[Running, dict[str, Tid]]]:
    """testbed/faults/waits.c with a thread for each kind of wait, and the tid of each; all of them wait by now."""
    with running(program("waits"), *kinds) as target:
        lines = [target.line().split() for _ in kinds]
        tids = {kind: Tid(int(tid)) for kind, tid in lines}
        asleep = [tid for kind, tid in tids.items() if kind not in AWAKE]
        until_asleep(target.pid, target.pid, *asleep)
        yield target, tids


def until_asleep(pid: Pid, *tids: int) -> None:
    """Wait until these threads of a process sleep or are gone; without any, all of them."""
    chosen = tids or [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    until(lambda: all(state_of(pid, tid) in "SDX" for tid in chosen), "threads that sleep")


def state_of(pid: int, tid: int | None = None) -> str:
    """The state of a thread, the first unless said, as in proc(5), such as "S"; "X" of one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/task/{tid or pid}/stat").read_text()
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def watch(kernel: KernelSampler, pid: Pid, wanted_request: SampleRequest = CLOSELY) -> None:
    """Watch a process as closely as wanted."""
    kernel.watch(pid)
    kernel.request(pid, wanted_request)


def events(kernel: KernelSampler, count: int, *kinds: type[T]) -> list[T]:
    """Wait for `count` facts of some kinds, then a little more: one too many is seen as well."""
    found: list[T] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        found += of_kind(kernel.wait(0.2), *kinds)
    while more := kernel.wait(0.1):
        found += of_kind(more, *kinds)
    return found


def of_kind(facts: Iterable[object], *kinds: type[T]) -> list[T]:
    return [fact for fact in facts if isinstance(fact, kinds)]


def until(reached: Callable[[], T | None], what: str) -> T:
    """What `reached` finds, asked again and again; fails when time is up."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = reached()
        if found is not None and found is not False:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")
