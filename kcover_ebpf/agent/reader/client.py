"""The agent's side of a reader: starts it, asks it, and replaces one that crashed or does not answer.

    asked     {"id": 7, "do": "logs", "with": {...}}
              with "descriptors": how many come with it (SCM_RIGHTS)
    answered  {"id": 7, "is": ...} or {"id": 7, "no": "why"}, after any number of {"id": 7, "at": "..."}
              with "over": what tenants made that was over its bound since the last answer (`host.over_bounds`)

`at` is what it works on now: if the process ends, that is the cause.
"""

from __future__ import annotations

import array
import contextlib
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kcover_ebpf
from kcover_ebpf.agent.reader.questions import Question, Questions, text_of
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.frames import FrameError, FrameReader, pack
from kcover_ebpf.confined.helper import Confinement, Helper
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.host import over_bounds
from kcover_ebpf.tunables.agent import (
    READER_AGAIN_S,
    READER_LONGEST_PAUSE_S,
    READER_PATIENCE_S,
    READER_PING_S,
    READER_STEADY_S,
)

_MOST_STUCK = 8
"""Questions that were given up and are still unanswered: each occupies a thread of the reader."""
_DEAD, _FULL = "it did not respond", "too many of its threads are stuck"
_MOST_LEFT = 4
"""Killed readers that have not ended yet. Above this number no other reader is started, to bound the processes."""
_BLOCK_BYTES = 256 << 10


class ConfinedReader:
    """One reader process at a time. `ask` may be called by any thread, and waits no longer than its deadline."""

    def __init__(
        self,
        name: str,
        confinement: Confinement,
        on_end: Callable[[str, str], None],
        program: str = "kcover_ebpf.agent.reader.program",
    ) -> None:
        """`name`: selects the operations.

        `on_end`: called with name and reason when it ended, by a thread of this object.

        `program`: the module that is run.
        """
        self._program = program
        self.name = self._name = name
        self._confinement, self._on_end = confinement, on_end
        self._lock = threading.Lock()
        self._questions = Questions()
        self._connection: socket.socket | None = None
        self._helper: Helper | None = None
        self._up = threading.Event()
        self._closing = threading.Event()
        self._why = "it has not been started"
        self._thread = threading.Thread(target=self._run, name=f"kcover-{name}", daemon=True)
        self.starts = 0
        """How often the process was started."""

    def start(self) -> None:
        """Start the process; returns at once. The first question also starts it."""
        with self._lock:
            if self._thread.ident is None and not self._closing.is_set():
                self._thread.start()

    @property
    def pid(self) -> int | None:
        """Pid of the process; None while none runs."""
        running = self._helper
        return None if running is None else running.pid

    def ask(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        deadline_s: float,
        descriptors: Sequence[int] = (),
        *,
        start_s: float | None = None,
    ) -> Any:
        """The answer, plain JSON; `deadline_s`: the longest wait in seconds. Raises `ReaderError`.

        `start_s`: the longest wait while the reader is being started; None: `deadline_s`.
        """
        end_s = time.monotonic() + deadline_s
        self.start()
        if not self._up.wait(deadline_s if start_s is None else start_s):
            raise ReaderError(f"the reader of {self._name} is not running: {self._why}")
        number, question = self._send(operation, arguments, descriptors, end_s)
        try:
            answer = self._answer_to(question, end_s)
        except queue.Empty:
            self._give_up(number)
            text = f"no answer to {operation} within {deadline_s:g} s"
            raise ReaderError(text, question.at) from None
        finally:
            self._questions.drop(number)
        if answer is None:
            raise ReaderError(f"the reader of {self._name} ended: {self._why}", question.at)
        over_bounds.add(answer.get("over"))
        if "no" in answer:
            raise ReaderError(text_of(answer["no"]))
        return answer.get("is")

    def _answer_to(self, question: Question, end_s: float) -> Mapping[str, Any] | None:
        """The answer; None if the reader ended. Raises `queue.Empty` if none came in time."""
        while True:
            left_s = max(0.0, end_s - time.monotonic())
            try:
                return question.answers.get(timeout=min(left_s, READER_PATIENCE_S))
            except queue.Empty:
                if left_s <= READER_PATIENCE_S:
                    raise
            self._end_if_dead()

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        self._shut()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def _send(
        self, operation: str, arguments: Mapping[str, Any], descriptors: Sequence[int], end_s: float
    ) -> tuple[int, Question]:
        number, question = self._questions.add()
        try:
            counted = {"descriptors": len(descriptors)} if descriptors else {}
            frame = pack({"id": number, "do": operation, "with": arguments, **counted})
            self._write(frame, descriptors, end_s)
        except (FrameError, ReaderError) as error:
            self._questions.drop(number)
            if isinstance(error, FrameError):
                raise ReaderError(f"too many questions at once: {error}") from error
            raise
        return number, question

    def _write(self, frame: bytes, descriptors: Sequence[int], end_s: float) -> None:
        attached = []
        if descriptors:
            attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        with self._lock:
            connection = self._connection
            if connection is None:
                raise ReaderError(f"the reader of {self._name} is not running: {self._why}")
            try:
                connection.settimeout(max(0.001, end_s - time.monotonic()))
                sent = connection.sendmsg([frame], attached)
                connection.sendall(frame[sent:])
            except OSError as error:
                # part of a frame may be sent: the reader could not understand anything after it
                self._shut()
                raise ReaderError(f"the reader of {self._name} accepts no question") from error

    def _give_up(self, number: int) -> None:
        """A question was not answered in time: end the reader if all of it is stuck, not just one thread."""
        if self._questions.give_up(number) >= _MOST_STUCK:
            self._why = _FULL
            self._shut()
        else:
            self._end_if_dead()

    def _end_if_dead(self) -> None:
        if not self._is_alive():
            self._why = _DEAD
            self._shut()

    def _is_alive(self) -> bool:
        try:
            number, question = self._send("ping", {}, (), time.monotonic() + READER_PING_S)
        except ReaderError:
            return False
        try:
            return question.answers.get(timeout=READER_PING_S) is not None
        except queue.Empty:
            return False
        finally:
            self._questions.drop(number)

    def _shut(self) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- the thread that starts the reader and receives answers; the reader is killed when it ends

    def _run(self) -> None:
        pause_s = READER_AGAIN_S
        while not self._closing.is_set():
            began_s = time.monotonic()
            self._why = self._live()
            if self._closing.is_set():
                return
            self._on_end(self._name, self._why)
            is_steady = time.monotonic() - began_s > READER_STEADY_S
            pause_s = READER_AGAIN_S if is_steady else min(2 * pause_s, READER_LONGEST_PAUSE_S)
            self._closing.wait(pause_s)
            while helper.left_behind.count() >= _MOST_LEFT and not self._closing.wait(pause_s):
                self._why = f"{_MOST_LEFT} earlier processes hang in the kernel"

    def _live(self) -> str:
        """Run one reader from its start to its end; returns why it ended."""
        ours, theirs = socket.socketpair()
        command = [*_command(self._program), self._name, str(theirs.fileno())]
        # a time-out belongs to an object: sender and receiver use different copies
        with ours, ours.dup() as sender:
            try:
                with theirs:
                    running = helper.start(
                        command,
                        self._confinement,
                        stdout=subprocess.DEVNULL,
                        passed=(theirs.fileno(),),
                        session=True,
                    )
            except OSError as error:
                return f"it cannot be started: {error.strerror or error}"
            self._why, self.starts = "it is being started", self.starts + 1
            with self._lock:
                self._helper, self._connection = running, sender
            self._up.set()
            broken = self._hear(ours)
        self._up.clear()
        with self._lock:
            self._helper = self._connection = None
        why = self._reason_of(running, broken)
        self._why = why
        self._questions.end()
        return why

    def _reason_of(self, running_helper: Helper, broken: str) -> str:
        forced = broken or (self._why if self._why in (_DEAD, _FULL) else "")
        if not forced and not running_helper.wait(time.monotonic() + 0.2):
            forced = "it closed its connection"
        words = "" if forced else running_helper.last_words()
        if not running_helper.end():
            forced = f"{forced or 'it was killed'}; process {running_helper.pid} does not end and is abandoned"
        return forced or words or _exit_of(running_helper.exit_code)

    def _hear(self, connection: socket.socket) -> str:
        """Read answers until the reader ends; returns why no more can be read, empty if it ended by itself."""
        frames = FrameReader()
        while True:
            try:
                block = connection.recv(_BLOCK_BYTES)
            except (
                BlockingIOError
            ):  # a time-out of the sender's makes both ends of the copy non-blocking
                poll = select.poll()
                poll.register(connection.fileno(), select.POLLIN)
                poll.poll()
                continue
            except OSError:
                return ""
            if not block:
                return ""
            try:
                for answer in frames.feed(block):
                    self._questions.take(answer)
            except FrameError as error:
                return f"it answered {error}"


def _command(program: str) -> list[str]:
    """Command of an interpreter that imports only what is asked for: without `site` it takes 4 MB less."""
    start = f"import sys; sys.path[:0] = sys.argv.pop(1).split(chr(10)); from {program} import main; main()"
    package = str(Path(kcover_ebpf.__file__).parent.parent)
    # our own interpreter's path; an editable installation is not on it
    places = [package, *(str(Path(text).absolute()) for text in sys.path)]
    return [sys.executable, "-I", "-S", "-B", "-c", start, "\n".join(places)]


def _exit_of(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}"
    return f"exit code {code}"
