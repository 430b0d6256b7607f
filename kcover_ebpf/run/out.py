"""Standard output as whole lines, whatever its reader does.

A reader that went away (a closed pipe) silences the output and does no other harm. One that lives and does not read
must not stop a sensor, so a run writes through a queue. A replay has nothing to miss meanwhile and waits for it.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable

from kcover_ebpf.tunables.host import OUT_FLUSH_S

_QUEUE_BYTES = 1 << 20
"""Bytes that wait for the reader at most: a thousand verdicts with their evidence."""
_UNREAD = (errno.EPIPE, errno.EIO)
"""Errors after which nothing more is read from the descriptor: a pipe's reader or a terminal is gone."""


def _no_notice(_count: int) -> str:
    return ""


class Out:
    """A file descriptor for whole lines, which waits for its reader; silent once it has none.

    A line that cannot be written (a full disk) is dropped, and the next one is preceded by a notice.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.notice: Callable[[int], str] = _no_notice
        """Text that says how many writes were dropped; set by the sink, which knows the form."""
        self._broken = False
        self._is_torn = False
        """The last write ended within a line."""
        self._dropped = 0
        """Writes dropped since the last notice."""
        self._lock = threading.RLock()

    def write(self, text: str) -> None:
        """Write all of it in one call if the reader keeps up, so that lines never mix."""
        if not text or self._broken:
            return
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = self.notice(dropped) + text
            self._pass_on(text.encode("utf-8", "backslashreplace"), dropped + 1)

    def _pass_on(self, data: bytes, count: int) -> None:
        """`count`: writes that are dropped if this one is."""
        if not self._write_whole(data):
            self._dropped += count

    def _write_whole(self, data: bytes) -> bool:
        """False if some of it was dropped."""
        if self._is_torn:
            data = b"\n" + data
        rest = data
        while rest and not self._broken:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:  # the job, which shares the descriptor, has set O_NONBLOCK
                self._await_room()
            except OSError as error:
                self._broken = error.errno in _UNREAD
                break
        self._is_torn = bool(rest) and (self._is_torn or len(rest) < len(data))
        return not rest or self._broken

    def _await_room(self) -> None:
        room = select.poll()
        room.register(self.descriptor, select.POLLOUT)
        room.poll()


class QueuedOut(Out):
    """As `Out`, but never waits: a thread writes what is queued, and what does not fit into the queue is dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._changed = threading.Condition(self._lock)
        self._queue: deque[tuple[bytes, int]] = deque()
        """Data and `count` of `_pass_on`; the first is being written."""
        self._queued_bytes = 0
        self._is_closed = False
        self._writer: threading.Thread | None = None
        """Started with the first write: threads keep the privileges with which they start."""

    def _pass_on(self, data: bytes, count: int) -> None:
        if self._queued_bytes + len(data) > _QUEUE_BYTES:
            self._dropped += count
            return
        self._queue.append((data, count))
        self._queued_bytes += len(data)
        self._changed.notify_all()
        if self._writer is None:
            # A daemon: it may be in a write that never returns when we end.
            self._writer = threading.Thread(target=self._write_queued, name="output", daemon=True)
            self._writer.start()

    def _write_queued(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if not self._queue:
                    return
                data, count = self._queue[0]
            is_written = self._write_whole(data)
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= len(data)
                if not is_written:
                    self._dropped += count

    def close(self) -> None:
        """Write what is queued, but wait no longer than `OUT_FLUSH_S` for a reader that does not read."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._writer is not None:
            self._writer.join(OUT_FLUSH_S)
