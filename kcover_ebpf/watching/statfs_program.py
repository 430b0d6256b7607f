"""Asks one file system whether it answers: `python -I -S statfs_program.py PID DESCRIPTOR [PATH]`.

One file that imports nothing of ours, so that the process is small: if the server behind the file system does not
answer, the process stays in that call, and cannot even be killed (fs/fuse/dev.c waits for a request that its server
has read).

The file is descriptor DESCRIPTOR of process PID; if that is -1, it is PATH, as that process sees it. It is opened
with O_PATH, which touches neither file nor device. Exit code 0: the file system answered, if only with an error. 3:
it could not be asked.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_OPENAT2 = 437
"""Number of the system call on every architecture (include/uapi/asm-generic/unistd.h)."""
_NO_MAGIC_LINKS, _IN_ROOT = 0x02, 0x10
"""RESOLVE_ flags of include/uapi/linux/openat2.h: an absolute link leads to a file of that process, not of ours."""
COULD_NOT_ASK = 3


def opened(pid: int, descriptor: int, path: str) -> int:
    """A descriptor for `fstatvfs`; raises `OSError`, also where the kernel has no openat2(2) (before 5.6)."""
    if descriptor >= 0:
        return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_PATH)
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY)
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _NO_MAGIC_LINKS | _IN_ROOT)
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = libc.syscall(_OPENAT2, root, os.fsencode(path), how, len(how))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def main(pid: int, descriptor: int, path: str = "") -> int:
    """Ask, and return the exit code."""
    try:
        if descriptor < 0 and not path.startswith("/"):
            path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)  # noqa: PTH115, PTH118 - pathlib takes 20 ms to import
        file = opened(pid, descriptor, path)
    except (ProcessLookupError, PermissionError):
        return COULD_NOT_ASK
    except OSError as error:
        # an error of a path's lookup comes from its file system; a descriptor involves the kernel only
        return COULD_NOT_ASK if descriptor >= 0 or error.errno == errno.ENOSYS else 0
    try:
        os.fstatvfs(file)
    except OSError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4]))
