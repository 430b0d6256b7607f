"""Files of a watched process, as it sees them, opened without being led elsewhere.

The path is walked from the process's own root, one folder after the other, and no symbolic link is followed: a link in
a container would be resolved outside of it. What is opened is a file or pipe of the process's own user, and never
opened before that is known, for opening a device does things. All this may block for ever on a file system that does
not answer, so a worker does it (`read_workers`).
"""

from __future__ import annotations

import os
import stat
from pathlib import PurePosixPath

from kcover_ebpf.host import bounded, file_systems, procfs
from kcover_ebpf.host.proc_text import status_numbers
from kcover_ebpf.ids import Pid

FileIdentity = tuple[int, int, int, int] | None
"""Device, inode, time of the last change (ns) and size (bytes) of a file, by which another one is known; None: none."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RankFileError(OSError):
    """It is not what it should be; the message says what it is."""


def opened(pid: Pid, path: str, flags: int, *, pipe: bool) -> int:
    """A descriptor of a pipe, or else a regular file; raises `RankFileError`, or the `OSError` of the kernel."""
    found = _found(pid, path)
    try:
        status = os.fstat(found)
        if not (stat.S_ISFIFO if pipe else stat.S_ISREG)(status.st_mode):
            raise RankFileError(f"{path} is not a {'named pipe' if pipe else 'regular file'}")
        if status.st_uid != _user(pid):
            raise RankFileError(f"{path} belongs to another user")
        if (kind := file_systems.magic_of(found)) in file_systems.OF_THE_KERNEL:
            raise RankFileError(f"{path} is on {file_systems.OF_THE_KERNEL[kind]}")
        # the same file, whatever the path leads to by now
        return os.open(f"/proc/self/fd/{found}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)


def opened_folder(pid: Pid, path: str) -> int:
    """A descriptor of a folder of the process's own user; raises as `opened`."""
    found = _found(pid, path)
    try:
        status = os.fstat(found)
        if not stat.S_ISDIR(status.st_mode):
            raise RankFileError(f"{path} is not a folder")
        if status.st_uid != _user(pid):
            raise RankFileError(f"{path} belongs to another user")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{found}", flags)
    finally:
        os.close(found)


def identity_of(pid: Pid, path: str) -> FileIdentity:
    """Of a regular file as it is; raises `OSError`."""
    try:
        file = opened(pid, path, os.O_RDONLY, pipe=False)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(file)
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
    finally:
        os.close(file)


def _found(pid: Pid, path: str) -> int:
    names = PurePosixPath(path)
    parts = names.parts[1:] if names.is_absolute() else names.parts
    if not parts or ".." in parts:
        raise RankFileError(f"{path} is no plain path")
    base = procfs.PROC / str(pid) / ("root" if names.is_absolute() else "cwd")
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except NotADirectoryError:
        raise RankFileError(f"the path of {path} has a symbolic link, or is none") from None
    finally:
        os.close(folder)


def _user(pid: Pid) -> int:
    """The user as whom the process creates files (the fourth number in /proc/PID/status)."""
    return status_numbers(bounded.read_bytes(procfs.PROC / str(pid) / "status"), b"Uid")[3]
