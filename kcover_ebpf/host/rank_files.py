"""Opens files of a watched process in its own mount namespace, without following links.

The path is walked from the root of the process, folder by folder. No symbolic link is followed, because a
container's link would be resolved outside the container. Only files and pipes of the process's own user are opened,
and that is checked first, because opening a device can have effects. Every call may block forever if the file
system does not answer, so callers use a worker (`read_workers`).
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import PurePosixPath

from kcover_ebpf.host import bounded, procfs
from kcover_ebpf.host.proc_text import status_numbers
from kcover_ebpf.ids import Pid

FileIdentity = tuple[int, int, int, int] | None
"""Device, inode, time of the last change (ns) and size (bytes), to tell files and versions apart;
None: no file."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_OF_THE_KERNEL = {
    0x9FA0: "proc",
    0x62656572: "sysfs",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x63677270: "cgroup2",
    0x27E0EB: "cgroup",
    0x73636673: "securityfs",
    0xCAFE4A11: "bpf",
    0xDE5E81E4: "efivarfs",
    0x62656570: "configfs",
}
"""File systems of the kernel by magic number (include/uapi/linux/magic.h). A container that runs as
the node's root owns files there, such as registers of a device or the memory of a process."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_STRUCT_BYTES = 256
"""Larger than struct statfs on 64-bit architectures; the magic number is its first word."""


class RankFileError(OSError):
    """The file is not of the expected kind; the message says what it is."""


def opened(pid: Pid, path: str, flags: int, *, pipe: bool) -> int:
    """A descriptor of a regular file, or of a pipe if asked for; raises `RankFileError`, or the kernel's `OSError`."""
    found = _found(pid, path)
    try:
        status = os.fstat(found)
        if not (stat.S_ISFIFO if pipe else stat.S_ISREG)(status.st_mode):
            raise RankFileError(f"{path} is not a {'named pipe' if pipe else 'regular file'}")
        if status.st_uid != _user(pid):
            raise RankFileError(f"{path} belongs to another user")
        if (kind := _magic_of(found)) in _OF_THE_KERNEL:
            raise RankFileError(f"{path} is on {_OF_THE_KERNEL[kind]}")
        # the same file, even if the path leads elsewhere by now
        return os.open(f"/proc/self/fd/{found}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)


def opened_folder(pid: Pid, path: str) -> int:
    """A descriptor of a folder that belongs to the process's own user; raises as `opened`."""
    found = _found(pid, path)
    try:
        status = os.fstat(found)
        if not stat.S_ISDIR(status.st_mode):
            raise RankFileError(f"{path} is not a folder")
        if status.st_uid != _user(pid):
            raise RankFileError(f"{path} belongs to another user")
        if (kind := _magic_of(found)) in _OF_THE_KERNEL:
            raise RankFileError(f"{path} is on {_OF_THE_KERNEL[kind]}")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{found}", flags)
    finally:
        os.close(found)


def identity_of(pid: Pid, path: str) -> FileIdentity:
    """Identity of the current version of a regular file; raises `OSError`."""
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
        raise RankFileError(f"{path} is not a plain path")
    base = procfs.PROC / str(pid) / ("root" if names.is_absolute() else "cwd")
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except NotADirectoryError:
        raise RankFileError(f"the path of {path} has a symbolic link, or is not a path") from None
    finally:
        os.close(folder)


def _user(pid: Pid) -> int:
    """User id with which the process creates files (the fourth number of Uid in /proc/PID/status)."""
    return status_numbers(bounded.read_bytes(procfs.PROC / str(pid) / "status"), b"Uid")[3]


def _magic_of(descriptor: int) -> int:
    """Magic number of the file system of a file (statfs(2)), which may be open with O_PATH; raises `OSError`."""
    buffer = (ctypes.c_ulong * (_STRUCT_BYTES // 8))()
    if _LIBC.fstatfs(descriptor, ctypes.byref(buffer)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(buffer[0])
