"""A lock that the drill owns and a rank's main thread waits for; the kernel releases it if the drill dies.

The thread maps a page that it shares with us and jumps into it. There it waits for a futex, then restores all its
registers and continues where it was. No tracer stays attached. The futex is a robust one of ours
(set_robust_list(2)): however we end, the kernel releases it. Its list lies in our own memory, so nothing that the
rank writes into the page is followed as a pointer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading

from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.host.traced_thread import PtracedThread, Registers

# arch/x86/entry/syscalls/syscall_64.tbl
_FUTEX, _SET_ROBUST_LIST, _GET_ROBUST_LIST = 202, 273, 274
# include/uapi/linux/futex.h
_WAKE, _WAITERS = 1, 0x80000000
_SAVED_AT, _WORD_AT = 0x100, 0x200
"""Offsets in the page of the saved registers and of the futex."""
_HEAD_BYTES = 24
_MASK_32 = (1 << 32) - 1
_LOADS = {
    "rdi": b"\x48\x8b\x3d",
    "rsi": b"\x48\x8b\x35",
    "rdx": b"\x48\x8b\x15",
    "r10": b"\x4c\x8b\x15",
    "rax": b"\x48\x8b\x05",
    "rcx": b"\x48\x8b\x0d",
    "r11": b"\x4c\x8b\x1d",
}
"""Registers that the wait changes, and mov REGISTER, [rip + offset]; nothing in it sets flags or uses the stack."""


class HeldLock:
    """The lock. One thread takes and releases it; if that thread ends, the lock is released too."""

    def __init__(self, pid: int) -> None:
        """Make the main thread of the process wait; raises `CannotObserve`, in which case the thread continues."""
        self._page: mmap.mmap | None = None
        self._held = threading.get_native_id() | _WAITERS
        """Value of the futex while the lock is taken; the kernel wakes a waiter only if it says that a thread waits."""
        try:
            self._make_wait(pid)
        except OSError as error:
            self.take_back()
            raise CannotObserve(
                f"process {pid} cannot be made to wait for a lock: {error.strerror or error}; the agent needs "
                "CAP_SYS_PTRACE and CAP_SYS_ADMIN (agent.privileged)"
            ) from error

    def _make_wait(self, pid: int) -> None:
        with PtracedThread(pid) as thread:
            address = thread.map_shared_page()
            name = f"/proc/{pid}/map_files/{address:x}-{address + mmap.PAGESIZE:x}"
            with open(name, "r+b", buffering=0) as file:
                page = self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
            self._hold(page)
            code, saved = _waiting(self._held, thread.registers)
            page[: len(code)] = code
            page[_SAVED_AT : _SAVED_AT + len(saved)] = saved
            thread.registers = thread.registers | {"rip": address}

    def _hold(self, page: mmap.mmap) -> None:
        self._word = ctypes.c_uint32.from_buffer(page, _WORD_AT)
        self._word.value = self._held
        before, size = ctypes.c_size_t(), ctypes.c_size_t()
        _call(_GET_ROBUST_LIST, 0, ctypes.addressof(before), ctypes.addressof(size))
        self._before = before.value
        # robust_list_head, followed by its one entry
        self._list = (ctypes.c_long * 4)()
        head = ctypes.addressof(self._list)
        entry = head + _HEAD_BYTES
        self._list[:] = [entry, ctypes.addressof(self._word) - entry, 0, head]
        _call(_SET_ROBUST_LIST, head, _HEAD_BYTES)

    def take_back(self) -> None:
        """Release the lock; further calls do nothing."""
        page, self._page = self._page, None
        if page is None:
            return
        if hasattr(self, "_list"):
            self._word.value = 0
            _call(_FUTEX, ctypes.addressof(self._word), _WAKE, 1)
            _call(_SET_ROBUST_LIST, self._before, _HEAD_BYTES)
            del self._word
        page.close()


def _waiting(held: int, registers: Registers) -> tuple[bytes, bytes]:
    """Machine code that waits while the futex has this value and then restores the registers; and the data it loads."""
    code = b"\xb8" + struct.pack("<I", _FUTEX)  # mov eax, __NR_futex
    code += _relative(b"\x48\x8d\x3d", len(code), _WORD_AT)  # lea rdi, [word]
    code += b"\xbe\0\0\0\0"  # mov esi, FUTEX_WAIT
    code += b"\xba" + struct.pack("<I", held)  # mov edx, held
    code += b"\x41\xba\0\0\0\0"  # mov r10d, 0: no timeout
    code += b"\x0f\x05"  # syscall
    code += _relative(b"\x8b\x0d", len(code), _WORD_AT)  # mov ecx, [word]
    code += b"\x8d\x89" + struct.pack("<I", -held & _MASK_32)  # lea ecx, [rcx - held]
    code += b"\xe3" + struct.pack("<b", -(len(code) + 2))  # jrcxz to the begin
    saved = b""
    for name, load in _LOADS.items():
        code += _relative(load, len(code), _SAVED_AT + len(saved))
        saved += struct.pack("<Q", registers[name])
    code += _relative(b"\xff\x25", len(code), _SAVED_AT + len(saved))  # jmp [rip of before]
    return code, saved + struct.pack("<Q", registers["rip"])


def _relative(instruction: bytes, at: int, target: int) -> bytes:
    """An instruction whose 32-bit offset points to `target`, relative to the end of the instruction."""
    return instruction + struct.pack("<i", target - (at + len(instruction) + 4))


def _call(number: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
