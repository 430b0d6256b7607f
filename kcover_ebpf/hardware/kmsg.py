"""Reader of /dev/kmsg: a rung that nobody can forge."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from kcover_ebpf.hardware.kernlog import KmsgRecord, parse_record

_RECORD_BYTES = 8192


class KmsgReader:
    """Reads new records without waiting; `lost_count` of them were overwritten before."""

    def __init__(self, path: str = "/dev/kmsg", *, from_start: bool = False) -> None:
        """Open at the end, or at the oldest record; raises `OSError`."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_SET if from_start else os.SEEK_END)
        self._next: int | None = None
        self.lost_count = 0

    def records(self) -> Iterator[KmsgRecord]:
        """Records that are there now."""
        while True:
            try:
                raw = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                # EPIPE: overwritten under us, the next read goes on at the oldest that is left
                if error.errno not in (errno.EPIPE, errno.EINVAL, errno.EINTR):
                    raise
                continue
            record = parse_record(raw)
            if record is not None:
                if self._next is not None:
                    self.lost_count += max(0, record.sequence - self._next)
                self._next = record.sequence + 1
                yield record

    def close(self) -> None:
        """Stop reading."""
        os.close(self._fd)
