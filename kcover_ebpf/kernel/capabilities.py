"""The rights of this process: which it has, which the sensor needs, and how it gives up the others.

Numbers: include/uapi/linux/capability.h. Only the permitted and effective sets are lowered; the
bounding set and no_new_privs are left alone, because a job that is started (or restarted) from here
must have its user's full rights: a program that root executes gets them back from the bounding set.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from pathlib import Path


class Capability(IntEnum):
    """Those that are needed at one time or another."""

    DAC_OVERRIDE = 1
    DAC_READ_SEARCH = 2
    KILL = 5
    SETGID = 6
    SETUID = 7
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYSLOG = 34
    PERFMON = 38
    BPF = 39


KEPT = frozenset(
    {
        Capability.BPF,  # map updates, before Linux 5.19
        Capability.DAC_OVERRIDE,  # writing cgroup files
        Capability.DAC_READ_SEARCH,  # /proc/PID of other users
        Capability.KILL,  # ending the job
        Capability.SETGID,  # starting it again
        Capability.SETUID,
        Capability.SYS_PTRACE,  # /proc/PID/mem, fd, syscall of others
    }
)
"""What the sensor still needs once its programs are attached."""

_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def effective() -> frozenset[int]:
    """Numbers of the capabilities this process has in effect."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return frozenset(number for number in range(64) if mask >> number & 1)
    return frozenset()


def missing() -> tuple[str, ...]:
    """Names of the capabilities that loading BPF needs and that are not there."""
    have = effective()
    if Capability.SYS_ADMIN in have:
        return ()
    needed = (Capability.BPF, Capability.PERFMON)
    return tuple(f"CAP_{one.name}" for one in needed if one not in have)


def drop(kept: frozenset[Capability] = KEPT) -> None:
    """Give up every capability but `kept`, for this thread and those it makes; raises `OSError`.

    To be called once, after attaching and before threads are started. It never gains one.
    """
    mask = sum(1 << number for number in effective() & kept)
    header = _Header(_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (_Data * 2)(_Data(low, low, 0), _Data(high, high, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
