"""What a drill does to one rank without a signal: a lock that it waits for, and an Xid that names it."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.agent.drill import Drill
from kcover_ebpf.agent.drill_note import DrillNote
from kcover_ebpf.api.drill import DrillEnd, DrillFault
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.ids import Pid

from .helpers import state_of
from .order_bench import wait_until

pytestmark = pytest.mark.needs("root")
_REST = "import time; time.sleep(600)"
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86-64")


# ---- a lock

_COUNTS = {
    "computes": "n = 0\nwhile True:\n    n += 1\n    if n % 100_000 == 0: print(n, flush=True)\n",
    "sleeps": "import time\nwhile True:\n    print(1, flush=True); time.sleep(0.02)\n",
    "waits": """
import socket, threading, time
a, b = socket.socketpair()
def send():
    while True:
        a.send(b"x"); time.sleep(0.02)
threading.Thread(target=send, daemon=True).start()
while True:
    assert b.recv(1) == b"x"; print(1, flush=True)
""",
    "takes signals": """
import signal, time
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while True:
    assert sum(i * 0.5 for i in range(100)) == 2475.0; print(1, flush=True); time.sleep(0.02)
""",
}
"""Ranks that print while they make progress."""


@pytest.fixture(params=_COUNTS)
def counter(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", _COUNTS[request.param]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as made:
        assert made.stdout is not None
        os.set_blocking(made.stdout.fileno(), False)
        wait_until(lambda: printed(made) > 0)
        yield made
        made.kill()


def printed(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return len(process.stdout.read() or b"")


def waits_for_lock(process: subprocess.Popen[bytes]) -> bool:
    # by its number on the one architecture
    return Path(f"/proc/{process.pid}/syscall").read_text().startswith("202 ")


@on_x86
def test_a_rank_that_waits_for_a_lock_continues_where_it_was(
    counter: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with Drill(lambda: {counter.pid}, tmp_path, 1.0) as drill:
        drill.inject(DrillFault.LOCK)
        wait_until(lambda: waits_for_lock(counter))
        printed(counter)
        time.sleep(0.3)
        assert printed(counter) == 0
        # one that takes signals is away from the lock for a moment each time
        wait_until(lambda: waits_for_lock(counter) and state_of(counter.pid) == "S")
        assert "TracerPid:\t0\n" in Path(f"/proc/{counter.pid}/status").read_text()
        assert drill.wait().end is DrillEnd.RESUMED
    for _ in range(3):
        wait_until(lambda: printed(counter) > 0)
    assert counter.poll() is None


@on_x86
def test_a_rank_does_not_wait_for_a_lock_whose_holder_was_killed(
    counter: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            with Drill(lambda: {counter.pid}, tmp_path, 100.0) as drill:
                drill.inject(DrillFault.LOCK)
                while True:
                    signal.pause()
        finally:
            os._exit(1)
    wait_until(lambda: waits_for_lock(counter))
    printed(counter)
    time.sleep(0.2)
    assert printed(counter) == 0
    wait_until(lambda: waits_for_lock(counter))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _ in range(3):
        wait_until(lambda: printed(counter) > 0)


@on_x86
def test_a_rank_that_is_stopped_already_is_not_made_to_wait(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _REST]) as rank:
        rank.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(rank.pid) == "T")
        with (
            Drill(lambda: {rank.pid}, tmp_path, 1.0) as drill,
            pytest.raises(CannotObserve, match="stopped already"),
        ):
            drill.inject(DrillFault.LOCK)
        rank.send_signal(signal.SIGCONT)
        wait_until(lambda: state_of(rank.pid) == "S")
        rank.kill()


# ---- what the agent is asked to judge


def test_an_xid_is_taken_by_the_agent_once(tmp_path: Path) -> None:
    note, taken = DrillNote(tmp_path), list[int | None]()

    def take() -> None:
        while not any(taken):
            taken.append(note.take())
            time.sleep(0.02)

    with subprocess.Popen([sys.executable, "-c", _REST]) as rank:
        agent = threading.Thread(target=take)
        agent.start()
        with Drill(lambda: {rank.pid}, tmp_path, 0.5) as drill:
            drill.inject(DrillFault.XID_NOTE)
            assert rank.poll() is None, "nothing is done to it"
            assert drill.wait().end is DrillEnd.RESUMED
        agent.join()
        rank.kill()
    assert taken[-1] == rank.pid
    assert note.take() is None


def test_an_agent_that_does_not_take_a_note_finds_none_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcover_ebpf.agent.drill_note.DRILL_NOTE_TAKEN_S", 0.2)
    with pytest.raises(CannotObserve, match="does not read"):
        DrillNote(tmp_path).leave(Pid(1))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "drill-xid.json").write_text("{")
    assert DrillNote(tmp_path).take() is None
    assert list(tmp_path.iterdir()) == []
