"""Reader of /dev/kmsg: a rung of the Xid ladder that cannot be forged."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcover_ebpf.devices.xid.kmsg_parser import KmsgRecord

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


def _open_end(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.lseek(fd, 0, os.SEEK_END)
    return fd
