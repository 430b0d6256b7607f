"""Follows the log of one container in the kubelet's folder: rotation, truncation, restarts of the container.

    FOLDER/NAMESPACE_POD_UID/CONTAINER/N.log      N: restart count of the container (kubelet, pkg/kubelet/kuberuntime)

The kubelet renames N.log to N.log.TIME, asks the runtime to open a new N.log, and compresses the old one later
(pkg/kubelet/logs/container_log_manager.go). Compressed files were read before and are never opened.

This process reads as root, and a pod with a hostPath volume may have written to this folder. So neither symbolic nor
hard links are followed, and only regular files of root are opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.tunables.host import FILE_TICK_NS

MOST_BEHIND_BYTES = 16 << 20
"""Most unread bytes of a log before older ones are skipped: a third of a second of work at 50 MB/s.
The end of a log is what explains a crash."""
KEPT_BYTES = 1 << 20
"""Bytes that are still read after skipping: the last traceback and what led to it."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LOG = re.compile(r"(\d{1,6})\.log")


class UnsafeLogError(Exception):
    """The log is not a regular file of root, so it is not read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a log, in the order in which they were written."""

    start: int
    """Restart count of the container start that wrote them."""
    data: bytes
    skipped_bytes: int = 0
    """Bytes skipped directly before `data`, so that it may begin in the middle of a line."""
    is_first: bool = False
    """True if `data` begins with the first line of this start of the container."""


class LogFiles:
    """The files of one container, in order. Has at most two open descriptors."""

    def __init__(self, folder: Path, pod: str, container: str, *, tail_bytes: int | None) -> None:
        """`pod`: NAMESPACE_POD_UID. `tail_bytes`: read only this much of what exists already; None: everything."""
        self._path = (os.fspath(folder), pod, container)
        self._tail_bytes = tail_bytes
        self._folder: int | None = None
        self._file: int | None = None
        self._start = -1
        self._offset = 0
        self._changed_ns = -1
        self._is_first = False

    def close(self) -> None:
        """Close the files; reading is over."""
        for number in (self._file, self._folder):
            if number is not None:
                os.close(number)
        self._file = self._folder = None

    def read(self, most_bytes: int) -> Chunk | None:
        """The next bytes; None if there are none for now.

        Raises `UnsafeLogError` for a log that must not be read, and `OSError` if the folder cannot be read.
        """
        if self._file is None and not self._open_next():
            return None
        chunk = self._more(most_bytes)
        if chunk is None and self._open_next():
            chunk = self._more(most_bytes)
        return chunk

    def _more(self, most_bytes: int) -> Chunk | None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if size < self._offset:  # truncated: the present content is new
            self._offset = 0
        skipped = 0
        if size - self._offset > MOST_BEHIND_BYTES:
            skipped = size - KEPT_BYTES - self._offset
            self._offset += skipped
        data = os.pread(self._file, most_bytes, self._offset)
        if not data:
            return None
        self._offset += len(data)
        is_first, self._is_first = self._is_first and not skipped, False
        return Chunk(self._start, data, skipped, is_first)

    def _open_next(self) -> bool:
        """Open the file that continues the current one, if any; close the current one once it is read completely."""
        if self._folder is None:
            self._folder = _opened_folder(self._path)
        # a rename or a new file changes the folder's time, which is cheaper to read than the list
        # of files
        changed_ns = os.fstat(self._folder).st_mtime_ns
        if changed_ns == self._changed_ns:
            return False
        name = self._next_name()
        if name is None:
            # two changes within one tick of the kernel's clock have the same time
            is_old = time.time_ns() - changed_ns > FILE_TICK_NS
            self._changed_ns = changed_ns if is_old else -1
            return False
        if self._file is not None and os.fstat(self._file).st_size > self._offset:
            return True  # the runtime wrote to the old file until it had opened the new one
        start, is_new_start = name
        file = _opened_file(f"{start}.log", self._folder)
        if file is not None:
            self._take(file, start, is_new_start=is_new_start)
        return file is not None

    def _next_name(self) -> tuple[int, bool] | None:
        """Restart count of the file to read now, and whether the container was restarted since the current one."""
        assert self._folder is not None
        numbers = sorted(
            int(match[1])
            for name in os.listdir(self._folder)  # noqa: PTH208 - by a descriptor
            if (match := _LOG.fullmatch(name))
        )
        later = [number for number in numbers if number > self._start]
        if self._start < 0:
            return (numbers[-1], True) if numbers else None
        if self._start in numbers and not self._is_current():
            return self._start, False
        return (later[0], True) if later else None

    def _is_current(self) -> bool:
        """True if N.log is the file that is open."""
        assert self._file is not None
        ours = os.fstat(self._file)
        try:
            found = os.stat(f"{self._start}.log", dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return True
        return (ours.st_dev, ours.st_ino) == (found.st_dev, found.st_ino)

    def _take(self, file: int, start: int, *, is_new_start: bool) -> None:
        if self._file is not None:
            os.close(self._file)
        size = os.fstat(file).st_size
        tail, self._tail_bytes = self._tail_bytes, None
        self._file, self._start = file, start
        self._offset = max(0, size - tail) if tail is not None else 0
        self._is_first = is_new_start and self._offset == 0


def _opened_folder(path: tuple[str, str, str]) -> int:
    root, *rest = path
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in rest:
        inner: int | None = None
        try:
            if "/" in name or name in (".", ".."):
                raise UnsafeLogError(f"{name!r} is not the name of a folder")
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except (
            NotADirectoryError
        ) as error:  # O_DIRECTORY with O_NOFOLLOW also refuses a symbolic link
            raise UnsafeLogError(f"{'/'.join(path)}: {name} is a link or not a folder") from error
        finally:
            os.close(folder)
        folder = inner
    return folder


def _opened_file(name: str, folder: int) -> int | None:
    """Descriptor of the file; None if it no longer exists."""
    try:
        file = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:  # ELOOP: a symbolic link; ENXIO: a socket
        raise UnsafeLogError(f"{name}: {error.strerror}") from error
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == 0:
        return file
    with contextlib.suppress(OSError):
        os.close(file)
    raise UnsafeLogError(f"{name} is not a regular file of root with only one name")
