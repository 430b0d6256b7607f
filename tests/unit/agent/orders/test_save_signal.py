"""Which process may get a signal to save: one that it cannot end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcover_ebpf.agent.orders.save_signal import takes
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Pid
from tests.unit.support.patience import soon

CALLS = SyscallTable(os.uname().machine)
_PROGRAM = """
import signal, threading
{prepare}
{then}
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
"""
_BLOCK = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])"
_WAIT = "threading.Thread(target=signal.sigwait, args=([signal.SIGUSR1],), daemon=True).start()"
_OTHER = _WAIT.replace("USR1", "USR2")
_UNBLOCK = _BLOCK.replace("SIG_BLOCK", "SIG_UNBLOCK")
_HANDLE = "signal.signal(signal.SIGUSR1, lambda *_: None)"
PROGRAMS = {
    "a thread waits for it": (_BLOCK, _WAIT, True),
    "a handler": (_HANDLE, "pass", True),
    "one thread would be ended by it": (f"{_BLOCK}; {_WAIT}", _UNBLOCK, False),
    "nothing": ("pass", "pass", False),
    "its one open thread waits for another": (f"{_BLOCK}; {_OTHER}", _UNBLOCK, False),
}


def all_wait(pid: int) -> bool:
    """True once each of its threads is in sigwait(3): a thread that was only begun blocks the signal as well."""
    calls = [path.read_text().split()[0] for path in Path(f"/proc/{pid}/task").glob("*/syscall")]
    return all(call.isdigit() and CALLS.name(int(call)) == "rt_sigtimedwait" for call in calls)


@contextmanager
def running(prepare: str, then: str) -> Iterator[int]:
    text = _PROGRAM.format(prepare=prepare, then=then)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            assert soon(lambda: all_wait(process.pid))
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("name", PROGRAMS)
def test_takes__a_signal_that_is_handled_or_waited_for_and_ends_no_thread(name: str) -> None:
    prepare, then, expected = PROGRAMS[name]
    with running(prepare, then) as pid:
        assert takes(Pid(pid), signal.SIGUSR1) is expected


def test_takes__a_process_that_is_gone_takes_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert not takes(Pid(process.pid), signal.SIGUSR1)
