"""Files of the agent's state folder: each is written whole or not at all, and only root may read it.

`LateWriter` writes one in its own thread, so that an unresponsive disk delays no order.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcover_ebpf.api import codec
from kcover_ebpf.errors import ActionError


def write_json(
    path: Path,
    value: object,
    encode: Callable[[object], dict[str, Any]] = codec.encode,
    *,
    durable: bool = False,
) -> None:
    """Replace the file with a dataclass as JSON, in the form of `encode`; on `OSError` the file is unchanged.

    One writer per file at a time. `durable`: the file is on disk when this returns, not only in the page cache, so
    that it survives a crash of the node.
    """
    write_text(path, json.dumps(encode(value)), durable=durable)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace the file with a text; otherwise as `write_json`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".draft")
    # the kubelet creates a hostPath's folder readable by all
    with open(draft, "w", encoding="utf-8", opener=_only_root) as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)


def _only_root(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


class LateWriter:
    """Replaces one file, durably, with the newest value. Thread-safe."""

    def __init__(self, path: Path, wait_s: float) -> None:
        """`wait_s`: seconds after which `write` gives up waiting."""
        self._path, self._wait_s = path, wait_s
        self._changed = threading.Condition()
        self._value: object = None
        self._wanted = self._ended = 0
        """Sequence numbers of the last value given, and of the last value written or refused."""
        self._begun_s = 0.0
        """Start of the current wait for the disk; includes the time that the thread takes to start."""
        self._error: OSError | None = None
        """Error of the last finished write; None if it succeeded."""
        self._is_running = False

    def write(self, value: object) -> None:
        """Write the value; raises `ActionError` if that failed or did not finish in time.

        A late write still happens when the disk answers again, unless a newer value was given meanwhile.
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
