"""A seccomp filter for helpers: system calls that no reader of ours needs fail with EPERM.

Kernel: Documentation/userspace-api/seccomp_filter.rst; struct seccomp_data, include/uapi/linux/seccomp.h. With
no_new_privs it needs no capability, and programs executed later keep it.
"""

from __future__ import annotations

import ctypes
import errno
import os

from kcover_ebpf.facts.syscalls import refused_numbers

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "arm64": 0xC00000B7}
"""Audit architecture -> what the filter compares with (include/uapi/linux/audit.h)."""
_X32 = 0x40000000
"""Bit set in calls of the x32 ABI, which would otherwise pass a filter that compares numbers."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


class SyscallFilter:
    """Built before a fork and installed after it, so that the child need not allocate memory."""

    def __init__(self, machine: str | None = None) -> None:
        """`machine`: as `os.uname().machine` reports it; None: this one.

        The filter refuses nothing except on x86_64 and arm64.
        """
        machine = machine or os.uname().machine
        numbers = refused_numbers(machine)
        refusal = _ERRNO | errno.EPERM
        rows = [
            (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
            # other architectures (32 bits) have other numbers, and no helper uses them
            (_JUMP_EQUAL, 1, 0, _ARCHITECTURES.get(machine, 0)),
            (_RETURN, 0, 0, refusal),
            (_LOAD_WORD, 0, 0, _NUMBER_AT),
            (_JUMP_AT_LEAST, len(numbers) + 1, 0, _X32),
            *(
                (_JUMP_EQUAL, len(numbers) - index, 0, number)
                for index, number in enumerate(numbers)
            ),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, refusal),
        ]
        self._instructions = (_Instruction * len(rows))(*(_Instruction(*row) for row in rows))
        self._program = _Program(len(rows), self._instructions)
        self._address = ctypes.addressof(self._program)
        self._is_known = bool(numbers)

    def install(self) -> None:
        """Install it permanently for this process and its children; raises `OSError`. Needs no_new_privs."""
        if self._is_known and _LIBC.prctl(
            _PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_void_p(self._address), 0, 0
        ):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
