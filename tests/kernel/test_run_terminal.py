"""`run` at a terminal: the job reads it, Ctrl-C reaches both, and it is whole again afterwards."""

import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.kernel.command import COMMAND, PATIENCE_S, PYTHON, own_group
from tests.waiting import until

pytestmark = pytest.mark.needs("cgroup2")

SAVER = """\
import time
print("training", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)  # longer than the pause before a process is asked again
    open("saved", "w")
"""


class Terminal:
    """A command whose controlling terminal is ours."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ["TERM"] = "xterm"
            os.execv(COMMAND, [COMMAND, *arguments])
        ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.text = ""
        self.code: int | None = None

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def read(self, timeout_s: float) -> bool:
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def read_until(self, found: Callable[[str], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not found(self.text):
            assert time.monotonic() < deadline, f"no {what} in {self.text!r}"
            self.read(0.1)

    def finish(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.read(0.1)
            if pid:
                break
            assert time.monotonic() < deadline, self.text
        while self.read(0.3):
            pass
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*arguments: str) -> Terminal:
        made.append(Terminal(tmp_path, *arguments))
        return made[-1]

    yield make
    for terminal in made:
        terminal.close()
        until(lambda pid=terminal.pid: not own_group(pid).exists(), "the group to go")  # type: ignore[misc]


def test_the_live_table_and_a_whole_terminal_afterwards(
    start: Callable[..., Terminal],
) -> None:
    terminal = start("run", "--", "sleep", "2.5")
    terminal.read_until(lambda text: "WAITS IN" in text, "table")
    assert terminal.finish() == 0
    assert "\x1b[1;17r" in terminal.text
    after = terminal.text.rpartition("\x1b[r")[2]
    assert after, "the scroll region was not given back"
    assert "the job ended with exit code 0" in after


def test_the_supervisor_gives_the_terminal_back_when_we_are_killed(
    start: Callable[..., Terminal],
) -> None:
    terminal = start("run", "--", "sleep", "30")
    terminal.read_until(lambda text: "WAITS IN" in text, "table")
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.finish() == -9
    terminal.read_until(lambda text: "\x1b[r" in text, "reset of the scroll region")


def test_the_job_reads_the_terminal(start: Callable[..., Terminal]) -> None:
    # in one write, also unbuffered: the table is drawn between two
    script = "import sys; print('got ' + input('name? ').upper()); sys.exit(3)"
    terminal = start("run", "--", PYTHON, "-c", script)
    terminal.read_until(lambda text: "name?" in text, "question")
    terminal.type("kcover\n")
    assert terminal.finish() == 3
    assert "got KCOVER" in terminal.text


def test_ctrl_c_lets_the_job_save_its_state(start: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = start("run", "--", PYTHON, "-c", SAVER)
    terminal.read_until(lambda text: "training" in text, "training")
    time.sleep(0.5)
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert (tmp_path / "saved").exists()


def test_json_at_a_terminal_draws_nothing(start: Callable[..., Terminal]) -> None:
    terminal = start("run", "-o", "json", "--", "sleep", "1")
    assert terminal.finish() == 0
    assert "\x1b" not in terminal.text
