"""Writes a file of the agent's state in its own thread: a disk that does not answer keeps no order waiting."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from kcover_ebpf.agent.state_file import write_json
from kcover_ebpf.errors import ActionError


class LateWriter:
    """Replaces one file, durably, by the newest value. Thread-safe."""

    def __init__(self, path: Path, wait_s: float) -> None:
        """`wait_s`: longest that `write` takes."""
        self._path, self._wait_s = path, wait_s
        self._changed = threading.Condition()
        self._value: object = None
        self._wanted = self._ended = 0
        """Numbers of the last value that was given, and of the last that was written or refused."""
        self._begun_s = 0.0
        """Since when the disk is waited for: the time that its thread takes to begin counts as well."""
        self._error: OSError | None = None
        """Of the last write that ended."""
        self._is_running = False

    def write(self, value: object) -> None:
        """Have it written; raises `ActionError` where that failed, or has not ended in time.

        What did not end in time is written when the disk answers again, unless another value was given meanwhile.
        """
        with self._changed:
            self._value = value
            self._wanted += 1
            number = self._wanted
            if not self._is_running:
                self._is_running, self._begun_s = True, time.monotonic()
                threading.Thread(target=self._run, name="journal", daemon=True).start()
            elif time.monotonic() - self._begun_s > self._wait_s:
                raise ActionError(f"cannot write {self._path}: the disk does not answer")
            if not self._changed.wait_for(lambda: self._ended >= number, self._wait_s):
                raise ActionError(f"cannot write {self._path}: the disk does not answer")
            if self._error is not None:
                raise ActionError(f"cannot write {self._path}: {self._error.strerror}")

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._ended == self._wanted:
                    self._is_running = False
                    return
                number, value = self._wanted, self._value
            error: OSError | None = None
            try:
                write_json(self._path, value, durable=True)
            except OSError as caught:
                error = caught
            with self._changed:
                self._ended, self._error = number, error
                self._begun_s = time.monotonic()
                self._changed.notify_all()
