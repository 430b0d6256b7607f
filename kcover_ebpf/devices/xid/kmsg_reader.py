"""Reader of /dev/kmsg: a rung that cannot be forged."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcover_ebpf.devices.xid.kmsg_parser import KmsgRecord

_RECORD_BYTES = 8192
_READ_ON = (errno.EPIPE, errno.EINVAL, errno.EINTR)
"""EPIPE: overwritten under us, the next read continues at the oldest that is left."""


def may_concern(raw: bytes) -> bool:
    """False for a record of /dev/kmsg that no driver wrote whose lines are read here; there may be thousands."""
    return (
        b"NVRM: " in raw
        or b"nvidia-nvswitch" in raw
        or b"mlx5_core " in raw
        or b"amdgpu " in raw
        or b": pciehp: " in raw
    )


def stored(path: str = "/dev/kmsg") -> Iterator[bytes]:
    """Each record that is kept since the boot, or since the log was cleared (`dmesg --clear`); raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(fd, 0, os.SEEK_DATA)
        while True:
            try:
                raw = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _READ_ON:
                    raise
                continue
            yield raw
    finally:
        os.close(fd)


class KmsgReader:
    """Reads new records without waiting.

    A log may get thousands of lines a second that concern no job, so a reader that is notified when one
    matters need not read the others: `skip` leaves them out, except those since the skip before.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        """Open at the end of the log; raises `OSError`."""
        self._older, self._newer = _open_end(path), _open_end(path)
        self._next = 0
        self.lost_count = 0
        """Records that were overwritten before they were read."""

    def records(self) -> Iterator[KmsgRecord]:
        """Records of drivers that are there now and were not read before."""
        while True:
            try:
                raw = os.read(self._older, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _READ_ON:
                    raise
                self.lost_count += 1
                continue
            if not may_concern(raw):
                continue
            # most nodes never have such a record, and the patterns would make each start longer
            from kcover_ebpf.devices.xid.kmsg_parser import parse_record

            record = parse_record(raw)
            if record is not None and record.sequence >= self._next:
                self._next = record.sequence + 1
                yield record

    def skip(self) -> None:
        """Leave out what was there at the skip before this one."""
        self._older, self._newer = self._newer, self._older
        os.lseek(self._newer, 0, os.SEEK_END)

    def close(self) -> None:
        """Stop reading."""
        os.close(self._older)
        os.close(self._newer)


def _open_end(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.lseek(fd, 0, os.SEEK_END)
    return fd
