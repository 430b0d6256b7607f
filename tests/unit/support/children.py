"""Real child processes that wait in one known way, for tests of what reads other processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kcover_ebpf.facts.host import ReadingRequest
from kcover_ebpf.host.process_tree import read_stat
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.ids import Pid, Tid

PREAMBLE = """
import ctypes, fcntl, os, select, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def ready():
    os.write(1, b"x")
"""


@contextmanager
def child_in(
    body: str,
    words: Sequence[str] = (),
    stdin: int | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> Generator[ReadingRequest]:
    """A child that runs `body`, which calls `ready()` just before it waits; gone at the end."""
    command = [sys.executable, "-S", "-c", PREAMBLE + body, *words]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, pass_fds=pass_fds) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.read(1) == b"x"
            since_ns = boottime_ns()
            _until_asleep(child.pid)
            yield ReadingRequest(Pid(child.pid), Tid(child.pid), since_ns)
        finally:
            child.kill()


def start_ticks_of(pid: int) -> int:
    """Start of a process that exists, in clock ticks since boot."""
    stat = read_stat(pid)
    assert stat is not None
    return stat.start_ticks


def _until_asleep(pid: int) -> None:
    # asleep, and not for the moment of a page fault or a lock: twice in the same call
    deadline_s = time.monotonic() + 10
    last = ""
    while time.monotonic() < deadline_s:
        here = Path(f"/proc/{pid}/syscall").read_text()
        if here == last and here.split()[0] not in ("running", "-1"):
            return
        last = here
        time.sleep(0.01)
    raise TimeoutError(f"process {pid} does not wait: {last}")
