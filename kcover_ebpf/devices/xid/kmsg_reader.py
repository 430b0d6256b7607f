"""Reader of /dev/kmsg: a rung of the Xid ladder that cannot be forged.

A container may have something else in its place: /dev/null, a link to the console, or a file. Such a log has no Xids
and no end of its records, so it counts as a log that cannot be read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcover_ebpf.devices.xid.kmsg_parser import KmsgRecord

_LOG = os.makedev(1, 11)
"""Device number of the kernel's log (drivers/char/mem.c)."""
_RECORD_BYTES = 8192
_READ_ON = (errno.EPIPE, errno.EINVAL, errno.EINTR)
"""Errors after which reading continues. EPIPE: records were overwritten, and the next read returns
the oldest one left."""


def may_concern(raw: bytes) -> bool:
    """False for a record that no driver of interest wrote; thousands of those may come per second."""
    return (
        b"NVRM: " in raw
        or b"nvidia-nvswitch" in raw
        or b"mlx5_core " in raw
        or b"amdgpu " in raw
        or b": pciehp: " in raw
    )


def stored(path: str = "/dev/kmsg") -> Iterator[bytes]:
    """Each record kept since boot or since `dmesg --clear`; raises `OSError`."""
    fd = _opened(path, os.O_RDONLY)
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

    A log may get thousands of irrelevant lines per second. A reader that is notified of relevant lines can `skip`
    the others; records since the previous skip are kept.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        """Open at the end of the log; raises `OSError`."""
        self._older, self._newer = _open_end(path), _open_end(path)
        self._next = 0
        self.lost_count = 0
        """Records overwritten before they were read."""

    def records(self) -> Iterator[KmsgRecord]:
        """New records of drivers that are available now."""
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
            # most nodes never see such a record, and compiling the patterns would slow down each
            # start
            from kcover_ebpf.devices.xid.kmsg_parser import parse_record

            record = parse_record(raw)
            if record is not None and record.sequence >= self._next:
                self._next = record.sequence + 1
                yield record

    def skip(self) -> None:
        """Drop the records that were there at the previous skip."""
        self._older, self._newer = self._newer, self._older
        os.lseek(self._newer, 0, os.SEEK_END)

    def close(self) -> None:
        """Close /dev/kmsg; no further reads are possible."""
        os.close(self._older)
        os.close(self._newer)


def say(path: str, line: str) -> None:
    """Write a line to the log; raises `OSError`, and creates no file where there is no log."""
    fd = _opened(path, os.O_WRONLY)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def _open_end(path: str) -> int:
    fd = _opened(path, os.O_RDONLY)
    os.lseek(fd, 0, os.SEEK_END)
    return fd


def _opened(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if os.fstat(fd).st_rdev != _LOG:
        os.close(fd)
        raise OSError(errno.ENODEV, "it is not the kernel's log", path)
    return fd
