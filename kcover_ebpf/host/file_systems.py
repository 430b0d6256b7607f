"""Which kind of file system an open file is on (statfs(2)). A file of the kernel's own is regular, and does things."""

from __future__ import annotations

import ctypes
import os

OF_THE_KERNEL = {
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
"""Magic numbers of include/uapi/linux/magic.h. In a container of the node's root user such a file belongs to its user:
a register of a device, or a process's memory."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_STRUCT_BYTES = 256
"""More than struct statfs has on 64-bit architectures, where it begins with the magic number, a word."""


def magic_of(descriptor: int) -> int:
    """The number of the file system of a file, which may be open by O_PATH; raises `OSError`."""
    buffer = (ctypes.c_ulong * (_STRUCT_BYTES // 8))()
    if _LIBC.fstatfs(descriptor, ctypes.byref(buffer)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(buffer[0])
