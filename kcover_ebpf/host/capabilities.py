"""Capabilities of this process: which it has, which the sensor needs, and how it drops the others.

Numbers: include/uapi/linux/capability.h. Only the permitted and effective sets are reduced. The bounding set and
no_new_privs stay unchanged, because a job that is started (or restarted) from here must have its user's full
privileges: a program that root executes regains them from the bounding set.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from kcover_ebpf.host.proc_text import status_words


class Capability(IntEnum):
    """Capabilities that some part of the program needs."""

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
"""Needed by the sensor after its programs are attached."""

SPARE = frozenset({Capability.SYS_ADMIN})
"""For connections inside a job's network namespace, raised by one thread for a moment
(docs/decisions/0007)."""


def spare(*, nccl_probes: bool) -> frozenset[Capability]:
    """Capabilities that threads may raise for a moment; with NCCL probes, also those for attaching to a new rank."""
    return SPARE | {Capability.PERFMON} if nccl_probes else SPARE


TRACE = frozenset(
    {
        Capability.BPF,  # map updates, before Linux 5.19
        Capability.DAC_READ_SEARCH,
        Capability.SYS_PTRACE,
    }
)
"""Needed by `trace`, which reads and ends nothing."""

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
    """Numbers of the effective capabilities of this process."""
    words = status_words(Path("/proc/self/status").read_bytes(), b"CapEff")
    mask = int(words[0], 16) if words else 0
    return frozenset(number for number in range(64) if mask >> number & 1)


def missing() -> tuple[str, ...]:
    """Names of the capabilities that loading BPF needs and that are missing."""
    have = effective()
    if Capability.SYS_ADMIN in have:
        return ()
    needed = (Capability.BPF, Capability.PERFMON)
    return tuple(f"CAP_{one.name}" for one in needed if one not in have)


def drop(kept: frozenset[Capability] = KEPT, spare: frozenset[Capability] = frozenset()) -> None:
    """Drop every capability except `kept`, for this thread and threads that it creates; raises `OSError`.

    Those in `spare` are no longer effective, but a thread may raise them again for a moment. Call it once, after
    attaching and before threads are started. It never gains a capability.
    """
    have = effective()
    _set(have & kept, have & (kept | spare))


def renounce(capability: Capability) -> None:
    """Drop one capability permanently, for this thread and unprivileged programs that it executes; raises `OSError`."""
    before, mask = _get(), ~(1 << capability)
    _set_masks(before.effective & mask, before.permitted & mask)


def keep(kept: frozenset[Capability]) -> None:
    """Drop all other capabilities permanently, also spare ones, as `renounce` does; raises `OSError`."""
    before, mask = _get(), sum(1 << capability for capability in kept)
    # a spare capability is not effective now, and may be one of those to keep
    _set_masks(before.permitted & mask, before.permitted & mask)


@contextmanager
def raised(capability: Capability) -> Iterator[None]:
    """Let this thread use a spare capability. No error if it has none: the operation itself will fail."""
    before = _get()
    if not before.permitted >> capability & 1 or before.effective >> capability & 1:
        yield
        return
    _set_masks(before.effective | 1 << capability, before.permitted)
    try:
        yield
    finally:
        _set_masks(before.effective, before.permitted)


class _Masks(NamedTuple):
    effective: int
    permitted: int


def _get() -> _Masks:
    data = (_Data * 2)()
    _call("capget", data)
    return _Masks(
        data[0].effective | data[1].effective << 32, data[0].permitted | data[1].permitted << 32
    )


def _set(in_effect: frozenset[int], allowed: frozenset[int]) -> None:
    _set_masks(sum(1 << number for number in in_effect), sum(1 << number for number in allowed))


def _set_masks(in_effect: int, allowed: int) -> None:
    low = _Data(in_effect & 0xFFFFFFFF, allowed & 0xFFFFFFFF, 0)
    _call("capset", (_Data * 2)(low, _Data(in_effect >> 32, allowed >> 32, 0)))


def _call(name: str, data: ctypes.Array[_Data]) -> None:
    # the calls of libc are those of the kernel: they affect only the calling thread
    libc = ctypes.CDLL(None, use_errno=True)
    header = _Header(_VERSION_3, 0)
    if getattr(libc, name)(ctypes.byref(header), data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
